"""Models, schemas and tools as grammars: every text is a valid value, and every valid value has its text."""

from __future__ import annotations

import json
import time
from enum import Enum
from itertools import islice
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator

from sgl_compiled.errors import GrammarError, GrammarTooLargeError
from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.compile import compile_grammar
from sgl_compiled.grammar.model import read_model
from tests.unit.grammar.toy import toy


class Colour(Enum):
    RED = "red"
    BLUE = 'b"lue'


class Part(BaseModel):
    size: Literal["s", "m"]
    spare: bool = False


class Order(BaseModel):
    colour: Colour
    count: Annotated[int, Field(ge=-1, le=2)]
    part: Part
    tags: list[Literal["x", "y"]] = Field(min_length=1, max_length=2)
    note: Literal["é"] | None = None


def texts(grammar: ActionGrammar, limit: int = 100_000) -> list[str]:
    form = grammar.form()
    return [form.text(chosen) for chosen in islice(form.sequences(), limit)]


def test_every_text_is_an_instance() -> None:
    grammar = ActionGrammar.from_model(Order)
    found = texts(grammar)
    assert len(found) == len(set(found)) == grammar.form().count == 2 * 4 * 2 * 2 * 6 * 2
    instances = [read_model(Order, text) for text in found]
    # One text a value, in the form that json.dumps gives it.
    for text, instance in zip(found, instances, strict=True):
        assert json.dumps(instance.model_dump(mode="json"), ensure_ascii=False) == text


def test_every_instance_has_its_text() -> None:
    found = set(texts(ActionGrammar.from_model(Order)))
    some = Order(colour=Colour.BLUE, count=-1, part=Part(size="m"), tags=["y", "x"])
    assert json.dumps(some.model_dump(mode="json"), ensure_ascii=False) in found
    for count in (-2, 3):
        with pytest.raises(ValidationError):
            Order(colour=Colour.RED, count=count, part=Part(size="s"), tags=["x"])


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"type": "boolean"}, ["true", "false"]),
        ({"const": "a"}, ['"a"']),
        ({"enum": [1, "1", None, 1.5]}, ["1", '"1"', "null", "1.5"]),
        ({"enum": ["é", "e\u0301", "\\", "\n"]}, ['"é"', '"e\u0301"', '"\\\\"', '"\\n"']),
        ({"type": "integer", "minimum": 8, "maximum": 11}, ["8", "9", "10", "11"]),
        ({"type": "integer", "exclusiveMinimum": -2, "exclusiveMaximum": 1}, ["-1", "0"]),
        ({"type": "integer", "minimum": -5, "maximum": 5, "multipleOf": 5}, ["-5", "0", "5"]),
        ({"type": ["integer", "null"], "minimum": 1, "maximum": 2}, ["1", "2", "null"]),
        ({"anyOf": [{"type": "boolean"}, {"const": True}, {"type": "null"}]}, ["true", "false", "null"]),
        ({"type": "object", "properties": {}}, ["{}"]),
        ({"type": "object", "properties": {"a": {"type": "boolean"}}}, ['{"a": true}', '{"a": false}']),
        ({"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 1}, ["[]", '["a"]', '["b"]']),
        (
            {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 2},
            ['["a", "a"]', '["a", "b"]', '["b", "a"]', '["b", "b"]'],
        ),
        (
            {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "uniqueItems": True},
            ['["a", "b"]', '["b", "a"]'],
        ),
        (
            {"type": "array", "prefixItems": [{"const": 1}, {"type": "boolean"}], "maxItems": 2, "minItems": 2},
            ["[1, true]", "[1, false]"],
        ),
    ],
)
def test_values_of_schemas(schema: dict[str, Any], values: list[str]) -> None:
    assert sorted(texts(ActionGrammar.from_json_schema(schema))) == sorted(values)


def test_a_set_alone_is_not_unrolled() -> None:
    schema = {"type": "array", "items": {"enum": [f"s{i}" for i in range(40)]}, "minItems": 6, "maxItems": 6}
    form = ActionGrammar.from_json_schema({**schema, "uniqueItems": True}).form()
    assert form.count == 40 * 39 * 38 * 37 * 36 * 35
    assert form.constraint == "distinct"


class Text(BaseModel):
    outer: Part
    name: str


class Unbounded(BaseModel):
    level: int


class Half(BaseModel):
    level: int = Field(ge=0)


class Real(BaseModel):
    score: float = Field(ge=0, le=1)


class Words(BaseModel):
    words: list[Literal["a", "b"]]


class Mapped(BaseModel):
    table: dict[str, bool]


