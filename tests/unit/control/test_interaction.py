"""Interaction mass and the unary policy against enumeration."""

from __future__ import annotations

from collections import defaultdict
from math import log, sqrt

import numpy as np
import pytest
from control_toys import Toy, brackets, enumerated_toys, instances, one_token_slots, slot_toys, sweep, trie_toys
from hypothesis import given
from hypothesis import strategies as st

from sgl_compiled.control.interaction import interaction
from sgl_compiled.control.leaves import leaves
from sgl_compiled.control.plackett import PlackettLuce
from sgl_compiled.errors import RequestError

unordered = st.one_of(slot_toys(constraints=("distinct", "free")), enumerated_toys())


def distributions(toy: Toy) -> tuple[dict[tuple[int, ...], float], dict[tuple[int, ...], float]]:
    """The policy over label sequences, and its projection."""
    outcomes = toy.outcomes()
    policy: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for answer in toy.answers():
        policy[outcomes.labels(answer.state)] += answer.policy
    first: defaultdict[int, float] = defaultdict(float)
    for labels, probability in policy.items():
        first[labels[0]] += probability
    projection = {}
    for labels in policy:
        chance = 1.0
        for slot, label in enumerate(labels):
            taken = labels[:slot] if outcomes.distinct else ()
            chance *= first[label] / sum(w for other, w in first.items() if other not in taken)
        projection[labels] = chance
    return dict(policy), projection


@instances
def test_interaction_mass(instances: int) -> None:
    def check(toy: Toy, seed: int, passes: int) -> None:
        policy, projection = distributions(toy)
        assert sum(projection.values()) == pytest.approx(1.0)
        truth = sum(p * log(p / projection[labels]) for labels, p in policy.items() if p > 0)
        outcomes = toy.outcomes()
        full = interaction(toy.full("policy"), outcomes)
        assert full.mass.exact and full.mass.lower == pytest.approx(max(truth, 0.0), abs=1e-9)
        assert full.utility_loss == pytest.approx(min(1.0, sqrt(full.mass.upper / 2)))
        assert sum(abs(policy[s] - projection[s]) for s in policy) / 2 <= full.utility_loss + 1e-9
        assert full.same_sequence == (full.greedy == full.unary)
        assert full.greedy in policy and full.unary in policy
        # Greedy on the projection, slot by slot.
        prefix: tuple[int, ...] = ()
        for label in full.unary:
            heads: defaultdict[int, float] = defaultdict(float)
            for labels, p in projection.items():
                if labels[: len(prefix)] == prefix:
                    heads[labels[len(prefix)]] += p
            assert heads[label] == pytest.approx(max(heads.values()))
            prefix = (*prefix, label)
        evidence = toy.partly(seed, passes, "policy")
        if any(not cell.complete and not outcomes.filled(cell.state).labels for cell in leaves(evidence)):
            with pytest.raises(RequestError, match="first slot"):
                interaction(evidence, outcomes)
            return
        assert brackets(interaction(evidence, outcomes).mass, truth)

    sweep(instances, check, toy=unordered, seed=st.integers(0, 99), passes=st.integers(0, 6))


@given(slot_toys(constraints=("distinct", "free")), st.integers(0, 99), st.integers(0, 6))
def test_lower_end_is_the_divergence_between_cells(toy: Toy, seed: int, passes: int) -> None:
    """No looser than what the cells allow, those that end inside a label included."""
    _, projection = distributions(toy)
    outcomes, evidence = toy.outcomes(), toy.partly(seed, passes, "policy")
    expected = 0.0
    for cell in leaves(evidence):
        inside = {
            outcomes.labels(a.state)
            for a in toy.answers()
            if (a.path == cell.path if cell.complete else a.path[: len(cell.path)] == cell.path)
        }
        mass = cell.mass("policy")
        expected += mass * log(mass / sum(projection[labels] for labels in inside))
    assert interaction(evidence, outcomes).mass.lower == pytest.approx(max(expected, 0.0), abs=1e-9)


@pytest.mark.parametrize("constraint", ["distinct", "free"])
def test_no_interaction_without_history(constraint: str) -> None:
    toy = one_token_slots(5, 3, 2, 1.0, constraint)
    base = toy.model.logits(())
    toy.model.logits = lambda path: base  # type: ignore[method-assign]
    found = interaction(toy.full("policy"), toy.outcomes())
    assert found.mass.upper == pytest.approx(0.0, abs=1e-12) and found.same_sequence and found.same_set


def test_bounds_close_as_the_tree_is_evaluated() -> None:
    toy = one_token_slots(6, 3, 4, 1.0)
    outcomes, evidence = toy.outcomes(), toy.evidence()
    toy.evaluate(evidence, [()])
    widths = []
    while waiting := [node.path for node in evidence.nodes() if node.logits is None and len(node.legal) > 1]:
        bounds = interaction(evidence, outcomes).mass
        widths.append(bounds.upper - bounds.lower)
        toy.evaluate(evidence, waiting[:3])
    assert all(a >= b - 1e-9 for a, b in zip(widths, widths[1:], strict=False))
    assert interaction(evidence, outcomes).mass.exact and widths[0] > 0.5


@given(st.one_of(trie_toys(), slot_toys(constraints=("increasing", "nondecreasing"))))
def test_refused_where_the_projection_has_no_meaning(toy: Toy) -> None:
    with pytest.raises(RequestError, match="any order"):
        interaction(toy.full("policy"), toy.outcomes())


def test_refused_before_the_first_slot_is_known() -> None:
    toy = one_token_slots(4, 2, 1, 1.0)
    with pytest.raises(RequestError, match="first slot"):
        interaction(toy.evidence(), toy.outcomes())


@given(st.lists(st.floats(-3, 3), min_size=3, max_size=5), st.booleans(), st.integers(1, 3))
def test_least_likely_sequence(weights: list[float], distinct: bool, n_slots: int) -> None:
    from itertools import permutations, product

    logs = np.array(weights) - np.log(np.exp(weights).sum())
    unary = PlackettLuce(logs, n_slots, distinct)
    everything = permutations(range(len(logs)), n_slots) if distinct else product(range(len(logs)), repeat=n_slots)
    chances = {labels: unary.log_prefix(labels) for labels in everything}
    assert sum(np.exp(list(chances.values()))) == pytest.approx(1.0)
    for prefix in {labels[:size] for labels in chances for size in range(n_slots + 1)}:
        least = min(chance for labels, chance in chances.items() if labels[: len(prefix)] == prefix)
        assert unary.log_least(prefix) == pytest.approx(least)
    assert chances[unary.choice()] == pytest.approx(max(chances.values()))
