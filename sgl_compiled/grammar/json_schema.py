"""JSON schemas that admit finitely many values, as literals around slots.

Objects write all their properties in the schema's order, arrays their items, with the separators of ``json.dumps``:
one text a value. Properties that the schema does not require are written all the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations, product
from typing import Any

from sgl_compiled.errors import GrammarError, UnsupportedError
from sgl_compiled.grammar.actions import checked_form
from sgl_compiled.grammar.form import SlotForm
from sgl_compiled.grammar.json_parts import (
    Budget,
    Distinct,
    Part,
    arrangements,
    check_count,
    check_size,
    count_of,
    field_name,
    length_of,
    listed,
    merged,
    of_type,
    orders,
    refusal,
    texts_of,
    value_of,
)

__all__ = ["read_schema", "tools_schema"]

_MAX_DEPTH = 32

_ANNOTATIONS = frozenset(
    {
        "$schema",
        "$id",
        "$defs",
        "definitions",
        "$comment",
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "discriminator",
    }
)


def read_schema(schema: Mapping[str, Any]) -> SlotForm:
    """Return the slot form of a schema.

    Raises
    ------
    GrammarError
        No value at all, infinitely many, or too many; the message names the field.
    UnsupportedError
        A keyword that is not read.
    """
    if not isinstance(schema, Mapping):
        raise GrammarError("json_schema must be an object")
    budget = Budget()
    parts = merged(_Reader(schema, budget).parts(schema, (), 0))
    distinct = [part for part in parts if isinstance(part, Distinct)]
    if len(distinct) == 1 and not any(isinstance(part, tuple) for part in parts):
        at, (one,) = parts.index(distinct[0]), distinct
        before, after = "".join(map(str, parts[:at])), "".join(map(str, parts[at + 1 :]))
        return checked_form((before, *([", "] * (one.size - 1)), after), (one.choices,) * one.size, "distinct")
    literals, slots = [""], list[tuple[str, ...]]()
    for part in parts:
        if isinstance(part, str):
            literals[-1] += part
            continue
        if isinstance(part, Distinct):
            rows = orders(part)
            budget.spend(count_of([part]), count_of([part]) * length_of([part]), ())
            part = tuple(rows)
        slots.append(part)
        literals.append("")
    if not slots:
        return checked_form(("", ""), ((literals[0],),))
    return checked_form(tuple(literals), tuple(slots))


def tools_schema(tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the schema of a call of one of ``tools``: ``{"name": ..., "arguments": {...}}``.

    Parameters
    ----------
    tools : sequence of mapping
        ``{"name": ..., "parameters": schema}``, alone or inside ``{"type": "function", "function": ...}``.
    """
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence) or not tools:
        raise GrammarError("tools must be a list of at least one tool")
    calls: dict[str, Any] = {}
    for index, tool in enumerate(tools):
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
            raise GrammarError(f"tools[{index}] has no name; give {{'name': ..., 'parameters': {{...}}}}")
        if name in calls:
            raise GrammarError(f"tools[{index}] has the name {name!r} of another tool; rename one")
        arguments = function.get("parameters") or {"type": "object", "properties": {}}
        if isinstance(arguments, Mapping):
            # With an id of their own, references in them start at them.
            arguments = {"$id": name, **arguments}
        calls[name] = {"type": "object", "properties": {"name": {"const": name}, "arguments": arguments}}
    return {"anyOf": list(calls.values())}


