"""Answers cut off after so many tokens, out of languages that may be infinite."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_compiled.errors import GrammarError
from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.bounded import BoundedSpelling
from sgl_compiled.grammar.compile import compile_grammar
from sgl_compiled.grammar.likely import TreeRule
from sgl_compiled.plan.cost import CostModel
from sgl_compiled.runtime.schema import SelectRequest
from sgl_compiled.runtime.sizes import plan_for
from tests.unit.grammar.any_walks import logits_after, passes
from tests.unit.grammar.test_spellings import INFO, PIECES

REGEXES = ["[ab]+", "(ab|c)*", "1+(, 1+)*", "[a-c]{2,}0?", "(abc)+|b", "[ab]{1,4}", "a", "b*"]
RULES = [TreeRule(False, 0), TreeRule(True, 0), TreeRule(True, 1)]


def decode(pattern: str, max_tokens: int, seed: int, ties: bool) -> tuple[tuple[int, ...], bool]:
    """Token by token, as SGLang decodes under a byte mask with ``max_new_tokens``; and whether a stop id ended it."""
    compiled = compile_grammar(ActionGrammar.from_regex(pattern, max_tokens), INFO, "any")
    assert isinstance(compiled.automaton, BoundedSpelling)
    spelling = compiled.automaton.inner.spelling
    state, taken, text = 0, (), b""
    while len(taken) < max_tokens:
        ids = spelling.legal_ids(state)
        row = logits_after(INFO, text, taken, seed, ties)
        token = int(ids[np.argmax(row[ids])])
        if token in INFO.vocabulary.stop_ids:
            break
        state = spelling.step(state)[token]
        taken, text = (*taken, token), text + (INFO.vocabulary.token_bytes[token] or b"")
    return taken, spelling.accepts(state)


@given(st.sampled_from(REGEXES), st.integers(1, 9), st.integers(0, 10**6), st.booleans(), st.sampled_from(RULES))
@settings(max_examples=15)
def test_equals_decoding(pattern: str, max_tokens: int, seed: int, ties: bool, rule: TreeRule) -> None:
    tokens, whole = decode(pattern, max_tokens, seed, ties)
    compiled = compile_grammar(ActionGrammar.from_regex(pattern, max_tokens), INFO, "any")
    for _ in range(2):
        found, count = passes(INFO, compiled, seed, ties, rule, 1)
        assert found == tokens
        assert count <= max_tokens
        state = compiled.automaton.start
        for token in found:
            state = compiled.automaton.step(state)[token]
        answer = compiled.answer(state, found)
        assert answer.text == "".join(PIECES[token - 1] for token in tokens)
        assert answer.whole == whole == bool(re.fullmatch(pattern, answer.text))


def test_a_truncated_tree_resolves_more_than_one_token_a_pass() -> None:
    compiled = compile_grammar(ActionGrammar.from_regex("(ab|c)+", 8), INFO, "any")
    total = [passes(INFO, compiled, seed, False, TreeRule(), 1) for seed in range(20)]
    assert sum(count for _, count in total) < 0.7 * sum(len(tokens) for tokens, _ in total)


def test_planned_like_any_grammar() -> None:
    compiled = compile_grammar(ActionGrammar.from_regex("[ab]+", 8), INFO, "any")
    narrow = plan_for(compiled, "auto", CostModel(a_ms=1, b_ms=100, c_ms=0), cached=10, fresh=1, positions=500)
    wide = plan_for(compiled, "auto", CostModel(a_ms=100, b_ms=0.01, c_ms=0), cached=10, fresh=1, positions=500)
    assert narrow[0].name == "chunked"
    assert wide[0].name == "[1]"


def test_refused_where_it_means_nothing() -> None:
    with pytest.raises(GrammarError, match="infinitely"):
        compile_grammar(ActionGrammar.from_regex("a+"), INFO, "any")
    with pytest.raises(GrammarError, match="whole"):
        compile_grammar(ActionGrammar.from_regex("a+", 4), INFO)
    for wrong in (0, -1, 10**9):
        with pytest.raises(GrammarError, match="max_tokens"):
            ActionGrammar.from_regex("a+", wrong)
    with pytest.raises(ValueError, match="other answers are whole"):
        SelectRequest(prompt="x", labels=["a"], max_tokens=3, spelling="any")


def test_survives_the_way_to_another_process() -> None:
    grammar = ActionGrammar.from_regex("a+", 4)
    assert ActionGrammar.from_spec(grammar.to_spec()) == grammar
