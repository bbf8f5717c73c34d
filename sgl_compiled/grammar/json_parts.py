"""What a JSON value looks like: literals, choices and lists of distinct items, with their counts and sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from math import perm, prod
from typing import TypeAlias

from sgl_compiled.errors import GrammarError, GrammarTooLargeError
from sgl_compiled.grammar.limits import DEFAULT_LIMITS

__all__ = [
    "MAX_CHOICES",
    "Distinct",
    "Part",
    "check_count",
    "check_size",
    "count_of",
    "field_name",
    "length_of",
    "listed",
    "merged",
    "orders",
    "refusal",
    "texts_of",
]

MAX_CHOICES = 10_000
"""Texts of one slot: of a number's range, of a list of variable length, or of alternatives taken together."""
_MAX_BYTES = DEFAULT_LIMITS.max_labels_bytes


@dataclass(frozen=True)
class Distinct:
    """``size`` different choices, separated by ``", "``."""

    choices: tuple[str, ...]
    size: int


Part: TypeAlias = "str | tuple[str, ...] | Distinct"


def listed(items: Sequence[list[Part]]) -> list[Part]:
    """Return a JSON list of items."""
    parts: list[Part] = ["["]
    for index, item in enumerate(items):
        parts += [*([", "] if index else []), *item]
    return [*parts, "]"]


def merged(parts: Sequence[Part]) -> list[Part]:
    """Join neighbouring literals; a slot with one choice is a literal."""
    out: list[Part] = []
    for part in parts:
        text = part[0] if isinstance(part, tuple) and len(part) == 1 else part
        if isinstance(text, str) and out and isinstance(out[-1], str):
            out[-1] += text
        else:
            out.append(text)
    return out


def count_of(parts: Sequence[Part]) -> int:
    """Return the number of texts."""
    return prod(
        perm(len(part.choices), part.size) if isinstance(part, Distinct) else len(part)
        for part in parts
        if not isinstance(part, str)
    )


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
    count = perm(len(part.choices), part.size)
    if count > MAX_CHOICES:
        raise GrammarTooLargeError(
            f"{part.size} different items of {len(part.choices)}, beside other fields, have {count} orders (limit "
            f"{MAX_CHOICES}); choose them in a request of their own"
        )
    return map(", ".join, permutations(part.choices, part.size))


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
