"""Canonical spelling: the factorised automaton spells exactly what whole-answer encoding spells."""

from __future__ import annotations

from math import perm

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import toy

from sgl_compiled.errors import GrammarError, GrammarTooLargeError
from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.canonical import EnumeratedSlots
from sgl_compiled.grammar.compile import CompiledGrammar, GrammarCompiler, compile_grammar
from sgl_compiled.grammar.form import SlotForm, Template
from sgl_compiled.grammar.limits import Limits
from sgl_compiled.grammar.slots import SlotAutomaton
from sgl_compiled.grammar.tokenizer import TokenizerInfo

LETTERS = [*"abcdef", ",", " ", '"', "[", "]", "\\"]
PLAIN = toy([*LETTERS, "ab", "cd", '["', '", "', '"]', '",', ' "'])
GREEDY = toy([*LETTERS, "ab", "b,", ", ", 'a"', '["a', '", "b'])


def spelled(compiled: CompiledGrammar) -> dict[tuple[int, ...], str]:
    """Every token sequence of the automaton, and the text of the answer that it ends."""
    out: dict[tuple[int, ...], str] = {}
    stack = [((), compiled.automaton.start)]
    while stack:
        tokens, state = stack.pop()
        if compiled.automaton.accepts(state):
            out[tokens] = compiled.answer(state).text
        following = compiled.automaton.step(state)
        assert following or compiled.automaton.accepts(state), "a walk must never get stuck"
        assert list(following) == sorted(following)
        stack += [((*tokens, token), child) for token, child in following.items()]
    return out


def check(grammar: ActionGrammar, info: TokenizerInfo) -> CompiledGrammar:
    compiled = compile_grammar(grammar, info)
    form = grammar.form()
    texts = [form.text(chosen) for chosen in form.sequences()]
    assert len(texts) == form.count == compiled.count
    expected = dict(zip(map(tuple, info.encode_batch(texts)), texts, strict=True))
    assert spelled(compiled) == expected
    assert compiled.max_tokens >= max(map(len, expected))
    return compiled


labels_of = st.lists(st.text(alphabet="abcdef", min_size=1, max_size=3), min_size=1, max_size=5, unique=True)


@given(
    labels=labels_of,
    data=st.data(),
    template=st.sampled_from(["json", "raw"]),
    order=st.sampled_from(["any", "list"]),
    distinct=st.booleans(),
    greedy=st.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_equals_encoding_every_answer(
    labels: list[str], data: st.DataObject, template: str, order: str, distinct: bool, greedy: bool
) -> None:
    k = data.draw(st.integers(1, min(3, len(labels)) if distinct else 3))
    grammar = ActionGrammar.from_labels(labels, k, distinct=distinct, order=order, template=template)  # type: ignore[arg-type]
    check(grammar, GREEDY if greedy else PLAIN)


def test_no_unrolling_where_the_joint_is_clean() -> None:
    compiled = check(ActionGrammar.from_labels(["a", "b", "ab"], 2), PLAIN)
    assert isinstance(compiled.automaton, SlotAutomaton)
    big = ActionGrammar.from_labels([a + b + c for a in "abc" for b in "abc" for c in "abc"], 8)
    compiled = compile_grammar(big, PLAIN)
    assert compiled.count == perm(27, 8)
    assert compiled.horizon == 8


def test_merges_across_the_joint_are_enumerated_or_refused() -> None:
    # Every boundary of the separator is swallowed for some neighbour, so no cut is safe.
    info = toy([*LETTERS, "a,", ", ", " b", "a, b"])
    grammar = ActionGrammar.from_labels(["a", "b", "c"], 2, template="raw")
    assert isinstance(check(grammar, info).automaton, EnumeratedSlots)
    with pytest.raises(GrammarTooLargeError, match="separator"):
        compile_grammar(grammar, info, limits=Limits(max_strings=3))


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ([], {}, "empty"),
        (["a", ""], {}, r"labels\[1\] is empty"),
        (["a", "b", "a"], {}, "duplicate"),
        ("abc", {}, "list of strings"),
        (["a", 3], {}, "must be a string"),
        (["a"], {"k": 0}, "k >= 1"),
        (["a"], {"k": 2}, "only 1 distinct"),
        (["a"], {"k": True}, "whole number"),
        (["a"], {"k": 65, "distinct": False}, "at most 64"),
        (["a"], {"order": "random"}, "unknown order"),
        (["a"], {"template": "xml"}, "unknown template"),
        (["a\ud800"], {}, "surrogate"),
        (["a" * 5000], {}, "5000 bytes"),
        (["a, b", "b"], {"k": 2, "template": "raw"}, "separator"),
        (["a", "ab"], {"k": 2, "template": Template("", "", "")}, "prefix"),
    ],
)
def test_refusals(labels: list[str], options: dict[str, object], message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        ActionGrammar.from_labels(labels, **options)  # type: ignore[arg-type]


def test_labels_the_tokenizer_cannot_spell() -> None:
    info = toy(["a", "b"])
    lossy = TokenizerInfo(info.vocabulary, lambda texts: [[1] for _ in texts])
    with pytest.raises(GrammarError, match="normalisation"):
        compile_grammar(ActionGrammar.from_labels(["b"], template="raw"), lossy)
    special = TokenizerInfo(info.vocabulary, lambda texts: [[0] for _ in texts])
    with pytest.raises(GrammarError, match="ordinary tokens"):
        compile_grammar(ActionGrammar.from_labels(["b"], template="raw"), special)


def test_regex_and_labels_share_limits() -> None:
    with pytest.raises(GrammarError, match="infinite"):
        compile_grammar(ActionGrammar.from_regex("a+"), PLAIN)
    with pytest.raises(GrammarTooLargeError, match="more than 10 strings"):
        compile_grammar(ActionGrammar.from_regex("[a-f]{2}"), PLAIN, limits=Limits(max_strings=10))


def test_spec_survives_the_way_to_another_process() -> None:
    for grammar in (
        ActionGrammar.from_labels(["a", "b"], 2, distinct=False, order="list", template=Template("<", ",", ">")),
        ActionGrammar.from_regex("(a|b)"),
    ):
        assert ActionGrammar.from_spec(grammar.to_spec()) == grammar


def test_compiler_keeps_what_is_asked_for_again() -> None:
    compiler = GrammarCompiler(PLAIN, capacity=2)
    first = compiler.compile(ActionGrammar.from_labels(["a"]))
    assert compiler.compile(ActionGrammar.from_labels(["a"])) is first
    for label in "bc":
        compiler.compile(ActionGrammar.from_labels([label]))
    assert compiler.compile(ActionGrammar.from_labels(["a"])) is not first


@pytest.mark.parametrize("constraint", ["free", "distinct", "increasing", "nondecreasing"])
@given(k=st.integers(1, 4), n=st.integers(1, 4))
def test_counts_without_unrolling(constraint: str, k: int, n: int) -> None:
    if constraint in ("distinct", "increasing") and n > k:
        return
    form = SlotForm(("",) * (n + 1), (tuple("abcd"[:k]),) * n, constraint)  # type: ignore[arg-type]
    sequences = list(form.sequences())
    assert len(sequences) == len(set(sequences)) == form.count
