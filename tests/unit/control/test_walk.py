"""The walk equals serial greedy decoding, whatever the tree holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_compiled.control.walk import Row, decide, walk
from sgl_compiled.errors import NumericalError
from sgl_compiled.grammar.layout import decisions_ahead, legal_ids, unfold
from sgl_compiled.grammar.trie import TrieAutomaton
from tests.cases import path_tokens

STOPS = frozenset({0})
languages = st.lists(
    st.lists(st.integers(1, 4), min_size=0, max_size=5).map(tuple), min_size=1, max_size=14, unique=True
)


def logits_after(prefix: tuple[int, ...], seed: int, ties: bool) -> np.ndarray:
    """Toy model: full-vocabulary logits that depend on the whole prefix; few distinct values where ties are wanted."""
    rng = np.random.default_rng([seed, len(prefix), *prefix])
    return rng.integers(0, 3, 6).astype(float) if ties else rng.normal(size=6)


def serial_greedy(answers: list[tuple[int, ...]], seed: int, ties: bool) -> tuple[int, ...]:
    prefix: tuple[int, ...] = ()
    while True:
        legal = {a[len(prefix)] for a in answers if a[: len(prefix)] == prefix and len(a) > len(prefix)}
        if not legal:
            return prefix
        if prefix in answers:
            legal |= STOPS
        row = logits_after(prefix, seed, ties)
        token = min(legal, key=lambda t: (-row[t], t))
        if token in STOPS:
            return prefix
        prefix = (*prefix, token)


def compiled_walk(
    answers: list[tuple[int, ...]], seed: int, ties: bool, horizon: int, width: int
) -> tuple[tuple[int, ...], int]:
    trie = TrieAutomaton(answers)
    state: object = 0
    tokens: tuple[int, ...] = ()
    passes = 0
    while True:
        tree = unfold(
            trie,
            state,
            decisions_ahead(horizon),
            stop_ids=STOPS,
            max_positions=1_000,
            keep=lambda _, children: dict(list(children.items())[:width]),
        )
        rows = []
        for row in tree.rows:
            full = logits_after((*tokens, *path_tokens(tree, row.node)), seed, ties)
            rows.append(Row(full[list(row.legal)], float(np.log(np.exp(full).sum()))))
        step = walk(trie, state, tree, rows, STOPS, position=len(tokens))
        passes += bool(tree.rows)
        tokens, state = (*tokens, *step.tokens), step.state
        for decision in step.decisions:
            assert decision.legal == tuple(sorted(decision.legal))
            assert decision.margin >= 0
            assert 0 < decision.label_mass <= 1
            assert np.exp(decision.logprobs).sum() == pytest.approx(1)
        if step.complete:
            return tokens, passes


@given(languages, st.integers(0, 10**6), st.booleans(), st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_equals_serial_greedy(answers: list[tuple[int, ...]], seed: int, ties: bool, horizon: int, width: int) -> None:
    """Any lookahead, any narrowing: misses cost passes, never answers."""
    tokens, _ = compiled_walk(answers, seed, ties, horizon, width)
    assert tokens == serial_greedy(answers, seed, ties)


@pytest.mark.long
def test_equals_serial_greedy_on_many() -> None:
    rng = np.random.default_rng(0)
    for seed in range(5_000):
        count = rng.integers(1, 12)
        answers = list({tuple(rng.integers(1, 5, rng.integers(0, 6)).tolist()) for _ in range(count)})
        tokens, _ = compiled_walk(answers, seed, bool(seed % 2), int(rng.integers(1, 5)), int(rng.integers(1, 5)))
        assert tokens == serial_greedy(answers, seed, bool(seed % 2))


def test_full_horizon_takes_one_pass() -> None:
    answers = [(1, 2), (1, 3), (2, 2, 1), (2, 2, 4), (3,)]
    for seed in range(20):
        assert compiled_walk(answers, seed, False, 9, 9)[1] == 1


def row(values: list[float], lse: float = 10.0) -> Row:
    return Row(np.array(values), lse)


def test_ties_go_to_the_lowest_id_with_margin_zero() -> None:
    decision = decide(row([1.0, 1.0, 0.5]), (3, 7, 9))
    assert (decision.token, decision.margin) == (3, 0.0)
    # Equal logits far from zero stay equal: the choice is made before anything is subtracted from them.
    decision = decide(row([1e15, 1e15]), (3, 7))
    assert (decision.token, decision.margin) == (3, 0.0)


@pytest.mark.parametrize("values", [[np.nan, 1.0], [1.0, np.nan], [-np.inf, -np.inf], [np.inf, 0.0]])
def test_no_choice_from_a_broken_row(values: list[float]) -> None:
    with pytest.raises(NumericalError):
        decide(row(values), (1, 2))


def test_an_infinite_logit_is_called_so() -> None:
    with pytest.raises(NumericalError, match=r"\+inf"):
        decide(row([0.0, np.inf]), (1, 2))
    with pytest.raises(NumericalError, match="no legal token"):
        decide(row([-np.inf, -np.inf]), (1, 2))


def test_no_choice_from_a_row_whose_vocabulary_is_broken() -> None:
    with pytest.raises(NumericalError, match="NaN"):
        decide(row([1.0, 2.0], lse=np.nan), (1, 2))


def test_an_impossible_rival_is_no_rival() -> None:
    decision = decide(row([-np.inf, 2.0]), (1, 2))
    assert decision.token == 2
    assert decision.margin == np.inf
    assert decision.logprob == 0.0


def test_logprobs_of_case_b02() -> None:
    """log p(none) = -0.523744 when the vocabulary holds what the case says; renormalised over the legal ids here."""
    logits = np.log(np.array([0.5, 0.25, 0.125]))
    decision = decide(Row(logits, 0.0), (1, 2, 5))
    assert decision.logprob == pytest.approx(np.log(0.5 / 0.875))
    assert decision.label_mass == pytest.approx(0.875)


def test_legal_ids_of_a_complete_answer() -> None:
    trie = TrieAutomaton([(1,), (1, 2)])
    assert legal_ids(trie, 1, STOPS) == (0, 2)
    assert legal_ids(trie, 2, STOPS) == ()
