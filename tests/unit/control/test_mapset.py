"""Set posteriors, bounds over sets and certificates against enumeration."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations

import pytest
from control_toys import Toy, brackets, enumerated_toys, instances, one_token_slots, slot_toys, sweep, trie_toys
from hypothesis import given
from hypothesis import strategies as st

from sgl_compiled.control.mapset import SetPosterior, SetSearch
from sgl_compiled.control.node import Objective
from sgl_compiled.control.setbound import ItemCode, SetBound

objectives = st.sampled_from(["policy", "conditional"])
sets = st.one_of(slot_toys(), slot_toys(max_labels=6, constraints=("distinct",)), enumerated_toys(), trie_toys())


def truth(toy: Toy, objective: Objective) -> dict[tuple[int, ...], float]:
    outcomes, answers = toy.outcomes(), toy.answers()
    total = 1.0 if objective == "policy" else sum(answer.raw for answer in answers)
    out: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for answer in answers:
        mass = answer.policy if objective == "policy" else answer.raw
        out[tuple(sorted(outcomes.labels(answer.state)))] += mass / total
    return dict(out)


def verify(found: SetPosterior, expected: dict[tuple[int, ...], float]) -> None:
    best = max(expected.values())
    for entry in (*found.top, *([found.rival] if found.rival else [])):
        assert brackets(entry.probability, expected.get(entry.labels, 0.0))
    if found.certified:
        assert expected[found.top[0].labels] == pytest.approx(best, abs=1e-9)
        assert found.gap == 0.0 and found.rival is None
    elif found.top:
        assert best - expected[found.top[0].labels] <= found.gap + 1e-9
    lowers = [entry.probability.lower for entry in found.top]
    assert lowers == sorted(lowers, reverse=True)
    assert found.expanded <= found.states


@instances
def test_search_is_right_at_every_stage(instances: int) -> None:
    def check(toy: Toy, batch: int, objective: Objective) -> None:
        expected = truth(toy, objective)
        evidence = toy.evidence()
        search = SetSearch(evidence, toy.outcomes(), objective)
        stages = 0
        verify(search.posterior(), expected)
        while prefixes := search.next(batch):
            assert len(prefixes) <= batch
            rows = evidence.rows
            toy.evaluate(evidence, prefixes, objective)
            assert evidence.rows > rows
            verify(search.posterior(3), expected)
            stages += 1
        assert search.posterior().certified

    sweep(instances, check, toy=sets, batch=st.integers(1, 4), objective=objectives)


@instances
def test_any_partial_evidence_is_bracketed(instances: int) -> None:
    def check(toy: Toy, seed: int, passes: int, objective: Objective) -> None:
        evidence = toy.partly(seed, passes, objective)
        verify(SetSearch(evidence, toy.outcomes(), objective).posterior(100), truth(toy, objective))

    sweep(instances, check, toy=sets, seed=st.integers(0, 99), passes=st.integers(0, 6), objective=objectives)


@given(sets, objectives)
def test_full_evaluation_is_the_posterior(toy: Toy, objective: Objective) -> None:
    expected = truth(toy, objective)
    found = SetSearch(toy.full(), toy.outcomes(), objective).posterior(1000)
    assert found.certified and found.expanded == found.states
    assert {entry.labels: entry.probability.lower for entry in found.top} == pytest.approx(expected, abs=1e-12)
    assert all(entry.probability.exact for entry in found.top)
    by_path = {answer.path: answer for answer in toy.answers()}
    for entry in found.top:
        orderings = [a for a in by_path.values() if tuple(sorted(toy.outcomes().labels(a.state))) == entry.labels]
        assert entry.best is not None
        best = by_path[entry.best]
        assert (best.policy, best.raw)[objective == "conditional"] == pytest.approx(
            max((a.policy, a.raw)[objective == "conditional"] for a in orderings)
        )


@given(slot_toys(max_labels=6, constraints=("distinct",)), st.integers(1, 30))
def test_budget_ends_the_search(toy: Toy, budget: int) -> None:
    evidence = toy.evidence()
    search = SetSearch(evidence, toy.outcomes())
    found = search.run(lambda prefixes: toy.evaluate(evidence, prefixes), batch=2, max_states=budget)
    assert found.expanded <= budget
    assert found.certified or found.expanded == budget
    verify(found, truth(toy, "policy"))


@pytest.mark.parametrize("objective", ["policy", "conditional"])
def test_peaked_distributions_are_certified_early(objective: Objective) -> None:
    shares = []
    for seed in range(20):
        toy = one_token_slots(9, 3, seed, 6.0)
        evidence = toy.evidence()
        search = SetSearch(evidence, toy.outcomes(), objective)
        found = search.run(lambda p, t=toy, e=evidence: t.evaluate(e, p, objective), batch=1, max_states=10**6)
        assert found.certified and found.states == 1 + 9 + 72
        verify(found, truth(toy, objective))
        shares.append(found.expanded / found.states)
    assert sorted(shares)[10] < 0.25


groups = st.dictionaries(
    st.sets(st.integers(0, 6), max_size=3).map(lambda items: tuple(sorted(items))), st.floats(0, 1), max_size=25
)


@given(groups, st.integers(1, 3))
def test_set_bounds_come_in_descending_order(masses: dict[tuple[int, ...], float], size: int) -> None:
    bound = SetBound(masses, size, 7)
    expected = {
        items: sum(mass for group, mass in masses.items() if set(group) <= set(items))
        for items in combinations(range(7), size)
    }
    found = list(bound.descending(10**6))
    assert {items for items, _ in found} == set(expected) and len(found) == len(expected)
    for items, upper in found:
        assert items is not None
        assert upper == pytest.approx(expected[items], abs=1e-9) == bound.upper(items)
    values = [upper for _, upper in found]
    assert all(a >= b - 1e-9 for a, b in zip(values, values[1:], strict=False))


@given(groups, st.integers(1, 3), st.integers(1, 40))
def test_a_cut_search_still_bounds_the_rest(masses: dict[tuple[int, ...], float], size: int, limit: int) -> None:
    bound = SetBound(masses, size, 7)
    found = list(bound.descending(limit))
    if found[-1][0] is not None:
        assert len(found) == len(list(combinations(range(7), size)))
        return
    seen = {items for items, _ in found}
    rest = [bound.upper(items) for items in combinations(range(7), size) if items not in seen]
    assert max(rest) <= found[-1][1] + 1e-9


@given(st.lists(st.integers(0, 4), max_size=4))
def test_multisets_survive_their_code(labels: list[int]) -> None:
    code = ItemCode(5, 4, False)
    items = code.items(labels)
    assert len(set(items)) == len(labels) and code.valid(items)
    assert code.labels(items) == tuple(sorted(labels))
    assert all(item < code.universe for item in items)


def test_codes_without_labels() -> None:
    assert not ItemCode(5, 4, False).valid((1, 7))
