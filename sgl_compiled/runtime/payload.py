"""The probe's description on its way to the scheduler, inside ``sampling_params.custom_params``.

SGLang 0.5.15 sends custom parameters as msgpack with scalar lists only, so the tree travels as flat integer lists.
A client could write the same keys into a plain request; :func:`decode` therefore trusts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sgl_compiled.grammar.layout import ROOT, TreeLayout

__all__ = ["Probe", "decode", "encode", "encode_star"]

_PREFIX = "sgl_compiled_"
_KEYS = ("base", "parents", "rows", "legal", "counts", "keep")


@dataclass(frozen=True)
class Probe:
    """A tree behind a prompt.

    Attributes
    ----------
    base : int
        Prompt tokens (with the answer tokens already taken); the tree's tokens follow them in ``input_ids``.
    parents : tuple of int, length n_positions
    rows : tuple of int
        Positions whose logits are read; -1 is the last prompt token.
    legal : tuple of tuple of int
        For each row the legal ids.
    keep : bool
        Put the greedy path's KV into the radix cache.
    """

    base: int
    parents: tuple[int, ...]
    rows: tuple[int, ...]
    legal: tuple[tuple[int, ...], ...]
    keep: bool = True

    def depths(self) -> list[int]:
        """Distance of each tree token from the prompt; 0 for a child of the prompt."""
        out: list[int] = []
        for parent in self.parents:
            out.append(0 if parent == ROOT else out[parent] + 1)
        return out

    def without_tree(self) -> Probe:
        """Return the prompt's own row alone: what is left when the tree does not fit beside an uncached prompt."""
        head = 1 if self.rows[:1] == (ROOT,) else 0
        return Probe(self.base, (), self.rows[:head], self.legal[:head], self.keep)


def encode(layout: TreeLayout, base: int, *, keep: bool = True) -> dict[str, Any]:
    """Return the custom parameters of a probe."""
    values: tuple[Any, ...] = (
        base,
        list(layout.parents),
        [row.node for row in layout.rows],
        [token for row in layout.rows for token in row.legal],
        [len(row.legal) for row in layout.rows],
        keep,
    )
    return {_PREFIX + key: value for key, value in zip(_KEYS, values, strict=True)}


def encode_star(base: int, positions: int, rows: int) -> dict[str, Any]:
    """Return the custom parameters of a tree in which every position hangs on the prompt: a pass of a given size."""
    nodes = list(range(ROOT, rows - 1))
    values: tuple[Any, ...] = (base, [ROOT] * positions, nodes, [0] * rows, [1] * rows, False)
    return {_PREFIX + key: value for key, value in zip(_KEYS, values, strict=True)}


def decode(custom: Any, input_len: int, vocab_size: int) -> Probe | None:
    """Read a probe back; ``None`` if the parameters are not ours or not well formed.

    Parameters
    ----------
    custom : Any
        ``sampling_params.custom_params``.
    input_len : int
        Number of input ids of the request: prompt and tree.
    vocab_size : int
        Width of the logits.
    """
    if not isinstance(custom, Mapping) or _PREFIX + "base" not in custom:
        return None
    base, keep = custom.get(_PREFIX + "base"), custom.get(_PREFIX + "keep")
    parents, rows, legal, counts = (_ints(custom.get(_PREFIX + key)) for key in _KEYS[1:-1])
    if type(base) is not int or parents is None or rows is None or legal is None or counts is None:
        return None
    if base < 1 or base + len(parents) != input_len or not rows or len(rows) != len(counts):
        return None
    if any(not ROOT <= parent < index for index, parent in enumerate(parents)):
        return None
    if any(not ROOT <= row < len(parents) for row in rows) or any(a >= b for a, b in zip(rows, rows[1:], strict=False)):
        return None
    if any(count < 1 for count in counts) or sum(counts) != len(legal):
        return None
    if any(not 0 <= token < vocab_size for token in legal):
        return None
    groups, at = [], 0
    for count in counts:
        groups.append(tuple(legal[at : at + count]))
        at += count
    return Probe(base, tuple(parents), tuple(rows), tuple(groups), bool(keep))


def _ints(values: Any) -> list[int] | None:
    if not isinstance(values, Sequence) or isinstance(values, str | bytes) or any(type(v) is not int for v in values):
        return None
    return list(values)
