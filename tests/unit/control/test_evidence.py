"""Merged evidence against enumeration."""

from __future__ import annotations

import numpy as np
import pytest
from control_toys import STOPS, VOCABULARY, Toy, ToyModel, slot_toys, toys
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_compiled.control.evidence import Evidence
from sgl_compiled.control.expand import expansion
from sgl_compiled.control.leaves import leaves
from sgl_compiled.control.node import Objective
from sgl_compiled.control.walk import Row, walk
from sgl_compiled.errors import GrammarTooLargeError, NumericalError
from sgl_compiled.grammar.layout import actions_ahead, unfold
from sgl_compiled.grammar.trie import TrieAutomaton
from sgl_compiled.runtime.payload import decode, encode

objectives = st.sampled_from(["policy", "conditional"])


@given(toys)
def test_full_evaluation_gives_every_answer(toy: Toy) -> None:
    expected = {answer.path: answer for answer in toy.answers()}
    for objective in ("policy", "conditional"):
        cells = leaves(toy.full(objective), objective)
        assert [cell.path for cell in cells] == sorted(expected)
        for cell in cells:
            assert cell.complete
            assert np.exp(cell.policy) == pytest.approx(expected[cell.path].policy, abs=1e-12)
            if cell.raw_exact:
                assert np.exp(cell.raw) == pytest.approx(expected[cell.path].raw, abs=1e-12)
            else:
                assert objective == "policy" and np.exp(cell.raw) >= expected[cell.path].raw - 1e-12


@given(toys, st.integers(0, 99), st.integers(0, 4), objectives)
def test_cells_partition_the_answers(toy: Toy, seed: int, passes: int, objective: Objective) -> None:
    cells = leaves(toy.partly(seed, passes, objective), objective)
    answers = toy.answers()
    covered = 0
    for cell in cells:
        inside = [
            a for a in answers if (a.path == cell.path if cell.complete else a.path[: len(cell.path)] == cell.path)
        ]
        covered += len(inside)
        assert np.exp(cell.policy) == pytest.approx(sum(a.policy for a in inside), abs=1e-12)
        assert cell.mass("conditional") >= sum(a.raw for a in inside) - 1e-12
    assert covered == len(answers)
    assert sum(cell.mass("policy") for cell in cells) == pytest.approx(1.0)


@given(toys, objectives, st.integers(1, 3))
def test_expansion_is_a_tree_that_kernels_can_run(toy: Toy, objective: Objective, actions: int) -> None:
    evidence = toy.evidence()
    layout = expansion(evidence, [evidence.root.path], max_positions=1000, actions=actions, objective=objective)
    for index, (parent, depth) in enumerate(zip(layout.parents, layout.depths, strict=True)):
        assert -1 <= parent < index
        assert depth == (0 if parent == -1 else layout.depths[parent] + 1)
        assert layout.child(parent, layout.tokens[index]) == index
    assert [row.node for row in layout.rows] == sorted({row.node for row in layout.rows})
    assert all(layout.row_at(row.node) == number for number, row in enumerate(layout.rows))
    # Nothing is evaluated for its own sake: every position leads to a row.
    needed = {row.node for row in layout.rows}
    for index in reversed(range(len(layout))):
        assert index in needed
        needed.add(layout.parents[index])


@given(toys, st.integers(0, 99), st.integers(0, 3), objectives)
def test_expansions_survive_the_way_to_the_scheduler(toy: Toy, seed: int, passes: int, objective: Objective) -> None:
    evidence = toy.partly(seed, passes, objective)
    waiting = [leaf.path for leaf in leaves(evidence, objective) if not leaf.complete]
    if not waiting:
        return
    layout = expansion(evidence, waiting, max_positions=10**6, objective=objective)
    probe = decode(encode(layout, 7, keep=False), 7 + len(layout), VOCABULARY)
    assert probe is not None
    assert (probe.parents, probe.rows, probe.legal) == (
        layout.parents,
        tuple(row.node for row in layout.rows),
        tuple(row.legal for row in layout.rows),
    )


