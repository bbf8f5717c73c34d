"""The tree of likely spellings decides how many passes an answer takes, never which answer it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from sgl_compiled.errors import GrammarTooLargeError, SglCompiledError
from sgl_compiled.grammar import spellings
from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.compile import GrammarCompiler, compile_grammar
from sgl_compiled.grammar.layout import actions_ahead, decisions_ahead
from sgl_compiled.grammar.likely import TreeRule
from sgl_compiled.grammar.limits import Limits
from sgl_compiled.grammar.regex import compile_regex
from sgl_compiled.grammar.spellings import SpellingAutomaton
from tests.unit.grammar.any_walks import passes, serial
from tests.unit.grammar.toy import toy

LETTERS = 'abcdefghijklmnopqrstuvwxyz0123456789"[], :{}'
PIECES = [*LETTERS, "ab", "bc", "abc", '["', '", "', '"]', "ca", "01", "10", ", "]
INFO = toy(PIECES)
RULES = [TreeRule(False, 0), TreeRule(True, 0), TreeRule(False, 1), TreeRule(True, 2)]


label_grammars = st.builds(
    lambda labels, k, order, template: ActionGrammar.from_labels(
        labels, min(k, len(labels)), order=order, template=template
    ),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=6, unique=True),
    st.integers(1, 3),
    st.sampled_from(["any", "list"]),
    st.sampled_from(["json", "raw"]),
)
REGEXES = [
    "[ab]{1,4}",
    "(a|b|c){0,3}",
    "a?b?c?",
    "(ab|abc|a)(c|1)?",
    "1{1,3}",
    "ab",
    "",
    '\\{"x": (0|1|10), "y": \\[(?:"a"(?:, "b")?)?\\]\\}',
    "[a-c0-1]{5}",
]
grammars = label_grammars | st.sampled_from(REGEXES).map(ActionGrammar.from_regex)


@given(grammars, st.integers(0, 10**6), st.booleans(), st.sampled_from(RULES), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_equals_serial_greedy(grammar: ActionGrammar, seed: int, ties: bool, rule: TreeRule, actions: int) -> None:
    compiled = compile_grammar(grammar, INFO, "any")
    assert isinstance(compiled.automaton, SpellingAutomaton)
    text, decided = serial(INFO, compiled.automaton.spelling, seed, ties)
    for _ in range(2):  # the second walk follows what the first has taught
        tokens, _ = passes(INFO, compiled, seed, ties, rule, actions)
        end = compiled.automaton.start
        for token in tokens:
            end = compiled.automaton.step(end)[token]
        answer = compiled.answer(end, tokens)
        assert answer.text.encode() == text
        assert tokens[: len(decided)] == decided
        if grammar.labels:
            assert [grammar.labels[index] for index in answer.indices] == list(answer.labels)
            assert grammar.form().text(answer.indices) == answer.text


@pytest.mark.long
def test_equals_serial_greedy_on_many() -> None:
    rng = np.random.default_rng(0)
    for seed in range(5_000):
        letters = ["".join(rng.choice(list("abc"), rng.integers(1, 5))) for _ in range(rng.integers(1, 6))]
        labels = list(dict.fromkeys(letters))
        grammar = ActionGrammar.from_labels(labels, int(rng.integers(1, min(3, len(labels)) + 1)))
        compiled = compile_grammar(grammar, INFO, "any")
        text, decided = serial(INFO, compiled.automaton.spelling, seed, bool(seed % 2))
        tokens, _ = passes(INFO, compiled, seed, bool(seed % 2), RULES[seed % 4], 1 + seed % 3)
        assert b"".join(INFO.vocabulary.token_bytes[token] or b"" for token in tokens) == text
        assert tokens[: len(decided)] == decided


def test_habits_save_passes() -> None:
    """A model that always spells oddly costs misses once, and none the second time."""
    grammar = ActionGrammar.from_labels(["abc", "abca", "bca"], 2)
    for seed in range(30):
        compiled = compile_grammar(grammar, INFO, "any")
        first = passes(INFO, compiled, seed, False, TreeRule(True, 0), 2)
        again = passes(INFO, compiled, seed, False, TreeRule(True, 0), 2)
        assert first[0] == again[0]
        assert again[1] == 1


def test_a_fresh_automaton_takes_over_from_one_that_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = GrammarCompiler(INFO)
    grammar = ActionGrammar.from_labels(["abc", "abca", "bca"], 2)
    first = compiler.compile(grammar, "any")
    assert compiler.compile(grammar, "any") is first
    monkeypatch.setattr(spellings, "_MOST_STATES", 1)
    assert first.grown
    assert compiler.compile(grammar, "any") is not first
    assert not compiler.compile(grammar).grown


def test_canonical_ids_are_first_tokens() -> None:
    compiled = compile_grammar(ActionGrammar.from_labels(["abc", "abca", "bca"], 1), INFO, "any")
    automaton = compiled.automaton
    assert isinstance(automaton, SpellingAutomaton)
    opening = PIECES.index('["') + 1
    assert set(automaton.canonical(0)) == {opening}
    inside = automaton.step(0)[opening]
    assert {PIECES[token - 1] for token in automaton.canonical(inside)} == {"abc", "bc"}


def test_one_text_left_is_spelled_by_the_tokenizer() -> None:
    automaton = SpellingAutomaton(compile_regex("abcab|b"), INFO)
    state, spelled = automaton.step(0)[PIECES.index("a") + 1], []
    while following := automaton.step(state):
        ((token, state),) = following.items()
        spelled.append(PIECES[token - 1])
    assert spelled == ["bc", "ab"]


@given(st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=8, unique=True))
@example(["b", "bbbbb", "bbbbba"])
@example(["aaaaa", "aaaaaa"])
@settings(max_examples=20, deadline=None)
def test_limits_bound_a_tree(labels: list[str]) -> None:
    try:
        grammar = ActionGrammar.from_labels(labels, 1, template="raw")
    except SglCompiledError:
        assume(False)
    limits = Limits(max_likely_positions=4, max_deviation_positions=6, max_legal_ids=20)
    compiled = compile_grammar(grammar, INFO, "any", limits)
    try:
        tree = compiled.unfold(0, actions_ahead(compiled.automaton, 0, 1), 300, TreeRule(False, 3))
    except GrammarTooLargeError:
        tree = compiled.unfold(0, decisions_ahead(1), 300)
        assert len(tree.rows) == 1  # however far away the first decision is
    assert len(tree) <= 6
    assert sum(len(row.legal) for row in tree.rows[1:]) <= 20
