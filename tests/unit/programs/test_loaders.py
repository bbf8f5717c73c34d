"""Loaders of public formats: the samples by their known counts, and broken records by their messages."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import bfcl
import metatool
import musique
import papers
import pytest
from hypothesis import given
from hypothesis import strategies as st
from menus import Menu, Option, unique_names, write_prompt
from records import DataError


def test_qasper_sample() -> None:
    loaded = papers.load_papers()
    assert len(loaded) == 10
    questions = [question for paper in loaded for question in paper.questions]
    assert len(questions) == 51
    assert sum(bool(question.evidence) for question in questions) == 43
    names = [section.name for section in loaded[0].root.walk()]
    assert "Loss Functions" in names
    assert not any(papers.SEPARATOR in name for name in names)


def test_musique_sample() -> None:
    menus = musique.load_musique()
    assert len(menus) == 100
    assert all(len(set(menu.names)) == 20 for menu in menus)
    assert Counter(len(menu.gold) for menu in menus) == {2: 68, 3: 27, 4: 5}


def test_metatool_sample() -> None:
    listed = metatool.load_listed()
    assert len(listed) == 25
    assert {len(menu.options) for menu in listed} == {10}
    for size, path in metatool.CATALOGUES.items():
        menus = metatool.load_catalogue(path)
        assert len(menus) == 497
        assert all(len(menu.options) == size and len(menu.gold) == 2 for menu in menus)
        # The listed sample is every tenth query of the same list.
        assert [menu.question for menu in menus[:250:10]] == [menu.question for menu in listed]
    assert not any(option.text.startswith("[") for option in listed[0].options)


def test_bfcl_sample() -> None:
    menus = bfcl.load_bfcl()
    assert len(menus) == 25
    assert all(len(menu.gold) == 1 and 2 <= len(menu.options) <= 4 for menu in menus)
    assert menus[0].gold == {"triangle_properties.get"}


MUSIQUE: dict[str, Any] = {
    "id": "2hop__1",
    "question": "?",
    "paragraphs": [
        {"title": "A", "paragraph_text": "a", "is_supporting": True},
        {"title": "A", "paragraph_text": "b", "is_supporting": False},
    ],
}


def test_repeated_titles_are_numbered(tmp_path: Path) -> None:
    path = tmp_path / "musique.jsonl"
    path.write_text(json.dumps(MUSIQUE) + "\n\n" + json.dumps(MUSIQUE) + "\n")
    menus = musique.load_musique(path)
    assert [menu.names for menu in menus] == [["A", "A (2)"]] * 2
    assert menus[0].gold == {"A"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": None}, "line 2: the field 'question' should be str, not NoneType"),
        ({"paragraphs": "x"}, "line 2: the field 'paragraphs' should be list"),
        ({"paragraphs": [{"title": "A"}]}, "line 2, paragraph 0: the field 'paragraph_text' is missing"),
        ({"paragraphs": []}, "line 2: no paragraph is marked as supporting"),
    ],
)
def test_broken_musique(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "musique.jsonl"
    path.write_text(json.dumps(MUSIQUE) + "\n" + json.dumps(MUSIQUE | change) + "\n")
    with pytest.raises(DataError, match=message):
        musique.load_musique(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"id": ', "line 1: not JSON: .*one record a line"),
        (b"[1]", "line 1: expected an object, found list"),
        (b"\xff\xfe", "not a UTF-8 text file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer"),
    ],
)
def test_files_that_are_something_else(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "musique.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        musique.load_musique(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        papers.load_papers(tmp_path / "qasper-train-v0.3.json")


PAPER: dict[str, Any] = {
    "title": "T",
    "full_text": [{"section_name": "S", "paragraphs": ["p"]}],
    "qas": [{"question": "?", "question_id": "1", "answers": [{"answer": {"evidence": ["p"]}}]}],
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"full_text": [{"paragraphs": []}]}, "paper 1: the field 'section_name' is missing"),
        ({"full_text": [{"section_name": 3, "paragraphs": []}]}, "paper 1: a field is of the wrong type"),
        ({"qas": [{"question": "?", "question_id": "1", "answers": [{}]}]}, "paper 1: the field 'answer' is missing"),
        ({"qas": None}, "paper 1: a field is of the wrong type"),
    ],
)
def test_broken_qasper(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "qasper.json"
    path.write_text(json.dumps({"0": PAPER}))
    assert papers.load_papers(path)[0].questions[0].evidence == (("p",),)
    path.write_text(json.dumps({"0": PAPER, "1": PAPER | change}))
    with pytest.raises(DataError, match=message):
        papers.load_papers(path)


def test_qasper_must_be_an_object(tmp_path: Path) -> None:
    path = tmp_path / "qasper.json"
    path.write_text("[]")
    with pytest.raises(DataError, match="expected an object with one entry a paper"):
        papers.load_papers(path)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"query": "?", "tool": ["A", "Z"]}, r"record 0: the right tools \['A', 'Z'\] are not among"),
        ({"query": "?", "tool": []}, "record 0: the right tools"),
        ({"tool": ["A"]}, "record 0: the field 'query' is missing"),
        ("A", "record 0: the field 'tool' is missing"),
    ],
)
def test_broken_catalogue_query(tmp_path: Path, record: Any, message: str) -> None:
    (tmp_path / "tools.json").write_text('{"A": "does a", "B": "does b"}')
    (tmp_path / "queries.json").write_text(json.dumps([record]))
    with pytest.raises(DataError, match=message):
        metatool.load_catalogue(tmp_path / "tools.json", tmp_path / "queries.json")


def test_prompt_that_lists_no_tools(tmp_path: Path) -> None:
    path = tmp_path / "listed.json"
    path.write_text(json.dumps([{"action_prompt": "Choose.", "tool": ["A"], "query": "?"}]))
    with pytest.raises(DataError, match="the prompt lists no tools"):
        metatool.load_listed(path)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"id": "1", "ground_truth": [{"f": {}}]}, "has no answer for 0"),
        ({"id": "0", "ground_truth": [{"g": {}}]}, r"calls \['g'\], which are not among"),
        ({"id": "0", "ground_truth": []}, r"calls \[\]"),
    ],
)
def test_broken_bfcl(tmp_path: Path, answer: Any, message: str) -> None:
    record = {
        "id": "0",
        "question": [[{"role": "user", "content": "?"}]],
        "function": [{"name": "f", "description": "does f"}],
    }
    (tmp_path / "multiple.json").write_text(json.dumps(record))
    (tmp_path / "possible_answer_multiple.json").write_text(json.dumps(answer))
    with pytest.raises(DataError, match=message):
        bfcl.load_bfcl(tmp_path / "multiple.json")


@given(st.lists(st.sampled_from(["A", "A (2)", "A (3)", "B", ""])))
def test_unique_names(names: list[str]) -> None:
    out = unique_names(names)
    assert len(set(out)) == len(out) == len(names)
    assert all(new.startswith(old) for new, old in zip(out, names, strict=True))
    # The first of its name keeps it, unless a numbered one took it before.
    assert not names or out[0] == names[0]


def test_prompt_cuts_words() -> None:
    menu = Menu("1", "Which?", (Option("A", "one two\nthree"), Option("B", "")), frozenset("A"))
    assert write_prompt(menu, "Tools", "Pick:", 2) == "Tools:\n- A: one two\n- B: \nQuestion: Which?\nPick: "
