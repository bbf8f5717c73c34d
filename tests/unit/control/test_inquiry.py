"""Staged evaluation ends, and ends with the answer."""

from __future__ import annotations

import pytest
from control_toys import Toy, instances, slot_toys, sweep, toys
from hypothesis import strategies as st

from sgl_compiled.control.inquiry import Distribution, Draws, Inquiry, TopSequences
from sgl_compiled.control.leaves import leaves
from sgl_compiled.control.mapset import SetSearch
from sgl_compiled.control.node import Objective
from sgl_compiled.control.sample import sample

objectives = st.sampled_from(["policy", "conditional"])


def resolve(toy: Toy, inquiry: Inquiry, batch: int) -> int:
    passes = 0
    while prefixes := inquiry.next(batch):
        assert 0 < len(prefixes) <= batch and len(set(prefixes)) == len(prefixes)
        rows = inquiry.evidence.rows
        toy.evaluate(inquiry.evidence, prefixes, inquiry.objective)
        assert inquiry.evidence.rows > rows
        passes += 1
    return passes


@instances
def test_top_sequences(instances: int) -> None:
    def check(toy: Toy, n: int, batch: int, objective: Objective) -> None:
        masses = sorted(((a.policy, a.raw)[objective == "conditional"] for a in toy.answers()), reverse=True)
        by_path = {a.path: (a.policy, a.raw)[objective == "conditional"] for a in toy.answers()}
        inquiry = TopSequences(toy.evidence(), n, objective)
        resolve(toy, inquiry, batch)
        found = inquiry.result()
        assert len(found.top) == found.certified == min(n, len(masses))
        assert [by_path[s.path] for s in found.top] == pytest.approx(masses[: len(found.top)], abs=1e-12)

    sweep(instances, check, toy=toys, n=st.integers(1, 4), batch=st.integers(1, 5), objective=objectives)


@instances
def test_distribution(instances: int) -> None:
    def check(toy: Toy, batch: int, objective: Objective, tolerance: float) -> None:
        inquiry = Distribution(toy.evidence(), objective, tolerance)
        resolve(toy, inquiry, batch)
        cells = leaves(inquiry.evidence, objective)
        left = sum(cell.mass(objective) for cell in cells if not cell.complete)
        assert left <= tolerance * sum(cell.mass(objective) for cell in cells) + 1e-12

    sweep(
        instances,
        check,
        toy=toys,
        batch=st.integers(1, 5),
        objective=objectives,
        tolerance=st.sampled_from([0.0, 0.05, 0.5]),
    )


@instances
def test_draws(instances: int) -> None:
    def check(toy: Toy, batch: int, objective: Objective, seed: int) -> None:
        inquiry = Draws(toy.evidence(), 4, 0.8, seed, objective)
        resolve(toy, inquiry, batch)
        whole = sample(toy.full(), 4, temperature=0.8, seed=seed, objective=objective)
        assert inquiry.result().complete
        assert [draw.path for draw in inquiry.result().draws] == [draw.path for draw in whole.draws]

    sweep(instances, check, toy=toys, batch=st.integers(1, 5), objective=objectives, seed=st.integers(0, 50))


def test_one_greedy_pass_serves_several_questions() -> None:
    """What one question evaluated, the next does not ask for again."""

    def check(toy: Toy) -> None:
        evidence = toy.evidence()
        resolve(toy, TopSequences(evidence, 1), 4)
        resolve(toy, SetSearch(evidence, toy.outcomes()), 4)
        resolve(toy, Distribution(evidence), 4)
        rows = evidence.rows
        assert resolve(toy, Draws(evidence, 10), 4) == resolve(toy, SetSearch(evidence, toy.outcomes()), 4) == 0
        assert evidence.rows == rows

    sweep(50, check, toy=slot_toys())
