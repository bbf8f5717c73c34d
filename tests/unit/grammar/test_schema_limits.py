"""Small schemas that spell out to much, and keywords that must not be read past."""

from __future__ import annotations

import json
import time
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from sgl_compiled.errors import GrammarError, GrammarTooLargeError
from sgl_compiled.grammar import json_parts
from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.json_parts import arrangements, merged, value_of


def texts(grammar: ActionGrammar) -> list[str]:
    form = grammar.form()
    return [form.text(chosen) for chosen in form.sequences()]


def schema_texts(schema: dict[str, Any]) -> list[str]:
    return texts(ActionGrammar.from_json_schema(schema))


NUMBERS = {"type": "integer", "minimum": 0, "maximum": 9_999}


def record(fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields}


def refers(name: str, times: int) -> dict[str, Any]:
    return record({f"f{i}": {"$ref": f"#/$defs/{name}"} for i in range(times)})


@pytest.mark.parametrize(
    "schema",
    [
        {**refers("n", 2_400), "$defs": {"n": NUMBERS}},
        {**refers("a", 12), "$defs": {"a": refers("b", 12), "b": refers("n", 12), "n": NUMBERS}},
        {**refers("n", 2_400), "$defs": {"n": {"anyOf": [{**NUMBERS, "maximum": 4_999}, {"type": "null"}]}}},
        {
            **refers("n", 2_400),
            "$defs": {"n": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 12}},
        },
    ],
)
def test_the_sum_of_the_fields_is_limited(schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_parts, "_MAX_TEXTS", 30_000)
    with pytest.raises(GrammarTooLargeError, match="fields up to this one"):
        ActionGrammar.from_json_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {**refers("n", 900), "$defs": {"n": {"const": "x" * 100}}},
        record({str(i) + "x" * 100: {"const": 1} for i in range(900)}),
        {
            **refers("n", 900),
            "$defs": {"n": {"type": "array", "items": {"const": "x"}, "minItems": 30, "maxItems": 30}},
        },
        {
            **refers("n", 9),
            "$defs": {"n": {"type": "array", "items": {"enum": [*"abcdef"]}, "uniqueItems": True, "minItems": 6}},
        },
    ],
)
def test_the_bytes_of_the_fields_are_limited(schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert ActionGrammar.from_json_schema(schema)
    monkeypatch.setattr(json_parts, "_MAX_READ_BYTES", 50_000)
    with pytest.raises(GrammarTooLargeError, match="bytes"):
        ActionGrammar.from_json_schema(schema)


def test_grammars_within_the_limits_are_still_read() -> None:
    form = ActionGrammar.from_json_schema({**refers("n", 20), "$defs": {"n": NUMBERS}}).form()
    assert len(form) == 20 and form.count == 10_000**20


def lists(least: int, most: int, **rest: Any) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "boolean"}, "minItems": least, "maxItems": most, **rest}


MANY = lists(5_000, 5_000, items=NUMBERS, uniqueItems=True)


@pytest.mark.parametrize(
    "schema",
    [
        lists(10**9, 10**9 + 1),
        lists(10**9, 10**9 + 1, items={"const": 1}),
        lists(100, 100, items=MANY),
        lists(1, 2, items=lists(90, 90, items=MANY)),
        record({"a": MANY, "b": MANY}),
        {"anyOf": [lists(300, 300, items=lists(9, 9)), {"const": 1}]},
    ],
)
def test_counts_are_not_computed_to_the_last_digit(schema: dict[str, Any]) -> None:
    start = time.process_time()
    with pytest.raises(GrammarTooLargeError):
        ActionGrammar.from_json_schema(schema)
    assert time.process_time() - start < 1


def test_arrangements() -> None:
    assert [arrangements(3, size, True) for size in range(6)] == [1, 3, 6, 6, 0, 0]
    assert [arrangements(3, size, False) for size in range(5)] == [1, 3, 9, 27, 81]
    assert arrangements(1, 10**12, False) == 1
    assert arrangements(2, 10**12, False) == arrangements(200, 200, True) == json_parts.MAX_CHOICES + 1
    assert merged(["a", ("b",), "c", ("d", "e"), ("f",)]) == ["abc", ("d", "e"), "f"]


def test_long_literals_are_joined_at_once() -> None:
    start = time.process_time()
    (literal,) = merged(["x" * 200] * 20_000)
    assert len(literal) == 4_000_000 and time.process_time() - start < 0.5


class Unit(Enum):
    C = "C"
    F = "F"


class Place(BaseModel):
    kind: Literal["city", "sea"]


class Weather(BaseModel):
    unit: Unit
    place: Place


class Tide(BaseModel):
    unit: Literal["m"]
    place: Place


