"""What a JSON value looks like: literals, choices and lists of distinct items, with their counts and sizes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, permutations, product
from typing import Any, TypeAlias

from sgl_compiled.errors import GrammarError, GrammarTooLargeError
from sgl_compiled.grammar.limits import DEFAULT_LIMITS

__all__ = [
    "MAX_CHOICES",
    "Budget",
    "Distinct",
    "Part",
    "arrangements",
    "check_count",
    "check_size",
    "count_of",
    "field_name",
    "length_of",
    "listed",
    "merged",
    "of_type",
    "orders",
    "refusal",
    "texts_of",
    "value_of",
]

MAX_CHOICES = 10_000
"""Texts of one slot: of a number's range, of a list of variable length, or of alternatives taken together."""
_MAX_BYTES = DEFAULT_LIMITS.max_labels_bytes
_MAX_NODES = 5_000
# Both are above what the limits of a grammar let through: alternatives count by themselves and again all together.
_MAX_TEXTS = 1_000_000
_MAX_READ_BYTES = 4 * _MAX_BYTES


@dataclass(frozen=True)
class Distinct:
    """``size`` different choices, separated by ``", "``."""

    choices: tuple[str, ...]
    size: int


Part: TypeAlias = "str | tuple[str, ...] | Distinct"


class Budget:
    """What the fields of a schema have been spelled out to, all together: each alone may be small enough."""

    def __init__(self) -> None:
        self._nodes = self._texts = self._bytes = 0

    def node(self, path: tuple[str, ...]) -> None:
        """Count a schema, as often as it is referred to."""
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise GrammarTooLargeError(
                f"{field_name(path)}: the schema spells out to more than {_MAX_NODES} parts; flatten it"
            )

    def spend(self, texts: int, size: int, path: tuple[str, ...]) -> None:
        """Count texts and their bytes."""
        self._texts += texts
        self._bytes += size
        if self._texts > _MAX_TEXTS or self._bytes > _MAX_READ_BYTES:
            raise GrammarTooLargeError(
                f"{field_name(path)}: the fields up to this one hold more than {_MAX_TEXTS} values or "
                f"{_MAX_READ_BYTES} bytes in all; narrow them, or split the schema into several requests"
            )

    def slot(self, texts: Iterable[str], path: tuple[str, ...]) -> list[Part]:
        """Return a slot of these texts."""
        choices = tuple(dict.fromkeys(texts))
        self.spend(len(choices), sum(map(len, choices)), path)
        return [choices]


def listed(items: Sequence[list[Part]]) -> list[Part]:
    """Return a JSON list of items."""
    parts: list[Part] = ["["]
    for index, item in enumerate(items):
        parts += [*([", "] if index else []), *item]
    return [*parts, "]"]


def merged(parts: Sequence[Part]) -> list[Part]:
    """Join neighbouring literals; a slot with one choice is a literal."""
    texts = (part[0] if isinstance(part, tuple) and len(part) == 1 else part for part in parts)
    out: list[Part] = []
    for literal, group in groupby(texts, key=lambda part: isinstance(part, str)):
        run = list(group)
        out += ["".join(map(str, run))] if literal else run
    return out


def arrangements(count: int, size: int, unique: bool) -> int:
    """Return how many lists of ``size`` items there are; numbers above ``MAX_CHOICES`` are not told apart."""
    if count == 1 and not unique:
        return 1
    rows = 1
    for taken in range(size):
        rows *= count - taken if unique else count
        if not 0 < rows <= MAX_CHOICES:
            break
    return min(rows, MAX_CHOICES + 1)


def count_of(parts: Sequence[Part]) -> int:
    """Return the number of texts; numbers above ``MAX_CHOICES`` are not told apart."""
    count = 1
    for part in parts:
        if isinstance(part, Distinct):
            count *= arrangements(len(part.choices), part.size, True)
        elif isinstance(part, tuple):
            count *= len(part)
        count = min(count, MAX_CHOICES + 1)
    return count


def length_of(parts: Sequence[Part]) -> int:
    """Characters of the longest text."""
    total = 0
    for part in parts:
        if isinstance(part, Distinct):
            total += part.size * (max(map(len, part.choices)) + 2)
        else:
            total += len(part) if isinstance(part, str) else max(map(len, part))
    return total


def texts_of(parts: Sequence[Part]) -> Iterator[str]:
    """Every text of a value; only for counts that were checked."""
    choices: list[Sequence[str]] = []
    for part in parts:
        choices.append([part] if isinstance(part, str) else part if isinstance(part, tuple) else list(orders(part)))
    return map("".join, product(*choices))


def orders(part: Distinct) -> Iterator[str]:
    """Every order of distinct items."""
    if arrangements(len(part.choices), part.size, True) > MAX_CHOICES:
        raise GrammarTooLargeError(
            f"{part.size} different items of {len(part.choices)}, beside other fields, have more than {MAX_CHOICES} "
            "orders; choose them in a request of their own"
        )
    return map(", ".join, permutations(part.choices, part.size))


def value_of(text: str, path: tuple[str, ...]) -> str:
    """Return the same for all texts of one JSON value: ``1`` and ``1.0``, the members of an object in any order."""
    try:
        return json.dumps(_DECODER.decode(text), sort_keys=True)
    except RecursionError:
        raise refusal(path, "holds values that are nested too deep to be compared; flatten them") from None


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


_DECODER = json.JSONDecoder(parse_float=_number)


def of_type(parts: list[Part], kind: Any, path: tuple[str, ...]) -> list[Part]:
    """Keep the values of a JSON type, or of one of a list of types."""
    kinds, first = kind if isinstance(kind, list) else [kind], parts[0]
    assert not isinstance(first, Distinct)
    if isinstance(first, tuple):
        fitting = tuple(text for text in first if any(one in _types_of(text) for one in kinds))
        parts = [fitting] if fitting else []
    elif not any(one in _types_of(first) for one in kinds):
        # The beginning tells: only objects and arrays have further parts.
        parts = []
    if not parts:
        raise refusal(path, f"holds no value of its type {kind!r}; drop the type")
    return parts


def _types_of(text: str) -> tuple[str, ...]:
    """Names of the types of a JSON value."""
    names = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}
    if text[0] in names:
        return (names[text[0]],)
    return ("integer", "number") if text.lstrip("-").isdigit() or float(text).is_integer() else ("number",)


def check_size(count: int, size: int, path: tuple[str, ...]) -> None:
    """Refuse what would hold too many texts, or too many bytes in all."""
    check_count(count, path)
    if size > _MAX_BYTES:
        raise GrammarTooLargeError(f"the values of {field_name(path)} hold more than {_MAX_BYTES} bytes; shorten them")


def check_count(count: int, path: tuple[str, ...]) -> None:
    """Refuse too many texts for one slot."""
    if count > MAX_CHOICES:
        raise GrammarTooLargeError(
            f"{field_name(path)} has more than {MAX_CHOICES} values; narrow it, or split it into fields"
        )


def refusal(path: tuple[str, ...], reason: str) -> GrammarError:
    """Return an error that names the field."""
    return GrammarError(f"{field_name(path)} {reason}")


def field_name(path: tuple[str, ...]) -> str:
    """Return how messages call a field."""
    return f"field {'.'.join(path)!r}" if path else "the value"
