"""Samples against the enumerated distribution."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from control_toys import STOPS, Answer, Toy, one_token_slots, slot_toys, toys
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from sgl_compiled.control.node import Objective
from sgl_compiled.control.sample import sample
from sgl_compiled.control.walk import forced
from sgl_compiled.errors import RequestError
from sgl_compiled.grammar.slots import SlotAutomaton
from sgl_compiled.grammar.trie import TrieAutomaton

OVERLAPPING = TrieAutomaton([[0], [0, 1], [0, 2, 3], [1, 1], [1, 1, 0], [2], [3, 0], [3, 1]])
CASES = [
    ("slots", one_token_slots(4, 2, 5, 0.7)),
    ("free", one_token_slots(3, 2, 6, 0.7, "free")),
    ("trie", Toy(OVERLAPPING, one_token_slots(2, 1, 7, 0.8).model)),
]


def tempered(toy: Toy, temperature: float) -> dict[tuple[int, ...], float]:
    """Masked decoding at a temperature, by plain multiplication."""
    out: dict[tuple[int, ...], float] = {}

    def below(path: tuple[int, ...], state: object, probability: float) -> None:
        following = toy.automaton.step(state)
        if not following:
            out[path] = out.get(path, 0.0) + probability
            return
        legal = sorted({*following, *STOPS}) if toy.automaton.accepts(state) else sorted(following)
        weights = np.exp(toy.model.logits(path)[legal] / temperature)
        for token, share in zip(legal, weights / weights.sum(), strict=True):
            if token in following:
                below((*path, token), following[token], probability * share)
            else:
                out[path] = out.get(path, 0.0) + probability * share

    opening, state = forced(toy.automaton, toy.automaton.start)
    below(opening, state, 1.0)
    return out


def conditional(toy: Toy) -> dict[tuple[int, ...], float]:
    answers = toy.answers()
    total = sum(answer.raw for answer in answers)
    return {answer.path: answer.raw / total for answer in answers}


def fits(expected: dict[tuple[int, ...], float], counts: Counter[tuple[int, ...]]) -> float:
    """p-value of a chi-square test; cells that expect fewer than five draws are pooled."""
    n = sum(counts.values())
    assert set(counts) <= set(expected)
    big = [path for path, p in expected.items() if n * p >= 5]
    observed = [counts[path] for path in big]
    wanted = [n * expected[path] for path in big]
    rest = n - sum(wanted)
    if rest > 1e-6:
        observed.append(n - sum(observed))
        wanted.append(rest)
    return float(chisquare(observed, wanted).pvalue)


@pytest.mark.parametrize("name, toy", CASES, ids=[name for name, _ in CASES])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_policy_samples_have_the_enumerated_distribution(name: str, toy: Toy, temperature: float) -> None:
    counts = Counter(d.path for d in sample(toy.full("policy"), 6000, temperature=temperature, seed=11).draws)
    assert fits(tempered(toy, temperature), counts) > 0.001
    # The test can tell: another temperature does not fit.
    assert fits(tempered(toy, temperature * 1.6), counts) < 1e-6


@pytest.mark.parametrize("name, toy", CASES, ids=[name for name, _ in CASES])
def test_conditional_samples_have_the_enumerated_distribution(name: str, toy: Toy) -> None:
    counts = Counter(d.path for d in sample(toy.full(), 6000, seed=12, objective="conditional").draws)
    assert fits(conditional(toy), counts) > 0.001
    assert fits(tempered(toy, 1.0), counts) < 1e-6


@pytest.mark.parametrize("name, toy", CASES, ids=[name for name, _ in CASES])
def test_two_samples_agree(name: str, toy: Toy) -> None:
    """Two seeds against each other, and against token-by-token decoding with numpy's own generator."""
    ours = [Counter(d.path for d in sample(toy.full("policy"), 5000, seed=seed).draws) for seed in (1, 2)]
    rng = np.random.default_rng(3)
    expected = tempered(toy, 1.0)
    paths = sorted(expected)
    serial = Counter(paths[i] for i in rng.choice(len(paths), 5000, p=[expected[path] for path in paths]))
    for one, other in ((ours[0], ours[1]), (ours[0], serial)):
        cells = [path for path in paths if one[path] + other[path] >= 10]
        statistic = sum((one[path] - other[path]) ** 2 / (one[path] + other[path]) for path in cells)
        # Mean of a chi-square is its degrees of freedom, standard deviation sqrt(2 df).
        assert statistic < len(cells) + 4 * np.sqrt(2 * len(cells))
    assert ours[0] != ours[1]


@given(toys, st.sampled_from(["policy", "conditional"]), st.integers(0, 3))
def test_temperature_zero_is_greedy(toy: Toy, objective: Objective, seed: int) -> None:
    evidence = toy.full()
    draws = sample(evidence, 3, temperature=0.0, seed=seed, objective=objective).draws
    assert len(set(draws)) == 1 and draws[0].logprob == 0.0
    if objective == "policy":
        nodes, ended = evidence.greedy()
        assert ended and draws[0].path == nodes[-1].path


def test_ties_go_to_the_lowest_id() -> None:
    toy = one_token_slots(3, 2, 1, 0.0)
    assert sample(toy.full(), temperature=0.0).draws[0].path == (0, 1)


@given(toys, st.integers(0, 9), st.sampled_from(["policy", "conditional"]), st.sampled_from([0.0, 1e-320, 0.7, 1.0]))
def test_staged_samples_equal_those_of_the_whole_tree(
    toy: Toy, seed: int, objective: Objective, temperature: float
) -> None:
    whole = sample(toy.full(), 8, seed=seed, objective=objective, temperature=temperature)
    assert whole.complete
    evidence = toy.evidence()
    known = {}
    while not (found := sample(evidence, 8, seed=seed, objective=objective, temperature=temperature)).complete:
        for index, draw in enumerate(found.draws):
            assert known.get(index, draw) == draw
            if draw.complete:
                known[index] = draw
        assert sum(not draw.complete for draw in found.draws) <= sum(count for _, count in found.missing)
        before = evidence.rows
        toy.evaluate(evidence, [path for path, _ in found.missing[:2]], objective)
        assert evidence.rows > before
    assert [d.path for d in found.draws] == [d.path for d in whole.draws]
    assert [d.logprob for d in found.draws] == pytest.approx([d.logprob for d in whole.draws])


@given(slot_toys())
def test_logprob_is_the_answers(toy: Toy) -> None:
    answers: dict[tuple[int, ...], Answer] = {answer.path: answer for answer in toy.answers()}
    total = sum(answer.raw for answer in answers.values())
    assert isinstance(toy.automaton, SlotAutomaton)
    for draw in sample(toy.full("policy"), 5).draws:
        # A last slot that may end or go on has several stop ids; their sum is the answer's.
        assert np.exp(draw.logprob) <= answers[draw.path].policy + 1e-12
    for draw in sample(toy.full(), 5, objective="conditional").draws:
        assert np.exp(draw.logprob) <= answers[draw.path].raw / total + 1e-12


def test_logprob_without_stop_ids_is_exact() -> None:
    toy = one_token_slots(4, 3, 9, 1.0)
    answers = {answer.path: answer.policy for answer in toy.answers()}
    for draw in sample(toy.full(), 20).draws:
        assert np.exp(draw.logprob) == pytest.approx(answers[draw.path])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"n": 0}, "n is 0"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_arguments(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        sample(one_token_slots(2, 1, 1, 1.0).full(), **arguments)  # type: ignore[arg-type]
