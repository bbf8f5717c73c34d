"""The conditional objective against enumeration: all answers, raw log-probabilities summed, renormalised."""

from __future__ import annotations

import numpy as np
import pytest
from control_toys import STOPS, Toy, brackets, instances, sweep, toys
from hypothesis import given
from hypothesis import strategies as st

from sgl_compiled.control.conditional import compare
from sgl_compiled.control.evidence import Evidence
from sgl_compiled.control.expand import expansion
from sgl_compiled.control.future import Futures
from sgl_compiled.control.walk import Row
from sgl_compiled.grammar.trie import TrieAutomaton


@instances
def test_comparison(instances: int) -> None:
    def check(toy: Toy, seed: int, passes: int) -> None:
        answers = toy.answers()
        total = sum(answer.raw for answer in answers)
        distance = sum(abs(answer.policy - answer.raw / total) for answer in answers) / 2
        full, part = compare(toy.full()), compare(toy.partly(seed, passes))
        assert full.total_variation == pytest.approx((distance, distance), abs=1e-9)
        assert brackets(part.total_variation, distance)
        assert brackets(part.language_mass, total) and full.language_mass == pytest.approx((total, total))
        policy = {answer.path: answer.policy for answer in answers}
        raw = {answer.path: answer.raw for answer in answers}
        for found in (full, part):
            if found.certified:
                assert found.policy_map is not None and found.conditional_map is not None
                assert policy[found.policy_map] == pytest.approx(max(policy.values()))
                assert raw[found.conditional_map] == pytest.approx(max(raw.values()))
        assert full.certified
        assert full.agree == (full.policy_map == full.conditional_map)
        assert full.greedy in policy

    sweep(instances, check, toy=toys, seed=st.integers(0, 99), passes=st.integers(0, 4))


@given(toys, st.integers(0, 99), st.integers(0, 4))
def test_futures_are_the_sums_of_completions(toy: Toy, seed: int, passes: int) -> None:
    answers = toy.answers()
    prior = {answer.path: answer.raw for answer in answers}
    full = toy.full()
    exact = Futures(full)
    for evidence in (full, toy.partly(seed, passes)):
        futures = Futures(evidence)
        for node in list(evidence.nodes()):
            # Divide the mass of the answers behind the node by the mass of reaching it.
            reach, at = 1.0, full.root
            for token in node.path[len(at.path) :]:
                assert at.raw is not None
                reach *= float(np.exp(at.raw[at.legal.index(token)]))
                at = full.child(at, token)
            behind = sum(mass for path, mass in prior.items() if path[: len(node.path)] == node.path)
            bounds = futures.log_future(node)
            assert brackets((np.exp(bounds.lower), np.exp(bounds.upper)), behind / reach)
            logits = exact.logits(full.node(node.path))
            if logits is not None and node.legal:
                local = np.exp(logits - exact.log_future(full.node(node.path)).upper)
                assert local.sum() == pytest.approx(1.0)


def _rows(evidence: Evidence, chances: dict[tuple[int, ...], dict[int, float]]) -> None:
    layout = expansion(evidence, [()], max_positions=99, actions=9, objective="conditional")
    paths = [()]
    for token, parent in zip(layout.tokens, layout.parents, strict=True):
        paths.append((*paths[parent + 1], token))
    rows = [
        Row(np.log([chances[paths[row.node + 1]].get(token, 1e-9) for token in row.legal]), 0.0) for row in layout.rows
    ]
    evidence.absorb(layout, rows)


def test_a_good_first_token_that_leads_nowhere() -> None:
    """'sk' of 'sky' beats 'cloud', but within {skill, cloud} it forces 'skill'."""
    sk, ill, cloud = 0, 1, 2
    evidence = Evidence(TrieAutomaton([[sk, ill], [cloud]]), STOPS)
    _rows(evidence, {(): {sk: 0.6, cloud: 0.3}, (sk,): {ill: 0.01}})
    found = compare(evidence)
    assert found.greedy == found.policy_map == (sk, ill) and found.conditional_map == (cloud,)
    assert not found.agree and found.certified
    assert found.total_variation.lower == pytest.approx(2 / 3 - 0.006 / 0.306)
    (place,) = found.disagreements
    assert (place.path, place.token, place.instead) == ((), sk, cloud)
    assert place.policy == pytest.approx((2 / 3, 1 / 3))
    assert place.conditional == pytest.approx((0.006 / 0.306, 0.3 / 0.306))
    assert found.language_mass == pytest.approx((0.306, 0.306))


def test_forced_tokens_that_were_not_read_leave_an_interval() -> None:
    evidence = Evidence(TrieAutomaton([[0, 1], [2]]), STOPS)
    layout = expansion(evidence, [()], max_positions=9)
    evidence.absorb(layout, [Row(np.log([0.6, 0.3]), 0.0)])
    found = compare(evidence)
    assert found.language_mass == pytest.approx((0.3, 0.9))
    assert not found.certified and found.policy_map == (0, 1) and not found.disagreements
    assert found.total_variation.lower == pytest.approx(0.0) and found.total_variation.upper >= 2 / 3
