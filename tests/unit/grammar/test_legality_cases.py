"""Public bug reports on constrained decoding, reduced to toy models: the walk over the full legal set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sgl_compiled.errors import GrammarError, SglCompiledError
from sgl_compiled.grammar.legality import AnySpelling
from sgl_compiled.grammar.regex import compile_regex, require_finite
from tests.cases import BY_ID, CASES, language, logits, toy_vocabulary, width


def of_kind(*kinds: str) -> list[Any]:
    return [
        pytest.param(case, id=case["id"])
        for case in CASES
        if case["check"]["kind"] in kinds and "tokenizer" in case["input"]
    ]


def serial_greedy(given: dict[str, Any]) -> tuple[list[int], bytes, int | None]:
    """Token ids, text and stop id of the walk; the stop id is None where only one text was left."""
    vocabulary = toy_vocabulary(given["tokenizer"], width(given))
    spelling = AnySpelling(language(given), vocabulary)
    state, taken, text = spelling.start, list[int](), b""
    while True:
        ids = spelling.legal_ids(state)
        row = logits(given, taken, text, vocabulary)
        token = int(ids[np.argmax(row[ids])])
        if token in vocabulary.stop_ids:
            return taken, text, token
        following = spelling.advance(state, token)
        assert following is not None
        taken.append(token)
        text += vocabulary.token_bytes[token] or b""
        state = following


@pytest.mark.parametrize("case", of_kind("serial_greedy"))
def test_serial_greedy(case: dict[str, Any]) -> None:
    given, check = case["input"], case["check"]
    taken, text, stop = serial_greedy(given)
    names = {entry["id"]: entry["t"] for entry in given["tokenizer"]["vocab"]}
    if "tokens" in check:
        assert [names[index] for index in taken] == check["tokens"]
    assert text.decode() == check["text"]
    if "stop" in check:
        assert stop is not None and names[stop] == check["stop"]


def tree_of_all_spellings(spelling: AnySpelling) -> tuple[int, int]:
    """Nodes, and nodes with two or more legal ids, of the tree of token paths (equal states stay separate nodes)."""
    sizes: dict[int, tuple[int, int]] = {}

    def size(state: int) -> tuple[int, int]:
        if state not in sizes:
            try:
                spelling.legal(state)
            except GrammarError:  # a toy vocabulary may not spell every rest
                return sizes.setdefault(state, (1, 0))
            below = [size(target) for target in spelling.step(state).values()]
            decides = int(len(spelling.legal_ids(state)) > 1)
            sizes[state] = (1 + sum(nodes for nodes, _ in below), decides + sum(inner for _, inner in below))
        return sizes[state]

    return size(spelling.start)


@pytest.mark.parametrize("case", of_kind("serial_greedy"))
def test_size_of_the_tree_of_all_spellings(case: dict[str, Any]) -> None:
    expected = case["check"].get("tree_all_tokenizations")
    if expected is None:
        pytest.skip("the case states no tree size")
    spelling = AnySpelling(language(case["input"]), toy_vocabulary(case["input"]["tokenizer"]))
    nodes, decisions = tree_of_all_spellings(spelling)
    assert (nodes - 1, decisions) == (expected["nodes"], expected["decisions"])  # the root is no node there


@pytest.mark.parametrize("case", of_kind("selected"))
def test_selected_from_one_row(case: dict[str, Any]) -> None:
    taken, text, _ = serial_greedy(case["input"])
    assert [text.decode()] == case["check"]["selected"]
    if "ids" in case["check"]:
        assert taken == case["check"]["ids"]


@pytest.mark.parametrize("case", of_kind("allowed_ids"))
def test_allowed_ids(case: dict[str, Any]) -> None:
    given, check = case["input"], case["check"]
    spelling = AnySpelling(language(given), toy_vocabulary(given["tokenizer"]))
    state = 0
    for token in check["after"]:
        state = spelling.step(state)[token]
    assert spelling.legal_ids(state).tolist() == check["ids"]


def items(name: str) -> list[Any]:
    given, check = BY_ID[name]["input"], BY_ID[name]["check"]
    patterns = given.get("regex_list") or [
        item["regex"] for item in given.get("items") or given["ranges"] if "flags" not in item
    ]
    answers = {item["regex"]: item["ok"] for item in check.get("items", [])}
    return [pytest.param(pattern, answers.get(pattern, ["reject"]), id=f"{name}: {pattern}") for pattern in patterns]


@pytest.mark.parametrize(
    ("pattern", "accepted"), [*items("A19"), *items("A20"), *items("A22"), *items("A24"), *items("A25")]
)
def test_regex_cases(pattern: str, accepted: list[Any]) -> None:
    try:
        found = list(require_finite(compile_regex(pattern)).strings(4096))
    except SglCompiledError:
        assert "reject" in accepted
        return
    assert any(
        answer != "reject"
        and len(found) == answer.get("language_size", len(found))
        and sorted(text.decode() for text in found) == sorted(answer.get("language", [text.decode() for text in found]))
        for answer in accepted
    )


@pytest.mark.parametrize("pattern", [*BY_ID["E02"]["input"]["bad_regexes"], "(" * 1_000_000])
def test_bad_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(GrammarError):
        compile_regex(pattern)


def test_the_vocabulary_order_matters() -> None:
    case = BY_ID["A45"]
    for repeat in (1, -1):
        for tokenizer, selected in list(zip(case["input"]["tokenizers"], case["check"]["selected"], strict=True))[
            ::repeat
        ]:
            _, text, _ = serial_greedy({**case["input"], "tokenizer": tokenizer})
            assert [text.decode()] == selected


def test_batch_rows_end_on_their_own() -> None:
    case = BY_ID["A04"]
    automaton = compile_regex(case["input"]["regex"])
    spelling = AnySpelling(automaton, toy_vocabulary(case["input"]["tokenizer"]))
    assert [data.decode() for data in automaton.strings(10)] == case["input"]["strings"]
    assert all(0 in spelling.legal_ids(spelling.walk(0, b"1" * n) or 0) for n in (1, 2, 3))
