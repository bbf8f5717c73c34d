"""Which rows of a forward batch belong to trees: positions and masks, once a forward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from sgl_compiled.grammar.layout import ROOT
from sgl_compiled.runtime.admission import probe_of
from sgl_compiled.runtime.masks import extend_mask
from sgl_compiled.runtime.payload import Probe
from sgl_compiled.runtime.transfer import to_device

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch

__all__ = ["ProbeSlice", "TreeBatch", "init_new", "tree_batch_of"]


@dataclass(frozen=True)
class ProbeSlice:
    """One probe inside an extend batch.

    Attributes
    ----------
    index : int
        Its place among the batch's requests.
    start : int
        First of its rows among the batch's extend tokens.
    prefix_len : int
        Cached tokens before its rows.
    prompt_rows : int
        New prompt tokens; the tree's tokens follow them.
    probe : Probe
    """

    index: int
    start: int
    prefix_len: int
    prompt_rows: int
    probe: Probe

    @cached_property
    def mask(self) -> torch.Tensor:
        """Bool mask of shape (rows, prefix + rows); True = may attend."""
        return torch.from_numpy(extend_mask(self.prompt_rows, self.prefix_len, self.probe.parents))

    @cached_property
    def bias(self) -> torch.Tensor:
        """The mask as an additive float32 bias, made once for all layers."""
        return torch.zeros(self.mask.shape).masked_fill_(~self.mask, float("-inf"))

    @cached_property
    def row_indices(self) -> list[int]:
        """The decision rows, as indices of the batch's extend tokens."""
        first = self.start + self.prompt_rows
        return [first + row for row in self.probe.rows]


@dataclass(frozen=True)
class TreeBatch:
    """All probes of one forward batch."""

    slices: tuple[ProbeSlice, ...]
    size: int

    @cached_property
    def by_index(self) -> dict[int, ProbeSlice]:
        """The slices by request index."""
        return {piece.index: piece for piece in self.slices}

    @cached_property
    def has_branches(self) -> bool:
        """Whether any probe still has its tree; without one the batch is plainly causal."""
        return any(piece.probe.parents for piece in self.slices)


def tree_batch_of(forward_batch: Any) -> TreeBatch | None:
    """Return the batch's trees, or ``None``."""
    found = getattr(forward_batch, "cross_attention_custom_mask", None)
    return found if isinstance(found, TreeBatch) else None


def init_new(
    original: Callable[..., ForwardBatch], cls: type[ForwardBatch], batch: ScheduleBatch, model_runner: Any
) -> ForwardBatch:
    """Give tree tokens the position of their depth: ``ForwardBatch.init_new``.

    The trees ride in ``cross_attention_custom_mask``, a declared field that decoder models leave unused: unlike
    ad-hoc attributes it survives the copies SGLang makes of a forward batch.
    """
    forward_batch = original(cls, batch, model_runner)
    if not batch.forward_mode.is_extend():
        return forward_batch
    slices = _slices(batch)
    if not slices:
        return forward_batch
    positions = forward_batch.positions
    for piece in slices:
        if piece.probe.parents:
            first = piece.start + piece.prompt_rows
            depths = to_device(piece.probe.depths(), positions.device, positions.dtype)
            positions[first : first + len(depths)] = depths + piece.probe.base
    forward_batch.cross_attention_custom_mask = TreeBatch(slices, len(batch.reqs))
    return forward_batch


def _slices(batch: ScheduleBatch) -> tuple[ProbeSlice, ...]:
    out, start = [], 0
    for index, (req, prefix_len, extend_len) in enumerate(
        zip(batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True)
    ):
        probe = probe_of(req)
        # A prompt that is still being computed in chunks has no row to read yet.
        if probe is not None and prefix_len + extend_len == probe.base + len(probe.parents):
            prompt_rows = probe.base - prefix_len
            assert prompt_rows >= (1 if probe.rows[:1] == (ROOT,) else 0)
            out.append(ProbeSlice(index, start, prefix_len, prompt_rows, probe))
        start += extend_len
    return tuple(out)