class _Reader:
    """Reads one schema with its definitions; a part of it with an ``$id`` is a schema with definitions of its own."""

    def __init__(self, root: Mapping[str, Any], budget: Budget) -> None:
        self._root = root
        self._budget = budget

    def parts(self, schema: Any, path: tuple[str, ...], depth: int) -> list[Part]:
        """Return what a value of ``schema`` looks like."""
        if not isinstance(schema, Mapping):
            raise refusal(path, "has no type, so it admits any value; give it an enum or a type")
        if depth > _MAX_DEPTH:
            raise refusal(path, f"is nested more than {_MAX_DEPTH} deep, or refers to itself; flatten it")
        if "$id" in schema and schema is not self._root:
            return _Reader(schema, self._budget).parts(schema, path, depth)
        self._budget.node(path)
        kind, read = self._kind(schema, path)
        unread = set(schema) - _ANNOTATIONS - _KEYWORDS[kind] - {"type"}
        if unread:
            names = ", ".join(sorted(map(repr, unread)))
            raise UnsupportedError(
                f"{field_name(path)}: the keyword {names} is not read here; write the values out in an enum"
            )
        parts = merged(read(schema, path, depth))
        return of_type(parts, schema["type"], path) if kind in _BEFORE_TYPE and "type" in schema else parts

    def _kind(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> tuple[str, Callable[..., list[Part]]]:
        for keyword in _BEFORE_TYPE:
            if keyword in schema:
                return keyword, {"$ref": self._ref, "const": self._const, "enum": self._enum, "allOf": self._all}.get(
                    keyword, self._any
                )
        kinds: dict[str, Callable[..., list[Part]]] = {
            "boolean": lambda *_: [("true", "false")],
            "null": lambda *_: ["null"],
            "integer": self._integer,
            "array": self._array,
            "object": self._object,
        }
        kind = schema.get("type")
        if isinstance(kind, list):
            return "types", self._types
        if isinstance(kind, str) and kind in kinds:
            return kind, kinds[kind]
        what = {"string": "any text", "number": "any number"}.get(str(kind), "any value")
        raise refusal(
            path, f"admits {what}, so it has infinitely many values; list them (Literal[...], an Enum, an enum)"
        )

    def _ref(self, schema: Mapping[str, Any], path: tuple[str, ...], depth: int) -> list[Part]:
        node: Any = self._root
        for step in str(schema["$ref"]).removeprefix("#/").split("/"):
            node = node.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(node, Mapping) else None
        if node is None:
            raise GrammarError(f"{field_name(path)} refers to {schema['$ref']!r}, which the schema does not define")
        return self.parts(node, path, depth + 1)

    def _all(self, schema: Mapping[str, Any], path: tuple[str, ...], depth: int) -> list[Part]:
        if not isinstance(schema["allOf"], list) or len(schema["allOf"]) != 1:
            raise UnsupportedError(f"{field_name(path)}: allOf with several schemas is not read here; merge them")
        return self.parts(schema["allOf"][0], path, depth + 1)

    def _any(self, schema: Mapping[str, Any], path: tuple[str, ...], depth: int) -> list[Part]:
        options = schema.get("anyOf", schema.get("oneOf"))
        if not isinstance(options, list) or not options:
            raise GrammarError(f"{field_name(path)} has no alternatives")
        return self._alternatives(options, path, depth, exclusive="anyOf" not in schema)

    def _types(self, schema: Mapping[str, Any], path: tuple[str, ...], depth: int) -> list[Part]:
        # A keyword says something about its own type alone.
        options = [
            {"type": kind, **{key: schema[key] for key in _KEYWORDS.get(kind, ()) if key in schema}}
            for kind in map(str, schema["type"])
        ]
        return self._alternatives(options, path, depth)

    def _alternatives(
        self, options: Sequence[Any], path: tuple[str, ...], depth: int, *, exclusive: bool = False
    ) -> list[Part]:
        """Return the values of all ``options``, or those that only one of them has."""
        found = [self.parts(option, path, depth + 1) for option in options]
        if not found:
            raise GrammarError(f"{field_name(path)} has no alternatives")
        if len(found) == 1:
            return found[0]
        check_size(sum(map(count_of, found)), sum(count_of(parts) * length_of(parts) for parts in found), path)
        if not exclusive:
            return self._budget.slot((text for parts in found for text in texts_of(parts)), path)
        values = [{text: value_of(text, path) for text in texts_of(parts)} for parts in found]
        times = Counter(value for texts in values for value in set(texts.values()))
        once = [text for texts in values for text, value in texts.items() if times[value] == 1]
        if not once:
            raise refusal(path, "has no value that is in one alternative of oneOf alone; write anyOf")
        return self._budget.slot(once, path)

    def _object(self, schema: Mapping[str, Any], path: tuple[str, ...], depth: int) -> list[Part]:
        properties = schema.get("properties", {})
        # Without either keyword it is any object; with properties, those are meant.
        others = schema.get("additionalProperties", "properties" not in schema)
        if others is not False or not isinstance(properties, Mapping):
            raise refusal(path, "admits any keys; name them as fields of a model")
        required = schema.get("required", [])
        if not isinstance(required, list):
            raise refusal(path, f"requires {required!r}, which is no list of properties; give their names")
        for name in map(str, required):
            if name not in properties:
                raise refusal(path, f"requires {name!r}, which is not among its properties; declare it there")
        parts: list[Part] = ["{"]
        for index, (name, value) in enumerate(properties.items()):
            text = (", " if index else "") + json.dumps(name, ensure_ascii=False) + ": "
            self._budget.spend(0, len(text), path)
            parts += [text, *self.parts(value, (*path, name), depth + 1)]
        return [*parts, "}"]

    def _array(self, schema: Mapping[str, Any], path: tuple[str, ...], depth: int) -> list[Part]:
        least = _whole(schema.get("minItems", 0), path, "minItems")
        if "prefixItems" in schema:
            return self._tuple(schema, least, path, depth)
        item = self.parts(schema.get("items"), path, depth + 1)
        if schema.get("uniqueItems", False):
            check_size(count_of(item), count_of(item) * length_of(item), path)
            different: dict[str, str] = {}
            for text in texts_of(item):
                different.setdefault(value_of(text, path), text)
            return self._set(schema, least, tuple(different.values()), path)
        if "maxItems" not in schema:
            raise refusal(path, "is a list without maxItems, so it has infinitely many values; give it a length")
        most = _whole(schema["maxItems"], path, "maxItems")
        _check_length(least, most, most, path)
        if least == most:
            check_size(least * len(item), least * length_of(item), path)
            self._budget.spend(0, least * length_of(item), path)
            return listed([item] * least)
        return self._lists(item, range(least, most + 1), False, path)

    def _set(
        self, schema: Mapping[str, Any], least: int, choices: tuple[str, ...], path: tuple[str, ...]
    ) -> list[Part]:
        """Return lists of different ones of ``choices``."""
        most = min(_whole(schema.get("maxItems", len(choices)), path, "maxItems"), len(choices))
        _check_length(least, most, schema.get("maxItems", most), path)
        slot = self._budget.slot(choices, path)
        if least == most > 0:
            return ["[", Distinct(choices, least), "]"]
        return self._lists(slot, range(least, most + 1), True, path)

    def _lists(self, item: list[Part], sizes: range, unique: bool, path: tuple[str, ...]) -> list[Part]:
        """Return all lists of some sizes, as one slot."""
        count, longest = count_of(item), length_of(item) + 2
        total = size_bytes = 0
        for size in sizes:
            rows = arrangements(count, size, unique)
            total, size_bytes = total + rows, size_bytes + rows * size * longest
            check_size(total, size_bytes, path)
        texts = tuple(texts_of(item))
        chosen = (
            row for size in sizes for row in (permutations(texts, size) if unique else product(texts, repeat=size))
        )
        return self._budget.slot(("[" + ", ".join(row) + "]" for row in chosen), path)

    def _tuple(self, schema: Mapping[str, Any], least: int, path: tuple[str, ...], depth: int) -> list[Part]:
        given = schema["prefixItems"]
        if not isinstance(given, list) or not given:
            raise GrammarError(f"{field_name(path)}: prefixItems must be a list of schemas")
        most = _whole(schema.get("maxItems", len(given)), path, "maxItems")
        if schema.get("items", False) is not False and most != len(given):
            raise UnsupportedError(f"{field_name(path)}: items behind prefixItems are not read here; drop one of them")
        if schema.get("uniqueItems") or not least <= len(given) <= most:
            raise GrammarError(f"{field_name(path)}: all {len(given)} prefixItems are written; mend the other keywords")
        return listed([self.parts(item, path, depth + 1) for item in given])

    def _const(self, schema: Mapping[str, Any], path: tuple[str, ...], _: int) -> list[Part]:
        return self._budget.slot([_dumps(schema["const"], path)], path)

    def _enum(self, schema: Mapping[str, Any], path: tuple[str, ...], _: int) -> list[Part]:
        values = schema["enum"]
        if not isinstance(values, list) or not values:
            raise GrammarError(f"{field_name(path)} has an empty enum; give it at least one value")
        return self._budget.slot((_dumps(value, path) for value in values), path)

    def _integer(self, schema: Mapping[str, Any], path: tuple[str, ...], _: int) -> list[Part]:
        return self._budget.slot(map(str, _integers(schema, path)), path)


# Where one of these stands, it says how to read the schema, and a type beside it picks among the values.
_BEFORE_TYPE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
_LENGTHS = frozenset({"minItems", "maxItems", "uniqueItems"})
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_KEYWORDS: Mapping[str, frozenset[str]] = {
    "$ref": frozenset({"$ref"}),
    "const": frozenset({"const"}),
    "enum": frozenset({"enum"}),
    "anyOf": frozenset({"anyOf"}),
    "oneOf": frozenset({"oneOf"}),
    "allOf": frozenset({"allOf"}),
    "types": frozenset({"properties", "required", "additionalProperties", "items", "prefixItems", *_LENGTHS, *_BOUNDS}),
    "boolean": frozenset(),
    "null": frozenset(),
    "integer": _BOUNDS,
    "array": frozenset({"items", "prefixItems", *_LENGTHS}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
}


def _integers(schema: Mapping[str, Any], path: tuple[str, ...]) -> range:
    lows = [_whole(schema["minimum"], path, "minimum")] if "minimum" in schema else []
    highs = [_whole(schema["maximum"], path, "maximum")] if "maximum" in schema else []
    if "exclusiveMinimum" in schema:
        lows.append(_whole(schema["exclusiveMinimum"], path, "exclusiveMinimum") + 1)
    if "exclusiveMaximum" in schema:
        highs.append(_whole(schema["exclusiveMaximum"], path, "exclusiveMaximum") - 1)
    if not lows or not highs:
        raise refusal(path, "admits integers without bound; give both ends, as in Field(ge=0, le=10)")
    low, high = max(lows), min(highs)
    step = _whole(schema.get("multipleOf", 1), path, "multipleOf")
    if step < 1:
        raise GrammarError(f"{field_name(path)}: multipleOf must be at least 1, not {step}")
    first = -(-low // step) * step
    check_count((high - first) // step + 1, path)
    values = range(first, high + 1, step)
    if not values:
        raise GrammarError(f"{field_name(path)} admits no integer: {low} is above {high}")
    return values


def _check_length(least: int, most: int, given: Any, path: tuple[str, ...]) -> None:
    if not 0 <= least <= most:
        raise GrammarError(f"{field_name(path)} cannot hold {least} to {given} items; mend minItems and maxItems")


def _dumps(value: Any, path: tuple[str, ...]) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise GrammarError(f"{field_name(path)} holds {value!r}, which is no JSON value: {error}") from None


def _whole(value: Any, path: tuple[str, ...], keyword: str) -> int:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole:
        raise GrammarError(f"{field_name(path)}: {keyword} must be a whole number, not {value!r}")
    return int(value)
