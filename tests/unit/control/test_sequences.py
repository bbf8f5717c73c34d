"""Rankings and option probabilities against enumeration."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from control_toys import STOPS, Answer, Toy, ToyModel, brackets, instances, slot_toys, sweep, toys, trie_toys
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_compiled.control.evidence import Evidence
from sgl_compiled.control.expand import expansion
from sgl_compiled.control.node import Bounds, Objective
from sgl_compiled.control.options import Options, corrected, options
from sgl_compiled.control.outcomes import Outcomes
from sgl_compiled.control.sequences import language_mass, ranking
from sgl_compiled.control.walk import Row
from sgl_compiled.errors import RequestError
from sgl_compiled.grammar.trie import TrieAutomaton

objectives = st.sampled_from(["policy", "conditional"])
single = st.one_of(slot_toys(max_slots=1), trie_toys())


def truth(answers: list[Answer], objective: Objective) -> dict[tuple[int, ...], float]:
    if objective == "policy":
        return {answer.path: answer.policy for answer in answers}
    total = sum(answer.raw for answer in answers)
    return {answer.path: answer.raw / total for answer in answers}


@instances
def test_ranking(instances: int) -> None:
    def check(toy: Toy, seed: int, passes: int, objective: Objective, n: int) -> None:
        expected = truth(toy.answers(), objective)
        best = sorted(expected.values(), reverse=True)
        found = ranking(toy.partly(seed, passes, objective), n, objective)
        for place, sequence in enumerate(found.top):
            assert brackets(sequence.probability, expected[sequence.path])
            if place < found.certified:
                assert expected[sequence.path] == pytest.approx(best[place], abs=1e-9)
            if objective == "policy":
                assert sequence.probability.exact
        for path, _ in found.open:
            behind = [p for answer, p in expected.items() if answer[: len(path)] == path]
            assert all(found.objective == "conditional" or p <= dict(found.open)[path] + 1e-9 for p in behind)

    sweep(
        instances,
        check,
        toy=toys,
        seed=st.integers(0, 99),
        passes=st.integers(0, 5),
        objective=objectives,
        n=st.integers(1, 6),
    )


@given(toys, objectives)
def test_full_ranking_is_the_distribution(toy: Toy, objective: Objective) -> None:
    expected = truth(toy.answers(), objective)
    found = ranking(toy.full(), 10**6, objective)
    assert {s.path: s.probability.lower for s in found.top} == pytest.approx(expected, abs=1e-12)
    assert all(s.probability.exact and s.raw_logprob is not None for s in found.top)
    assert found.certified == len(expected) and not found.open


@given(toys, st.integers(0, 99), st.integers(0, 4))
def test_language_mass(toy: Toy, seed: int, passes: int) -> None:
    total = sum(answer.raw for answer in toy.answers())
    assert brackets(language_mass(toy.partly(seed, passes)), total)
    assert language_mass(toy.full()).exact


@instances
def test_options(instances: int) -> None:
    def check(toy: Toy, seed: int, passes: int, objective: Objective) -> None:
        outcomes = toy.outcomes()
        expected: defaultdict[int, float] = defaultdict(float)
        states = {answer.path: answer.state for answer in toy.answers()}
        for path, probability in truth(toy.answers(), objective).items():
            expected[outcomes.labels(states[path])[0]] += probability
        found = options(toy.partly(seed, passes, objective), outcomes, objective)
        assert len(found.probabilities) == outcomes.n_labels
        for label, bounds in found.probabilities.items():
            assert brackets(bounds, expected[label])
        full = options(toy.full(), outcomes, objective)
        assert {k: v.lower for k, v in full.probabilities.items()} == pytest.approx(dict(expected), abs=1e-12)
        assert sum(bounds.lower for bounds in full.probabilities.values()) == pytest.approx(1.0)

    sweep(instances, check, toy=single, seed=st.integers(0, 99), passes=st.integers(0, 3), objective=objectives)


@settings(max_examples=20)
@given(single, st.integers(0, 2**31), st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0, 2.0]), objectives)
def test_correction_brackets_the_exact_one(
    toy: Toy, seed: int, passes: int, strength: float, objective: Objective
) -> None:
    other = Toy(toy.automaton, ToyModel(seed, 1.0))
    outcomes = toy.outcomes()
    exact = [options(t.full(), outcomes, objective).probabilities for t in (toy, other)]
    weights = {label: exact[0][label].lower / exact[1][label].lower ** strength for label in exact[0]}
    total = sum(weights.values())
    partial = [options(t.partly(seed, passes, objective), outcomes, objective) for t in (toy, other)]
    for label, bounds in corrected(partial[0], partial[1], strength).items():
        assert brackets(bounds, weights[label] / total)
    full = corrected(*(options(t.full(), outcomes, objective) for t in (toy, other)), strength=strength)
    for label, bounds in full.items():
        assert bounds == pytest.approx((weights[label] / total,) * 2, abs=1e-9)


@given(single, objectives)
def test_before_any_pass_every_option_is_possible(toy: Toy, objective: Objective) -> None:
    evidence = toy.evidence()
    found = options(evidence, toy.outcomes(), objective)
    if len(evidence.root.legal) > 1:
        assert set(found.probabilities.values()) == {Bounds(0.0, 1.0)} and found.label_mass is None


def test_no_length_bias() -> None:
    """Two options with equal first tokens' odds: what follows a decision-free token changes nothing."""
    evidence = Evidence(TrieAutomaton([[0], [1, 2, 3, 4, 5, 6]]), STOPS)
    layout = expansion(evidence, [()], max_positions=9)
    evidence.absorb(layout, [Row(np.log([0.3, 0.1]), 0.0)])
    found = options(evidence, Outcomes(evidence.automaton))
    assert found.probabilities[0].lower == pytest.approx(0.75)
    assert found.probabilities[1] == pytest.approx((0.25, 0.25))
    assert found.label_mass == pytest.approx(0.4)
    assert found.language_mass == pytest.approx((0.3, 0.4))


@given(slot_toys().filter(lambda toy: toy.outcomes().n_slots > 1))
def test_options_need_a_single_slot(toy: Toy) -> None:
    with pytest.raises(RequestError, match="k=1"):
        options(toy.full(), toy.outcomes())


def test_correction_refuses_what_it_cannot_compare() -> None:
    half = Options({0: Bounds(0.5, 0.5), 1: Bounds(0.5, 0.5)}, 1.0, Bounds(1.0, 1.0), "policy")
    other = Options({0: Bounds(1.0, 1.0)}, 1.0, Bounds(1.0, 1.0), "policy")
    with pytest.raises(RequestError, match="same labels"):
        corrected(half, other)
    for strength in (-1.0, float("nan"), float("inf")):
        with pytest.raises(RequestError, match="strength"):
            corrected(half, half, strength)


def test_correction_survives_a_prior_of_zero() -> None:
    here = Options({0: Bounds(0.5, 0.5), 1: Bounds(0.5, 0.5)}, 1.0, Bounds(1.0, 1.0), "policy")
    prior = Options({0: Bounds(0.0, 0.0), 1: Bounds(1.0, 1.0)}, 1.0, Bounds(1.0, 1.0), "policy")
    found = corrected(here, prior, 3.0)
    assert found[0] == (1.0, 1.0) and found[1].upper < 1e-9