def test_tools_bring_their_own_definitions() -> None:
    tools = [{"name": model.__name__, "parameters": model.model_json_schema()} for model in (Weather, Tide)]
    assert all("$defs" in tool["parameters"] for tool in tools)
    found = [json.loads(text) for text in texts(ActionGrammar.from_tools(tools))]
    assert len(found) == 4 + 2
    for call in found:
        {"Weather": Weather, "Tide": Tide}[call["name"]].model_validate(call["arguments"])


def test_one_tools_definitions_are_not_anothers() -> None:
    uses = record({"a": {"$ref": "#/$defs/A"}})
    tools = [
        {"name": "one", "parameters": {**uses, "$defs": {"A": {"const": 1}}}},
        {"name": "two", "parameters": {**uses, "$defs": {"A": {"const": 2}}}},
    ]
    assert texts(ActionGrammar.from_tools(tools)) == [
        '{"name": "one", "arguments": {"a": 1}}',
        '{"name": "two", "arguments": {"a": 2}}',
    ]
    with pytest.raises(GrammarError, match="does not define"):
        ActionGrammar.from_tools([tools[0], {"name": "two", "parameters": uses}])


ONE, TWO = {"enum": [1, 2]}, {"enum": [2, 3]}


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"oneOf": [ONE, TWO]}, ["1", "3"]),
        ({"anyOf": [ONE, TWO]}, ["1", "2", "3"]),
        ({"oneOf": [ONE, {"const": 2.0}]}, ["1"]),
        ({"oneOf": [{"enum": [1, 1.0]}, {"const": 2}]}, ["1", "1.0", "2"]),
        ({"oneOf": [{"enum": [{"a": 1, "b": 2}, True]}, {"enum": [{"b": 2, "a": 1}, 1]}]}, ["true", "1"]),
        ({"oneOf": [ONE]}, ["1", "2"]),
        ({"anyOf": [ONE, {"const": "a"}], "type": "integer"}, ["1", "2"]),
        ({"oneOf": [ONE, {"const": "a"}], "type": ["string", "null"]}, ['"a"']),
        ({"allOf": [{"enum": [1, 1.5, None]}], "type": "number"}, ["1", "1.5"]),
        ({"$ref": "#/$defs/a", "type": "object", "$defs": {"a": record({"b": ONE})}}, ['{"b": 1}', '{"b": 2}']),
        ({"const": [1], "type": "array"}, ["[1]"]),
        ({"enum": [10**400, 1], "type": "integer"}, [str(10**400), "1"]),
        (lists(2, 2, items={"enum": [1, 1.0, True]}, uniqueItems=True), ["[1, true]", "[true, 1]"]),
        ({"type": "array", "items": {"enum": [1, 1.0]}, "uniqueItems": True}, ["[]", "[1]"]),
        ({"type": "object", "additionalProperties": False}, ["{}"]),
        ({**record({"a": ONE}), "required": ["a"]}, ['{"a": 1}', '{"a": 2}']),
    ],
)
def test_values(schema: dict[str, Any], values: list[str]) -> None:
    assert schema_texts(schema) == values


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        ({"oneOf": [ONE, {"enum": [1.0, 2]}]}, "oneOf"),
        ({"anyOf": [ONE, TWO], "type": "string"}, "no value of its type"),
        ({"$ref": "#/$defs/a", "type": "string", "$defs": {"a": record({"b": ONE})}}, "no value of its type"),
        ({"oneOf": [lists(2, 2), lists(2, 2)], "type": "object"}, "oneOf"),
        ({"allOf": [lists(2, 2)], "type": "object"}, "no value of its type"),
        ({"const": 1, "type": {}}, "no value of its type"),
        ({**record({"a": ONE}), "required": ["a", "b"]}, "requires 'b'"),
        ({**record({"a": ONE}), "required": True}, "requires True"),
        (lists(2, 2, items={"enum": [1, 1.0]}, uniqueItems=True), "cannot hold 2"),
        ({"type": "object"}, "any keys"),
        ({"type": ["object", "null"]}, "any keys"),
        ({"type": "integer", "minimum": None, "maximum": 1}, "minimum must be a whole number, not None"),
        ({"type": "array", "items": ONE}, "without maxItems"),
        (lists(0, 1) | {"maxItems": None}, "maxItems must be a whole number, not None"),
    ],
)
def test_refusals(schema: dict[str, Any], match: str) -> None:
    with pytest.raises(GrammarError, match=match):
        ActionGrammar.from_json_schema(schema)


def test_values_too_deep_to_compare_are_refused() -> None:
    with pytest.raises(GrammarError, match="deep"):
        value_of("[" * 100_000 + "]" * 100_000, ())
