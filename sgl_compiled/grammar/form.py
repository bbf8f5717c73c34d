"""The normal form of a finite choice: literals around slots, one choice a slot."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations, combinations_with_replacement, permutations, product
from math import comb, perm
from typing import Literal

from sgl_compiled.errors import GrammarError, GrammarTooLargeError
from sgl_compiled.grammar.limits import DEFAULT_LIMITS

__all__ = ["TEMPLATES", "Constraint", "SlotForm", "Template", "size_of"]

Constraint = Literal["free", "distinct", "increasing", "nondecreasing"]


@dataclass(frozen=True)
class Template:
    """How chosen labels are written: ``prefix label separator label ... suffix``.

    Parameters
    ----------
    prefix, separator, suffix : str
        Literal text around the labels.
    escape : {"json", "none"}
        ``"json"`` writes each label as the inside of a JSON string (non-ASCII kept as it is).
    """

    prefix: str
    separator: str
    suffix: str
    escape: Literal["json", "none"] = "none"

    def write(self, label: str) -> str:
        """Return ``label`` as it appears in an answer."""
        return json.dumps(label, ensure_ascii=False)[1:-1] if self.escape == "json" else label


TEMPLATES: dict[str, Template] = {
    "json": Template('["', '", "', '"]', "json"),
    "raw": Template("", ", ", "", "none"),
}


@dataclass(frozen=True)
class SlotForm:
    """A finite language ``literals[0] slot literals[1] slot ... literals[n]``.

    Parameters
    ----------
    literals : tuple of str, length n + 1
    slots : tuple of tuple of str, length n
        The choices of each slot as they are written.
    constraint : {"free", "distinct", "increasing", "nondecreasing"}
        Relation between the choice indices of consecutive slots; anything but ``"free"`` needs equal slots.
    """

    literals: tuple[str, ...]
    slots: tuple[tuple[str, ...], ...]
    constraint: Constraint = "free"

    def __post_init__(self) -> None:
        assert len(self.literals) == len(self.slots) + 1
        assert self.constraint == "free" or len(set(self.slots)) <= 1

    def __len__(self) -> int:
        return len(self.slots)

    @cached_property
    def count(self) -> int:
        """Number of choice sequences, computed without unrolling them."""
        n, k = len(self.slots), len(self.slots[0]) if self.slots else 0
        if self.constraint == "distinct":
            return perm(k, n)
        if self.constraint == "increasing":
            return comb(k, n)
        if self.constraint == "nondecreasing":
            return comb(k + n - 1, n)
        total = 1
        for choices in self.slots:
            total *= len(choices)
        return total

    @property
    def size(self) -> int:
        """Bytes of all answers together, computed without unrolling them."""
        # Over all slots together every choice is taken equally often, whatever the constraint.
        chosen = sum((Fraction(sum(map(size_of, choices)), len(choices)) for choices in self.slots), Fraction())
        return int(self.count * (sum(map(size_of, self.literals)) + chosen))

    @property
    def longest(self) -> int:
        """Bytes of an answer of the longest choices; with ``"distinct"`` there need not be one so long."""
        return sum(map(size_of, self.literals)) + sum(max(map(size_of, choices)) for choices in self.slots)

    def around(self, slot: int, left: int = 0, right: int = 0) -> tuple[str, str]:
        """Return the text on either side of a slot, up to and with its neighbours' choices ``left`` and ``right``."""
        before, after = self.literals[slot], self.literals[slot + 1]
        if slot > 0:
            before = self.literals[slot - 1] * (slot == 1) + self.slots[slot - 1][left] + before
        if slot + 1 < len(self):
            after += self.slots[slot + 1][right] + self.literals[slot + 2] * (slot + 2 == len(self))
        return before, after

    def allowed(self, chosen: tuple[int, ...]) -> int:
        """Bit mask of the choices that slot ``len(chosen)`` may still take.

        A choice that would leave a later slot without one is not allowed: the walk has no dead ends.
        """
        slot = len(chosen)
        size = len(self.slots[slot])
        full = (1 << size) - 1
        if self.constraint == "free":
            return full
        if self.constraint == "distinct":
            for index in chosen:
                full &= ~(1 << index)
            return full
        low = 0
        if chosen:
            low = chosen[-1] + (self.constraint == "increasing")
        high = size - (len(self.slots) - slot - 1) if self.constraint == "increasing" else size
        return full & ~((1 << low) - 1) & ((1 << high) - 1)

    def text(self, chosen: tuple[int, ...]) -> str:
        """Return the answer that spells the choice indices ``chosen``."""
        parts = [self.literals[0]]
        for slot, index in enumerate(chosen):
            parts += (self.slots[slot][index], self.literals[slot + 1])
        return "".join(parts)

    def sequences(self) -> Iterator[tuple[int, ...]]:
        """Every choice sequence in lexicographic order; only for languages whose ``count`` is small."""
        if self.constraint == "free":
            return product(*(range(len(choices)) for choices in self.slots))
        indices, slots = range(len(self.slots[0])), len(self.slots)
        if self.constraint == "distinct":
            return permutations(indices, slots)
        if self.constraint == "increasing":
            return combinations(indices, slots)
        return combinations_with_replacement(indices, slots)

    def check_unambiguous(self) -> None:
        """Refuse labels from which two different choice sequences can be read back as the same text.

        Raises
        ------
        GrammarError
            Names the label and the separator that meets it.
        GrammarTooLargeError
            A separator so long, beside so many labels, that the check would take too long.
        """
        # Most slots of a label grammar are alike.
        for separator, choices in dict.fromkeys(zip(self.literals[1:-1], self.slots, strict=False)):
            if separator:
                _check_separator(separator, choices)
            else:
                _check_prefixes(choices)


def size_of(text: str) -> int:
    """Bytes of a text."""
    return len(text.encode())


def _check_separator(separator: str, choices: tuple[str, ...]) -> None:
    if len(choices) * len(separator) > DEFAULT_LIMITS.max_window_bytes:
        raise GrammarTooLargeError(
            f"a separator of {len(separator)} characters is too long beside {len(choices)} labels; shorten it"
        )
    for choice in choices:
        fenced = separator + choice + separator
        if fenced.find(separator, 1) != len(separator) + len(choice):
            raise GrammarError(
                f"label {choice!r} contains or overlaps the separator {separator!r}, so the answer could "
                "not be read back; use the JSON template, another separator, or another label"
            )


def _check_prefixes(choices: tuple[str, ...]) -> None:
    ordered = sorted(choices)
    for left, right in zip(ordered, ordered[1:], strict=False):
        if right.startswith(left):
            raise GrammarError(
                f"with an empty separator label {left!r} must not be a prefix of {right!r}: the answer "
                "could not be read back; give the template a separator"
            )
