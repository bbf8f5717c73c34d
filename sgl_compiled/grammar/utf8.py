"""Unicode scalar ranges as sequences of UTF-8 byte ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

__all__ = ["MAX_SCALAR", "ByteRange", "ScalarRange", "byte_sequences", "complement", "normalise"]

ScalarRange = tuple[int, int]
"""Inclusive range of code points."""
ByteRange = tuple[int, int]
"""Inclusive range of byte values."""

MAX_SCALAR = 0x10FFFF
_LENGTH_BOUNDS = (0x7F, 0x7FF, 0xFFFF, MAX_SCALAR)
_SURROGATES = (0xD800, 0xDFFF)


def normalise(ranges: Iterable[ScalarRange]) -> tuple[ScalarRange, ...]:
    """Sort and merge ranges, and cut the surrogates out, which UTF-8 cannot spell."""
    merged: list[ScalarRange] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(piece for scalar_range in merged for piece in _without_surrogates(scalar_range))


def complement(ranges: Iterable[ScalarRange]) -> tuple[ScalarRange, ...]:
    """Return all other scalar values."""
    gaps: list[ScalarRange] = []
    start = 0
    for low, high in sorted(ranges):
        if start < low:
            gaps.append((start, low - 1))
        start = max(start, high + 1)
    if start <= MAX_SCALAR:
        gaps.append((start, MAX_SCALAR))
    return normalise(gaps)


def byte_sequences(scalar_range: ScalarRange) -> Iterator[tuple[ByteRange, ...]]:
    """Split one range into byte-range sequences whose products are exactly its UTF-8 encodings.

    The range must hold no surrogate (see `normalise`).
    """
    pending = [scalar_range]
    while pending:
        low, high = pending.pop()
        cut = _first_cut(low, high)
        if cut is None:
            first, last = chr(low).encode(), chr(high).encode()
            yield tuple(zip(first, last, strict=True))
        else:
            pending += [(cut, high), (low, cut - 1)]


def _first_cut(low: int, high: int) -> int | None:
    """Smallest start of a second piece, or None when the range is one product of byte ranges already."""
    for bound in _LENGTH_BOUNDS:
        if low <= bound < high:
            return bound + 1
    if high <= _LENGTH_BOUNDS[0]:
        return None
    for bits in (6, 12, 18):
        block = (1 << bits) - 1
        # Trailing bytes must run over their whole 80..BF range wherever the leading ones differ.
        if low >> bits != high >> bits:
            if low & block:
                return (low | block) + 1
            if high & block != block:
                return high & ~block
    return None


def _without_surrogates(scalar_range: ScalarRange) -> Iterator[ScalarRange]:
    low, high = scalar_range
    first, last = _SURROGATES
    if low < first:
        yield low, min(high, first - 1)
    if high > last:
        yield max(low, last + 1), high