class Anything(BaseModel):
    value: Any


class Chain(BaseModel):
    inner: Chain | None = None


class Deep(BaseModel):
    outer: Text


class Many(BaseModel):
    picks: list[Literal["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]] = Field(max_length=5)


@pytest.mark.parametrize(
    ("model", "field"),
    [
        (Text, "'name'"),
        (Unbounded, "'level'"),
        (Half, "'level'"),
        (Real, "'score'"),
        (Words, "'words'"),
        (Mapped, "'table'"),
        (Anything, "'value'"),
        (Chain, "'inner"),
        (Deep, "'outer.name'"),
        (Many, "'picks'"),
    ],
)
def test_unbounded_fields_are_refused_by_name(model: type[BaseModel], field: str) -> None:
    with pytest.raises(GrammarError, match=field):
        ActionGrammar.from_model(model)


@pytest.mark.parametrize(
    "schema",
    [
        [],
        {"type": "string", "pattern": "a|b"},
        {"enum": []},
        {"enum": [float("nan")]},
        {"enum": ["a"], "minLength": 2},
        {"$ref": "#/$defs/Missing"},
        {"anyOf": []},
        {"allOf": [{"const": 1}, {"const": 2}]},
        {"type": "integer", "minimum": 2, "maximum": 1},
        {"type": "integer", "minimum": 0, "maximum": 10**12},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 2},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 0, "maxItems": 10**9},
        {"type": "array", "maxItems": 2},
        {"type": "object", "additionalProperties": True},
        {"properties": {"a": {"const": 1}}},
        {"type": "array", "items": {"enum": ["a", "b", "c"]}, "minItems": 2, "maxItems": 2, "contains": {"const": "a"}},
    ],
)
def test_refusals(schema: Any) -> None:
    with pytest.raises(GrammarError):
        ActionGrammar.from_json_schema(schema)


def test_deep_nesting_is_refused() -> None:
    schema: dict[str, Any] = {"const": 1}
    for _ in range(5_000):
        schema = {"anyOf": [schema]}
    with pytest.raises(GrammarError, match="deep"):
        ActionGrammar.from_json_schema(schema)


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}, "days": {"type": "boolean"}}},
        },
    },
    {"name": "stop"},
]


def test_tools() -> None:
    found = texts(ActionGrammar.from_tools(TOOLS))
    assert found == [
        '{"name": "weather", "arguments": {"unit": "C", "days": true}}',
        '{"name": "weather", "arguments": {"unit": "C", "days": false}}',
        '{"name": "weather", "arguments": {"unit": "F", "days": true}}',
        '{"name": "weather", "arguments": {"unit": "F", "days": false}}',
        '{"name": "stop", "arguments": {}}',
    ]
    one = ActionGrammar.from_tools(TOOLS[:1]).form()
    assert [len(choices) for choices in one.slots] == [2, 2]  # a single tool keeps its fields apart


@pytest.mark.parametrize("tools", [[], "search", [{"parameters": {}}], [{"name": "a"}, {"name": "a"}], [1]])
def test_bad_tools(tools: Any) -> None:
    with pytest.raises(GrammarError, match="tools"):
        ActionGrammar.from_tools(tools)


def test_tool_arguments_are_named() -> None:
    bad = {"name": "mail", "parameters": {"type": "object", "properties": {"to": {"type": "string"}}}}
    with pytest.raises(GrammarError, match=r"arguments\.to"):
        ActionGrammar.from_tools([TOOLS[1], bad])


class Even(BaseModel):
    number: int = Field(ge=0, le=3)

    @field_validator("number")
    @classmethod
    def _even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("must be even")
        return value


def test_a_validator_of_the_model_speaks_up() -> None:
    assert read_model(Even, '{"number": 2}').number == 2
    with pytest.raises(GrammarError, match="validator"):
        read_model(Even, '{"number": 3}')


def test_no_model() -> None:
    with pytest.raises(GrammarError, match="pydantic"):
        ActionGrammar.from_model(dict)  # type: ignore[arg-type]


@pytest.mark.parametrize("spelling", ["canonical", "any"])
def test_compiled_models_read_back(spelling: Any) -> None:
    info = toy([*'{}[]": ,abcdefghijklmnopqrstuvwxyzé0123456789-\\', '": "', '", "', '{"', "true", "false", '"}'])
    grammar = ActionGrammar.from_model(Order)
    assert ActionGrammar.from_spec(json.loads(json.dumps(grammar.to_spec()))) == grammar
    compiled = compile_grammar(grammar, info, spelling)
    assert compiled.horizon == len(grammar.form())
    wanted = '{"colour": "red", "count": 2, "part": {"size": "m", "spare": true}, "tags": ["y", "x"], "note": null}'
    state, tokens = compiled.automaton.start, []
    (ids,) = info.encode_batch([wanted])
    for token in ids:
        state = compiled.automaton.step(state)[token]
        tokens.append(token)
    answer = compiled.answer(state, tokens)
    assert answer.text == wanted
    assert answer.labels == ('"red"', "2", '"m"', "true", '["y", "x"]', "null")