@given(slot_toys(), st.integers(1, 3))
def test_expansion_of_the_root_equals_the_ordinary_probe(toy: Toy, actions: int) -> None:
    evidence = toy.evidence()
    state = evidence.root.state
    ordinary = unfold(
        toy.automaton, state, actions_ahead(toy.automaton, state, actions), stop_ids=STOPS, max_positions=10**6
    )
    ours = expansion(evidence, [evidence.root.path], max_positions=10**6, actions=actions)
    assert set(_paths(ours)) == set(_paths(ordinary))
    assert {(_paths(ours)[row.node + 1], row.legal) for row in ours.rows} == {
        (_paths(ordinary)[row.node + 1], row.legal) for row in ordinary.rows
    }


def _paths(layout: object) -> list[tuple[int, ...]]:
    out: list[tuple[int, ...]] = [()]
    for token, parent in zip(layout.tokens, layout.parents, strict=True):  # type: ignore[attr-defined]
        out.append((*out[parent + 1], token))
    return out


@given(toys)
def test_passes_of_a_walk_merge(toy: Toy) -> None:
    """Layouts that start where the walk stands, as the engine sends them."""
    evidence = toy.evidence()
    path, state, complete = evidence.root.path, evidence.root.state, not evidence.root.legal
    while not complete:
        layout = unfold(
            toy.automaton, state, actions_ahead(toy.automaton, state, 1), stop_ids=STOPS, max_positions=10**6
        )
        if not layout.rows:
            break
        rows = toy.model.rows(layout, path)
        assert evidence.absorb(layout, rows, path) == len(rows)
        assert evidence.absorb(layout, rows, path) == 0
        step = walk(toy.automaton, state, layout, rows, STOPS)
        path, state, complete = (*path, *step.tokens), step.state, step.complete
    nodes, ended = evidence.greedy()
    assert ended and nodes[-1].path[: len(path)] == path


@given(slot_toys(max_labels=4), st.integers(1, 30))
def test_what_does_not_fit_is_left_out_from_the_end(toy: Toy, room: int) -> None:
    evidence = toy.evidence()
    toy.evaluate(evidence, [evidence.root.path])
    prefixes = [leaf.path for leaf in leaves(evidence) if not leaf.complete]
    if not prefixes:
        return
    whole = [len(expansion(evidence, prefixes[:n], max_positions=10**6)) for n in range(1, len(prefixes) + 1)]
    if whole[0] > room:
        with pytest.raises(GrammarTooLargeError, match="tree positions"):
            expansion(evidence, prefixes, max_positions=room)
        return
    assert len(expansion(evidence, prefixes, max_positions=room)) == max(size for size in whole if size <= room)


@pytest.mark.parametrize("bad", [[np.nan, 1.0], [-np.inf, -np.inf], [np.inf, 0.0]])
def test_bad_rows_are_refused(bad: list[float]) -> None:
    evidence = Evidence(TrieAutomaton([[0], [1]]), STOPS)
    layout = expansion(evidence, [()], max_positions=9)
    with pytest.raises(NumericalError, match="NaN or no finite"):
        evidence.absorb(layout, [Row(np.array(bad), 0.0)])


def test_a_forced_answer_has_probability_one() -> None:
    toy = Toy(TrieAutomaton([[0, 1, 2]]), ToyModel(1, 1.0))
    (cell,) = leaves(toy.evidence())
    assert cell.complete and cell.path == (0, 1, 2) and cell.policy == 0.0


@settings(max_examples=20)
@given(toys, st.integers(0, 9))
def test_node_is_the_same_by_any_way(toy: Toy, seed: int) -> None:
    evidence = toy.partly(seed, 2)
    for node in list(evidence.nodes()):
        assert evidence.node(node.path) is node
