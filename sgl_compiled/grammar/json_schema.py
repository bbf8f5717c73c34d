"""JSON schemas that admit finitely many values, as literals around slots.

Objects write all their properties in the schema's order, arrays their items, with the separators of ``json.dumps``:
one text a value. Properties that the schema does not require are written all the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from math import perm, prod
from typing import Any, TypeAlias

from sgl_compiled.errors import GrammarError, GrammarTooLargeError, UnsupportedError
from sgl_compiled.grammar.actions import checked_form
from sgl_compiled.grammar.form import SlotForm

__all__ = ["MAX_CHOICES", "read_schema", "tools_schema"]

MAX_CHOICES = 10_000
"""Texts of one slot: of a number's range, of a list of variable length, or of alternatives taken together."""
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


@dataclass(frozen=True)
class _Distinct:
    """``size`` different choices, separated by ``", "``."""

    choices: tuple[str, ...]
    size: int


_Part: TypeAlias = "str | tuple[str, ...] | _Distinct"


def read_schema(schema: Mapping[str, Any]) -> SlotForm:
    """Return the slot form of a schema.

    Raises
    ------
    GrammarError
        No value at all, infinitely many, or too many; the message names the field.
    UnsupportedError
        A keyword that is not read.
    """
    parts = _merged(_Reader(schema).parts(schema, (), 0))
    distinct = [part for part in parts if isinstance(part, _Distinct)]
    if len(distinct) == 1 and not any(isinstance(part, tuple) for part in parts):
        at, (one,) = parts.index(distinct[0]), distinct
        before, after = "".join(map(str, parts[:at])), "".join(map(str, parts[at + 1 :]))
        return checked_form((before, *([", "] * (one.size - 1)), after), (one.choices,) * one.size, "distinct")
    literals, slots = [""], list[tuple[str, ...]]()
    for part in parts:
        if isinstance(part, str):
            literals[-1] += part
        else:
            slots.append(part if isinstance(part, tuple) else tuple(_orders(part)))
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
        calls[name] = {"type": "object", "properties": {"name": {"const": name}, "arguments": arguments}}
    return {"anyOf": list(calls.values())}