def test_forms() -> None:
    grammar = ActionGrammar.from_form(["Mood: ", ["good", "bad"], ", ", "energy: ", ["1", "2", "10"], "."])
    assert texts(grammar)[:2] == ["Mood: good, energy: 1.", "Mood: good, energy: 2."]
    assert grammar.form().count == 6


@pytest.mark.parametrize(
    ("parts", "match"),
    [
        ("abc", "list"),
        (["only text"], "nothing to choose"),
        ([[]], "no choices"),
        ([["a", "a"]], "twice"),
        ([["a", 1]], "neither"),
        ([7], "neither"),
        ([["a", "ab"], ["b", "c"]], "prefix"),
        ([["a, b", "c"], ", ", ["d"]], "separator"),
        ([["\ud800"]], "surrogate"),
    ],
)
def test_bad_forms(parts: Any, match: str) -> None:
    with pytest.raises(GrammarError, match=match):
        ActionGrammar.from_form(parts)


@pytest.mark.parametrize(
    "slot_form",
    [
        {"literals": ["a"], "slots": [["x"]], "constraint": "free"},
        {"literals": ["", ""], "slots": [["x"]], "constraint": "odd"},
        {"literals": ["", "", ""], "slots": [["x"], ["y"]], "constraint": "distinct"},
        {"literals": ["", "", ""], "slots": [["x"], ["x"]], "constraint": "increasing"},
        {"literals": ["", ""], "slots": [[]], "constraint": "free"},
    ],
)
def test_forged_specs_are_refused(slot_form: Any) -> None:
    with pytest.raises(GrammarError):
        ActionGrammar.from_spec({"slot_form": slot_form})


def test_too_many_slots() -> None:
    with pytest.raises(GrammarTooLargeError, match="slots"):
        ActionGrammar.from_form([part for _ in range(65) for part in (["a", "b"], "-")])


DOUBLING = {
    f"t{i}": {"type": "object", "properties": {key: {"$ref": f"#/$defs/t{i + 1}"} for key in "ab"}} for i in range(14)
}


def nested(inner: dict[str, Any], levels: int, **outer: Any) -> dict[str, Any]:
    for _ in range(levels):
        inner = {"type": "array", "items": inner, **outer}
    return inner


@pytest.mark.parametrize(
    "schema",
    [
        nested({"const": "abc"}, 30, minItems=2, maxItems=2),
        nested({"enum": ["a", "b"]}, 30, minItems=2, maxItems=2),
        {"type": "array", "items": {"const": 1}, "minItems": 10**9, "maxItems": 10**9},
        {"type": "array", "items": {"const": "x" * 10**5}, "maxItems": 200},
        {"anyOf": [{"const": "x" * 10**5 + str(i)} for i in range(100)]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 4}}},
        {"$ref": "#/$defs/t0", "$defs": {**DOUBLING, "t14": {"const": 1}}},
        {"type": "array", "items": {"type": []}, "maxItems": 10**30},
        {"type": {}, "a": 1},
        {"type": "integer", "minimum": float("-inf"), "maximum": float("inf")},
        {"type": "integer", "minimum": 0, "maximum": 3, "multipleOf": 0},
        {"type": "array", "items": {"type": "boolean"}, "minItems": -1, "maxItems": 0},
        {"type": "array", "prefixItems": [{"const": 1}], "minItems": 2},
        {"type": "array", "prefixItems": 5},
        {"type": "string", "enum": [1, 2]},
    ],
)  # fmt: skip
def test_small_schemas_of_huge_values_are_refused_at_once(schema: dict[str, Any]) -> None:
    start = time.process_time()
    with pytest.raises(GrammarError):
        ActionGrammar.from_json_schema(schema)
    assert time.process_time() - start < 2


def test_values_of_another_type_are_no_values() -> None:
    assert texts(ActionGrammar.from_json_schema({"type": "integer", "enum": [1, "1", True, 2.0]})) == ["1", "2.0"]
    assert texts(ActionGrammar.from_json_schema({"type": ["string", "null"], "enum": ["a", None, 3]})) == [
        '"a"',
        "null",
    ]
