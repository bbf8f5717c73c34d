"""Answers so long that their weights underflow, and posteriors so flat that a search among sets could go on."""

from __future__ import annotations

import time
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
from control_toys import Toy, one_token_slots
from hypothesis import given
from hypothesis import strategies as st

from sgl_compiled.control.conditional import compare
from sgl_compiled.control.inquiry import Distribution
from sgl_compiled.control.leaves import leaves
from sgl_compiled.control.mapset import SetSearch
from sgl_compiled.control.options import options
from sgl_compiled.control.outcomes import Outcomes
from sgl_compiled.control.sequences import language_mass, ranking
from sgl_compiled.control.setbound import SetBound
from sgl_compiled.control.setmasses import RIVAL_EVALUATIONS, SetMasses
from sgl_compiled.control.walk import Row
from sgl_compiled.grammar.form import SlotForm
from sgl_compiled.grammar.layout import TreeLayout
from sgl_compiled.grammar.slots import SegmentTrie, SlotAutomaton
from sgl_compiled.grammar.trie import TrieAutomaton

LOGITS = np.array([-6.0, -6.5, 0.0])
"""Of three labels, behind anything."""
FORCED = 10


class FarModel:
    """The same everywhere."""

    def __init__(self, forced: float) -> None:
        self.forced = forced  # log-probability of a forced token

    def rows(self, layout: TreeLayout, _: Any) -> list[Row]:
        def row(legal: tuple[int, ...]) -> Row:
            if legal == (FORCED,):
                return Row(np.array([self.forced]), 0.0)
            logits = LOGITS[list(legal)]
            return Row(logits, float(np.log(np.exp(logits).sum())))

        return [row(row_.legal) for row_ in layout.rows]


def far(n_slots: int, forced: int, logprob: float, labels: int = 3) -> Toy:
    """Choose among labels with so many forced tokens behind each."""
    trie = SegmentTrie.build([[label, *[FORCED] * forced] for label in range(labels)])
    assert trie is not None
    form = SlotForm(("",) * (n_slots + 1), (("a", "b", "c")[:labels],) * n_slots, "distinct")
    return Toy(SlotAutomaton(form, [trie] * n_slots), FarModel(logprob))  # type: ignore[arg-type]


def posterior(n_slots: int) -> dict[tuple[int, ...], float]:
    """By enumeration; the forced tokens have the same weight in every answer."""
    out: dict[tuple[int, ...], float] = {}
    for labels in permutations(range(3), n_slots):
        left, share = [0, 1, 2], 1.0
        for label in labels:
            share *= np.exp(LOGITS[label]) / np.exp(LOGITS[left]).sum()
            left.remove(label)
        out[tuple(sorted(labels))] = out.get(tuple(sorted(labels)), 0.0) + share
    return out


@pytest.mark.parametrize(("forced", "logprob"), [(1, -4.0), (20, -4.0), (20, -40.0), (20, -100.0)])
def test_sets_of_long_labels(forced: int, logprob: float) -> None:
    toy, expected = far(2, forced, logprob), posterior(2)
    evidence = toy.evidence()
    search = SetSearch(evidence, toy.outcomes(), "conditional")
    while prefixes := search.next(1):
        found = search.posterior()
        assert not found.certified and found.gap > 0
        toy.evaluate(evidence, prefixes, "conditional")
    found = search.posterior()
    assert found.certified and found.top[0].labels == (0, 2)
    assert found.top[0].probability.lower <= expected[0, 2] + 1e-9 <= found.top[0].probability.upper + 2e-9
    whole = SetSearch(toy.full(), toy.outcomes(), "conditional").posterior()
    assert {entry.labels: entry.probability for entry in whole.top} == {
        labels: pytest.approx((share, share)) for labels, share in expected.items()
    }