class _Reader:
    """Reads one schema with its definitions."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        if not isinstance(root, Mapping):
            raise GrammarError("json_schema must be an object")
        self._root = root

    def parts(self, schema: Any, path: tuple[str, ...], depth: int) -> list[_Part]:
        """Return what a value of ``schema`` looks like."""
        if not isinstance(schema, Mapping):
            raise _refusal(path, "has no type, so it admits any value; give it an enum or a type")
        if depth > _MAX_DEPTH:
            raise _refusal(path, f"is nested more than {_MAX_DEPTH} deep, or refers to itself; flatten it")
        kind, read = self._kind(schema, path)
        unread = set(schema) - _ANNOTATIONS - _KEYWORDS[kind] - {"type"}
        if unread:
            names = ", ".join(sorted(map(repr, unread)))
            raise UnsupportedError(
                f"{_name(path)}: the keyword {names} is not read here; write the values out in an enum"
            )
        return read(schema, path, depth)

    def _kind(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> tuple[str, Callable[..., list[_Part]]]:
        for keyword in ("$ref", "const", "enum", "anyOf", "oneOf", "allOf"):
            if keyword in schema:
                return keyword, {"$ref": self._ref, "const": _const, "enum": _enum, "allOf": self._all}.get(
                    keyword, self._any
                )
        kinds: dict[str, Callable[..., list[_Part]]] = {
            "boolean": lambda *_: [("true", "false")],
            "null": lambda *_: ["null"],
            "integer": _integer,
            "array": self._array,
            "object": self._object,
        }
        kind = schema.get("type")
        if isinstance(kind, list):
            return "types", self._types
        if kind in kinds:
            return kind, kinds[kind]
        what = {"string": "any text", "number": "any number"}.get(str(kind), "any value")
        raise _refusal(
            path, f"admits {what}, so it has infinitely many values; list them (Literal[...], an Enum, an enum)"
        )

    def _ref(self, schema: Mapping[str, Any], path: tuple[str, ...], depth: int) -> list[_Part]:
        node: Any = self._root
        for step in str(schema["$ref"]).removeprefix("#/").split("/"):
            node = node.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(node, Mapping) else None
        if node is None:
            raise GrammarError(f"{_name(path)} refers to {schema['$ref']!r}, which the schema does not define")
        return self.parts(node, path, depth + 1)

    def _all(self, schema: Mapping[str, Any], path: tuple[str, ...], depth: int) -> list[_Part]:
        if not isinstance(schema["allOf"], list) or len(schema["allOf"]) != 1:
            raise UnsupportedError(f"{_name(path)}: allOf with several schemas is not read here; merge them")
        return self.parts(schema["allOf"][0], path, depth + 1)

    def _any(self, schema: Mapping[str, Any], path: tuple[str, ...], depth: int) -> list[_Part]:
        options = schema.get("anyOf", schema.get("oneOf"))
        if not isinstance(options, list) or not options:
            raise GrammarError(f"{_name(path)} has no alternatives")
        return self._alternatives(options, path, depth)

    def _types(self, schema: Mapping[str, Any], path: tuple[str, ...], depth: int) -> list[_Part]:
        # A keyword says something about its own type alone.
        options = [
            {"type": kind, **{key: schema[key] for key in _KEYWORDS.get(kind, ()) if key in schema}}
            for kind in map(str, schema["type"])
        ]
        return self._alternatives(options, path, depth)

    def _alternatives(self, options: Sequence[Any], path: tuple[str, ...], depth: int) -> list[_Part]:
        found = [self.parts(option, path, depth + 1) for option in options]
        if len(found) == 1:
            return found[0]
        _check_count(sum(map(_count, found)), path)
        return [tuple(dict.fromkeys(text for parts in found for text in _texts(parts)))]

    def _object(self, schema: Mapping[str, Any], path: tuple[str, ...], depth: int) -> list[_Part]:
        properties = schema.get("properties", {})
        if schema.get("additionalProperties", False) is not False or not isinstance(properties, Mapping):
            raise _refusal(path, "admits any keys; name them as fields of a model")
        parts: list[_Part] = ["{"]
        for index, (name, value) in enumerate(properties.items()):
            parts.append((", " if index else "") + json.dumps(name, ensure_ascii=False) + ": ")
            parts += self.parts(value, (*path, name), depth + 1)
        return [*parts, "}"]

    def _array(self, schema: Mapping[str, Any], path: tuple[str, ...], depth: int) -> list[_Part]:
        first = [self.parts(item, path, depth + 1) for item in schema.get("prefixItems", ())]
        least = _whole(schema.get("minItems", 0), path, "minItems")
        if first:
            if schema.get("items", False) is not False and schema.get("maxItems") != len(first):
                raise UnsupportedError(f"{_name(path)}: items behind prefixItems are not read here; drop one of them")
            return _listed(first)
        item = self.parts(schema.get("items"), path, depth + 1)
        unique = bool(schema.get("uniqueItems", False))
        most = _whole(schema.get("maxItems", _count(item) if unique else None), path, "maxItems")
        if unique:
            _check_count(_count(item), path)
            choices = tuple(dict.fromkeys(_texts(item)))
            most = min(most, len(choices))
        if least > most:
            raise GrammarError(f"{_name(path)} cannot hold {least} items (at most {most}); lower minItems")
        if least == most and not unique:
            return _listed([item] * least)
        if least == most and least > 0:
            return ["[", _Distinct(choices, least), "]"]
        sizes = range(least, most + 1)
        count = _count(item)
        total = 0
        for size in sizes:
            total += perm(count, size) if unique else count**size
            _check_count(total, path)
        texts = tuple(_texts(item))
        chosen = (
            row for size in sizes for row in (permutations(texts, size) if unique else product(texts, repeat=size))
        )
        return [tuple("[" + ", ".join(row) + "]" for row in chosen)]


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


def _const(schema: Mapping[str, Any], path: tuple[str, ...], _: int) -> list[_Part]:
    return [_dumps(schema["const"], path)]


def _enum(schema: Mapping[str, Any], path: tuple[str, ...], _: int) -> list[_Part]:
    values = schema["enum"]
    if not isinstance(values, list) or not values:
        raise GrammarError(f"{_name(path)} has an empty enum; give it at least one value")
    return [tuple(dict.fromkeys(_dumps(value, path) for value in values))]


def _integer(schema: Mapping[str, Any], path: tuple[str, ...], _: int) -> list[_Part]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None and "exclusiveMinimum" in schema:
        low = _whole(schema["exclusiveMinimum"], path, "exclusiveMinimum") + 1
    if high is None and "exclusiveMaximum" in schema:
        high = _whole(schema["exclusiveMaximum"], path, "exclusiveMaximum") - 1
    if low is None or high is None:
        raise _refusal(path, "admits integers without bound; give both ends, as in Field(ge=0, le=10)")
    low, high = _whole(low, path, "minimum"), _whole(high, path, "maximum")
    step = _whole(schema.get("multipleOf", 1), path, "multipleOf")
    first = -(-low // step) * step if step > 0 else low
    _check_count((high - first) // max(step, 1) + 1, path)
    values = tuple(str(value) for value in range(first, high + 1, max(step, 1)))
    if not values:
        raise GrammarError(f"{_name(path)} admits no integer: {low} is above {high}")
    return [values]


def _dumps(value: Any, path: tuple[str, ...]) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise GrammarError(f"{_name(path)} holds {value!r}, which is no JSON value: {error}") from None


def _whole(value: Any, path: tuple[str, ...], keyword: str) -> int:
    if value is None:
        raise _refusal(path, f"is a list without {keyword}, so it has infinitely many values; give it a length")
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise GrammarError(f"{_name(path)}: {keyword} must be a whole number, not {value!r}")
    return int(value)


def _listed(items: Sequence[list[_Part]]) -> list[_Part]:
    parts: list[_Part] = ["["]
    for index, item in enumerate(items):
        parts += [*([", "] if index else []), *item]
    return [*parts, "]"]


def _merged(parts: Sequence[_Part]) -> list[_Part]:
    """Join neighbouring literals; a slot with one choice is a literal."""
    out: list[_Part] = []
    for part in parts:
        text = part[0] if isinstance(part, tuple) and len(part) == 1 else part
        if isinstance(text, str) and out and isinstance(out[-1], str):
            out[-1] += text
        else:
            out.append(text)
    return out


def _count(parts: Sequence[_Part]) -> int:
    return prod(
        perm(len(part.choices), part.size) if isinstance(part, _Distinct) else len(part)
        for part in parts
        if not isinstance(part, str)
    )


def _texts(parts: Sequence[_Part]) -> Iterator[str]:
    """Every text of a value; only for counts that were checked."""
    choices: list[Sequence[str]] = []
    for part in parts:
        choices.append([part] if isinstance(part, str) else part if isinstance(part, tuple) else list(_orders(part)))
    return map("".join, product(*choices))


def _orders(part: _Distinct) -> Iterator[str]:
    count = perm(len(part.choices), part.size)
    if count > MAX_CHOICES:
        raise GrammarTooLargeError(
            f"{part.size} different items of {len(part.choices)}, beside other fields, have {count} orders (limit "
            f"{MAX_CHOICES}); choose them in a request of their own"
        )
    return map(", ".join, permutations(part.choices, part.size))


def _check_count(count: int, path: tuple[str, ...]) -> None:
    if count > MAX_CHOICES:
        raise GrammarTooLargeError(
            f"{_name(path)} has more than {MAX_CHOICES} values; narrow it, or split it into fields"
        )


def _refusal(path: tuple[str, ...], reason: str) -> GrammarError:
    return GrammarError(f"{_name(path)} {reason}")


def _name(path: tuple[str, ...]) -> str:
    return f"field {'.'.join(path)!r}" if path else "the value"
