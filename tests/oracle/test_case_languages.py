"""Cases about what a grammar holds, and what is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from sgl_compiled.errors import GrammarError, GrammarTooLargeError, SglCompiledError
from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.compile import GrammarCompiler, compile_grammar
from sgl_compiled.grammar.form import Template
from sgl_compiled.grammar.layout import actions_ahead, decisions_ahead
from sgl_compiled.grammar.regex import compile_regex, require_finite
from sgl_compiled.runtime.schema import SelectRequest
from tests.cases import BY_ID, CASES, texts
from tests.toy_choices import answers, grammar_of, info_of


def test_json_holds_the_characters_themselves() -> None:
    given, check = BY_ID["A16"]["input"], BY_ID["A16"]["check"]
    found = answers(grammar_of(given))
    assert set(check["accept"]) <= set(found)
    assert not set(check["refuse"]) & set(found)
    assert [json.loads(text)["sections"][0] for text in found] == given["labels"]


@pytest.mark.parametrize("variant", BY_ID["A18"]["input"]["serialize_variants"])
def test_every_label_comes_back(variant: dict[str, Any]) -> None:
    given = BY_ID["A18"]["input"]
    for label, text in zip(given["labels"], answers(grammar_of({**given, "serialize": variant})), strict=True):
        if variant["kind"] == "raw":
            assert text == label
        else:
            assert json.loads(text) == {"sections": [label]}
            assert "\\/" not in text


def items(name: str) -> list[Any]:
    given, check = BY_ID[name]["input"], BY_ID[name]["check"]
    patterns = given.get("regex_list") or [
        item["regex"] for item in given.get("items") or given["ranges"] if "flags" not in item
    ]
    outcomes = {item["regex"]: item["ok"] for item in check.get("items", [])}
    return [pytest.param(pattern, outcomes.get(pattern, ["reject"]), id=f"{name}: {pattern}") for pattern in patterns]


@pytest.mark.parametrize("spelling", ["canonical", "any"])
@pytest.mark.parametrize(
    ("pattern", "accepted"), [*items("A19"), *items("A20"), *items("A22"), *items("A24"), *items("A25")]
)
def test_patterns(pattern: str, accepted: list[Any], spelling: Any) -> None:
    pieces = [chr(code) for code in range(32, 127)]
    tokenizer = {
        "vocab": [{"id": i, "t": t, "special": i == 0} for i, t in enumerate(["<eos>", *pieces])],
        "stop_ids": [0],
    }
    try:
        compiled = compile_grammar(ActionGrammar.from_regex(pattern), info_of(tokenizer), spelling)
    except SglCompiledError:
        assert "reject" in accepted
        return
    if spelling == "any" and accepted == ["reject"]:
        # Large and finite: nothing is unrolled, and a pass stays within its limits.
        with pytest.raises(GrammarTooLargeError):
            compiled.unfold(0, actions_ahead(compiled.automaton, 0, 1), 4096)
        assert len(compiled.unfold(0, decisions_ahead(1), 4096)) == 0
        return
    found = answers(compiled.grammar)
    assert compiled.count == len(found)
    assert any(
        answer != "reject"
        and len(found) == answer.get("language_size", len(found))
        and sorted(found) == sorted(answer.get("language", found))
        for answer in accepted
    )


def test_duplicates_are_refused() -> None:
    given = BY_ID["A26"]["input"]
    for item in given["items"][:2]:
        with pytest.raises(GrammarError, match="duplicate"):
            ActionGrammar.from_labels(item["labels"], item["k"])
    assert sorted(answers(ActionGrammar.from_regex(given["items"][2]["regex"]))) == ["A", "AB"]


def test_the_empty_regex_needs_no_model() -> None:
    given = BY_ID["A27"]["input"]["steps"][0]["send"]
    tokenizer = {"vocab": [{"id": 0, "t": "<eos>", "special": True}, {"id": 1, "t": "a"}], "stop_ids": [0]}
    for spelling in ("canonical", "any"):
        compiled = compile_grammar(ActionGrammar.from_regex(given["regex"]), info_of(tokenizer), spelling)  # type: ignore[arg-type]
        assert compiled.answer(compiled.automaton.start).text == ""
        assert not compiled.unfold(compiled.automaton.start, decisions_ahead(1), 10).rows


@pytest.mark.parametrize("request_body", [body for body in BY_ID["A29"]["input"]["requests"] if body])
def test_bad_label_lists_are_refused(request_body: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        body = SelectRequest(prompt="x", **request_body)
        ActionGrammar.from_labels(body.labels or [], body.k)


def test_counts_of_slots() -> None:
    given, check = BY_ID["A30"]["input"], BY_ID["A30"]["check"]
    for item, expected in zip(given["items"], check["items"], strict=True):
        if isinstance(item["k"], list):
            # Several sizes are one grammar as a schema.
            schema = {
                "type": "array",
                "items": {"enum": item["labels"]},
                "uniqueItems": True,
                "minItems": 1,
                "maxItems": 2,
            }
            assert ActionGrammar.from_json_schema(schema).form().count == expected["ok"][0]["language_size"]
            continue
        try:
            found = answers(grammar_of({**given, **item}))
        except GrammarError:
            assert "reject" in expected["ok"]
            continue
        assert {"language_size": len(found)} in expected["ok"]


def test_one_whitespace_for_each_template() -> None:
    given, check = BY_ID["A37"]["input"], BY_ID["A37"]["check"]
    for variant in check["variants"]:
        comma, colon = variant["separators"]
        template = Template('{"sections"' + colon + '["', f'"{comma}"', '"]}', "json")
        grammar = ActionGrammar.from_labels(given["labels"], given["k"], order="list", template=template)
        assert answers(grammar) == [variant["text"]]


def test_answers_are_whole() -> None:
    """A46: token limits and stop strings are no fields of a request, so no answer can be cut."""
    given = BY_ID["A46"]["input"]
    for extra in ({"max_new_tokens": 1}, {"stop": ["carb"]}):
        with pytest.raises(ValueError, match="Extra inputs"):
            SelectRequest(prompt=given["prompt"], labels=given["labels"], **extra)


def test_nul_is_a_character() -> None:
    for step in BY_ID["E01"]["input"]["steps"][:3]:
        given = step["send"]
        if "regex" in given:
            assert sorted(answers(ActionGrammar.from_regex(given["regex"]))) == ["\0A", "B"]
        else:
            key = json.dumps(given["serialize"]["key"])[1:-1]
            found = answers(grammar_of({**given, "serialize": {"kind": "json_object", "key": key}}))
            assert json.loads(found[0]) == {given["serialize"]["key"]: ["a\0b"]}


@pytest.mark.parametrize("pattern", [*BY_ID["E02"]["input"]["bad_regexes"], "(" * 1_000_000])
def test_bad_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(GrammarError):
        compile_regex(pattern)


def test_the_cache_of_grammars_is_bounded() -> None:
    load = BY_ID["E07"]["input"]["load"]
    tokenizer = {
        "vocab": [{"id": i, "t": t, "special": i == 0} for i, t in enumerate(["<eos>", *"0123456789-"])],
        "stop_ids": [0],
    }
    compiler = GrammarCompiler(info_of(tokenizer), capacity=32)
    first = ActionGrammar.from_labels([f"0-{j}" for j in range(load["labels_each"])], template="raw")
    held = compiler.compile(first)
    for i in range(1, 200):
        compiler.compile(ActionGrammar.from_labels([f"{i}-{j}" for j in range(load["labels_each"])], template="raw"))
        assert len(compiler._cache) <= 32
    assert compiler.compile(first) is not held
    assert held.count == load["labels_each"]  # what is in use outlives its place in the cache


def test_callers_keep_their_objects() -> None:
    labels = list(BY_ID["E10"]["input"]["p1"]["labels"])
    first = ActionGrammar.from_labels(labels)
    second = ActionGrammar.from_labels(labels)
    assert first == second
    labels.append("C")
    assert first.labels == ("A", "B")
    assert len(answers(ActionGrammar.from_labels(labels))) == 3


@pytest.mark.parametrize("made", BY_ID["E11"]["input"]["regex_generated"])
def test_size_is_no_stack(made: dict[str, Any]) -> None:
    if "depth" in made:
        pattern = made["open"] * made["depth"] + made["body"] + made["close"] * made["depth"]
    elif "join" in made:
        pattern = made["join"].join(made["format"].format(i=i) for i in range(made["n"]))
    else:
        pattern = made["repeat"] * made["times"]
    try:
        automaton = require_finite(compile_regex(pattern))
    except GrammarTooLargeError as error:
        assert re.search(r"limit|did not compile within", str(error))
    else:
        assert automaton.count(10**6) in (1, 50_000)


def test_texts_of_cases_are_the_languages() -> None:
    """Every label case: the grammar's answers are the case's strings."""
    checked = 0
    for case in CASES:
        given = case["input"]
        if "labels" not in given or case["id"] in ("A15", "A26", "A28", "A29", "A30") or given["op"] == "server":
            continue
        if "serialize" not in given or isinstance(given.get("k"), list):
            continue
        found = answers(grammar_of(given))
        assert sorted(found) == sorted(set(texts({**given, "k": given.get("k", 1)})))
        checked += 1
    assert checked > 20
