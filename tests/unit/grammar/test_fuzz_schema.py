"""Whatever a client sends as schema, form or tools: a grammar, or an error that says why."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sgl_compiled.errors import SglCompiledError
from sgl_compiled.grammar.actions import ActionGrammar

KEYS = [
    *("type", "enum", "const", "properties", "required", "additionalProperties", "items", "prefixItems", "minItems"),
    *("maxItems", "uniqueItems", "minimum", "maximum", "exclusiveMinimum", "multipleOf", "anyOf", "allOf", "$ref"),
    *("$defs", "title", "pattern", "name", "parameters", "function", "a", "b"),
]
TYPES = ["string", "integer", "number", "boolean", "null", "array", "object"]
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-5, 20)
    | st.floats()
    | st.sampled_from([*TYPES, "#/$defs/a", "#", "\ud800", ""])
    | st.text(max_size=3)
    | st.sampled_from([10**30, -(10**30)])
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=20,
)


def likely_schemas() -> st.SearchStrategy[Any]:
    """Mostly sound schemas, so that the fuzz gets past the first check."""
    base = (
        st.just({"type": "boolean"})
        | st.fixed_dictionaries({"enum": st.lists(leaves, max_size=4)})
        | st.fixed_dictionaries(
            {"type": st.just("integer"), "minimum": st.integers(-3, 3), "maximum": st.integers(-3, 200)}
        )
    )
    return st.recursive(
        base,
        lambda inner: (
            st.fixed_dictionaries(
                {"type": st.just("object"), "properties": st.dictionaries(st.text(max_size=2), inner, max_size=3)}
            )
            | st.fixed_dictionaries({"anyOf": st.lists(inner, max_size=3)})
            | st.fixed_dictionaries(
                {
                    "type": st.just("array"),
                    "items": inner,
                    "minItems": st.integers(-1, 4),
                    "maxItems": st.integers(-1, 6),
                    "uniqueItems": st.booleans(),
                }
            )
        ),
        max_leaves=8,
    )


def check(read: Any, given_value: Any) -> None:
    try:
        grammar: ActionGrammar = read(given_value)
    except SglCompiledError as error:
        assert str(error)
        return
    form = grammar.form()
    assert form.count > 0
    assert ActionGrammar.from_spec(json.loads(json.dumps(grammar.to_spec()))) == grammar
    for chosen in islice(form.sequences(), 20) if form.count < 10_000 else ():
        form.text(chosen).encode()


def check_schema(schema: Any) -> None:
    check(ActionGrammar.from_json_schema, schema)
    try:
        form = ActionGrammar.from_json_schema(schema).form()
    except SglCompiledError:
        return
    texts = [form.text(chosen) for chosen in islice(form.sequences(), 200)] if form.count < 10_000 else []
    assert len(set(texts)) == len(texts)
    for text in texts:
        json.loads(text)


FUZZ = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}


@given(values | likely_schemas())
@settings(max_examples=35, **FUZZ)
def test_schemas(schema: Any) -> None:
    check_schema(schema)


@given(values)
@settings(max_examples=35, **FUZZ)
def test_forms_and_tools(value: Any) -> None:
    check(ActionGrammar.from_form, value)
    check(ActionGrammar.from_tools, value)


@pytest.mark.long
@given(values | likely_schemas())
@settings(max_examples=20_000, **FUZZ)
def test_many_schemas(schema: Any) -> None:
    check_schema(schema)
    check(ActionGrammar.from_form, schema)
    check(ActionGrammar.from_tools, schema)