@pytest.mark.parametrize(("forced", "logprob"), [(1, -4.0), (20, -40.0)])
def test_options_of_long_labels(forced: int, logprob: float) -> None:
    toy, expected = far(1, forced, logprob), posterior(1)
    found = options(toy.full(), toy.outcomes(), "conditional")
    for label, bounds in found.probabilities.items():
        assert bounds == pytest.approx((expected[label,], expected[label,]))
    ranked = ranking(toy.full(), 3, "conditional")
    assert [one.path[0] for one in ranked.top] == [2, 0, 1] and ranked.certified == 3
    assert ranked.top[0].raw_logprob == pytest.approx(np.log(expected[2,]) + logprob * forced)
    # Nobody divides by this one: it is what the unconstrained model would do, however little.
    assert language_mass(toy.full()) == pytest.approx((np.exp(logprob * forced),) * 2, rel=1e-9, abs=1e-300)
    assert compare(toy.full()).total_variation == pytest.approx((0.0, 0.0), abs=1e-12)


def test_distributions_are_read_to_the_end_however_long() -> None:
    toy = far(2, 20, -40.0)
    inquiry = Distribution(toy.evidence(), "conditional")
    while prefixes := inquiry.next(2):
        toy.evaluate(inquiry.evidence, prefixes, "conditional")
    assert all(cell.complete for cell in leaves(inquiry.evidence, "conditional"))


def test_nothing_is_certain_of_a_best_set_without_mass() -> None:
    toy = far(2, 20, -80.0, labels=2)
    evidence = toy.evidence()
    toy.evaluate(evidence, [()])
    toy.evaluate(evidence, [(0,)], "conditional", actions=2)
    search = SetSearch(evidence, toy.outcomes(), "conditional")
    # There is no other set, but one ordering of this one weighs nothing beside the other, which is not evaluated.
    (only,) = search.posterior().top
    assert only.labels == (0, 1) and only.probability == (0.0, 1.0)
    assert not search.posterior().certified and search.posterior().gap == 1.0
    while prefixes := search.next(1):
        toy.evaluate(evidence, prefixes, "conditional")
    assert search.posterior().certified
    assert search.posterior().top[0].probability == pytest.approx((1.0, 1.0))


def test_many_words_are_told_apart_at_once() -> None:
    automaton = TrieAutomaton([[token] for token in range(30_000)])
    start = time.process_time()
    outcomes = Outcomes(automaton)
    assert time.process_time() - start < 1
    assert outcomes.filled(0).among == frozenset(range(30_000))


groups = st.dictionaries(
    st.sets(st.integers(0, 6), max_size=3).map(lambda items: tuple(sorted(items))), st.floats(0, 1), max_size=25
)


@given(groups, st.integers(1, 3), st.floats(0, 2))
def test_sets_above_a_floor(masses: dict[tuple[int, ...], float], size: int, floor: float) -> None:
    bound = SetBound(masses, size, 7)
    above = {items for items in combinations(range(7), size) if bound.upper(items) > floor + 1e-9}
    near = {items for items in combinations(range(7), size) if bound.upper(items) > floor - 1e-9}
    for found in (bound.descending(10**6, floor=floor), bound.exceeding(floor, 10**6)):
        items = {items for items, _ in found}
        assert above <= items <= near


def test_a_flat_posterior_is_known_to_be_open_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = one_token_slots(12, 4, 3, 0.01)
    evidence = toy.evidence()
    toy.evaluate(evidence, [()])
    toy.evaluate(evidence, [(label,) for label in range(12)])
    toy.evaluate(evidence, [(0, 1), (2, 3), (4, 5)])
    toy.evaluate(evidence, [(0, 1, 2)])
    looked = []
    bound = SetBound._bound
    monkeypatch.setattr(SetBound, "_bound", lambda *args: looked.append(1) or bound(*args))
    assert not SetMasses(evidence, toy.outcomes(), "policy").certified and len(looked) < 50
    assert SetSearch(evidence, toy.outcomes()).next(4) and len(looked) < RIVAL_EVALUATIONS + 100
