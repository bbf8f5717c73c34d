"""Views of the evidence."""

from __future__ import annotations

import json

import pytest
from control_toys import STOPS, Toy, ToyModel, one_token_slots, toys
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sgl_compiled.control.show import to_dict, to_dot, to_tree
from sgl_compiled.grammar.trie import TrieAutomaton


def _answers(entry: dict, path: tuple[int, ...], ends: dict[tuple[int, ...], float]) -> None:  # type: ignore[type-arg]
    for child in entry["children"]:
        here = path if child["token"] is None else (*path, child["token"])
        if not child["children"] and child["evaluated"]:
            ends[here] = child["path_probability"]
        _answers(child, here, ends)


@given(toys)
def test_dictionary_holds_the_distribution(toy: Toy) -> None:
    evidence = toy.full()
    data = json.loads(json.dumps(to_dict(evidence), allow_nan=False))
    ends: dict[tuple[int, ...], float] = {}
    _answers(data, evidence.root.path, ends)
    if evidence.root.legal:
        assert ends == pytest.approx({answer.path: answer.policy for answer in toy.answers()})


@given(toys, st.integers(0, 99), st.integers(0, 3))
def test_drawings_have_a_line_a_node(toy: Toy, seed: int, passes: int) -> None:
    data = to_dict(toy.partly(seed, passes))

    def size(entry: dict) -> int:  # type: ignore[type-arg]
        return 1 + sum(map(size, entry["children"]))

    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(to_tree(data))
        assert len(console.export_text().splitlines()) == size(data)
    dot = to_dot(data)
    assert dot.count("->") == size(data) - 1 and dot.count("{") == dot.count("}") == 1


def test_tree_by_eye() -> None:
    toy = Toy(TrieAutomaton([[0], [0, 1], [2, 3]]), ToyModel(3, 1.0))
    evidence = toy.evidence()
    toy.evaluate(evidence, [()])
    spell = {0: "new", 1: " york", 2: 'a"b[/]\n', 3: "x"}.__getitem__
    console = Console(width=100)
    with console.capture() as capture:
        console.print(to_tree(to_dict(evidence, spell)))
    lines = capture.get().splitlines()
    assert any("'new'" in line and line.endswith("?") for line in lines)
    assert any('a"b[/]\\n' in line for line in lines)
    dot = to_dot(to_dict(evidence, spell))
    assert 'label="a\\"b[/]\\\\n"' in dot and "style=dashed" in dot


def test_small_branches_are_counted_not_shown() -> None:
    data = to_dict(one_token_slots(6, 2, 1, 2.0).full(), min_probability=0.05)

    def check(entry: dict) -> None:  # type: ignore[type-arg]
        for child in entry["children"]:
            assert child["path_probability"] >= 0.05
            check(child)

    check(data)
    assert data["omitted"] + len(data["children"]) == 6 and data["omitted"] > 0
    console = Console(width=100)
    with console.capture() as capture:
        console.print(to_tree(data))
    assert f"{data['omitted']} less probable" in capture.get()


def test_stop_ids_show_as_one_end() -> None:
    toy = Toy(TrieAutomaton([[0], [0, 1]]), ToyModel(3, 1.0))
    data = to_dict(toy.full())
    ends = [child for child in data["children"] if child["token"] is None]
    assert len(STOPS) == 2 and len(ends) == 1 and data["text"] == "0"
