"""One mask for a whole extend batch, as attention kernels take it: flat, request after request, row after row.

Kernels with a custom mask take it for every request of the batch or for none, so requests without a tree get their
causal mask spelled out. The host only says how many leading keys each row attends to and which few further ones (its
ancestors in the tree); the bits themselves are written on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sgl_compiled.runtime.forward import TreeBatch
from sgl_compiled.runtime.transfer import to_device

__all__ = ["BatchMask", "MaskLayout", "ancestor_pairs", "batch_mask"]


@dataclass(frozen=True)
class MaskLayout:
    """What the host knows of a batch's mask.

    Attributes
    ----------
    shapes : tuple of (int, int)
        Rows (extend tokens) and columns (all tokens) of each request.
    limits : ndarray of int64, shape (n_rows,)
        Leading keys that each row of the batch attends to.
    bits : ndarray of int64
        Flat index of every further True: a tree row's ancestors and the row itself.
    """

    shapes: tuple[tuple[int, int], ...]
    limits: npt.NDArray[np.int64]
    bits: npt.NDArray[np.int64]

    @classmethod
    def of(cls, trees: TreeBatch, extend_lens: Sequence[int], prefix_lens: Sequence[int]) -> MaskLayout:
        """Lay out the mask of a batch; lengths are per request, in tokens."""
        shapes, limits, bits = [], [], [np.empty(0, np.int64)]
        offset = 0
        for index, (rows, prefix) in enumerate(zip(extend_lens, prefix_lens, strict=True)):
            columns = prefix + rows
            limit = np.arange(prefix + 1, columns + 1, dtype=np.int64)
            piece = trees.by_index.get(index)
            if piece is not None and piece.probe.parents:
                base = prefix + piece.prompt_rows
                assert (prefix, columns) == (piece.prefix_len, base + len(piece.probe.parents))
                limit[piece.prompt_rows :] = base
                row, ancestor = ancestor_pairs(piece.probe.parents)
                bits.append(offset + (piece.prompt_rows + row) * columns + base + ancestor)
            shapes.append((rows, columns))
            limits.append(limit)
            offset += rows * columns
        return cls(tuple(shapes), np.concatenate(limits), np.concatenate(bits))

    def build(self, device: torch.device) -> BatchMask:
        """Write the mask on ``device``: one copy of the layout, then one kernel a request and one for all trees."""
        lengths = [rows * columns for rows, columns in self.shapes]
        # FlashInfer and Triton keep offsets of a mask in 32 bits.
        assert sum(lengths) < 2**31
        sent = to_device(np.concatenate([self.limits, self.bits]), device)
        limits, bits = sent[: len(self.limits)].unsqueeze(1), sent[len(self.limits) :]
        columns_of = torch.arange(max(columns for _, columns in self.shapes), device=device)
        flat = torch.empty(sum(lengths), dtype=torch.bool, device=device)
        row = offset = 0
        for (rows, columns), length in zip(self.shapes, lengths, strict=True):
            view = flat[offset : offset + length].view(rows, columns)
            torch.lt(columns_of[:columns], limits[row : row + rows], out=view)
            row += rows
            offset += length
        flat.index_fill_(0, bits, True)
        return BatchMask(flat, self.shapes)


@dataclass(frozen=True)
class BatchMask:
    """A mask and the shapes it was made for.

    Attributes
    ----------
    flat : Tensor of bool, shape (sum of rows * columns,)
        True = may attend.
    shapes : tuple of (int, int)
        Rows and columns of each request.
    """

    flat: torch.Tensor
    shapes: tuple[tuple[int, int], ...]

    @property
    def offsets(self) -> list[int]:
        """Where each request's mask starts, and the end of the last."""
        out = [0]
        for rows, columns in self.shapes:
            out.append(out[-1] + rows * columns)
        return out

    def check(self, extend_lens: Sequence[int], total_lens: Sequence[int]) -> None:
        """Compare with the batch about to run; kernels do not, and read past the end of a mask that is too short.

        Raises
        ------
        ValueError
            A request's mask has another shape than (extend tokens, all tokens).
        """
        expected = tuple(zip(extend_lens, total_lens, strict=True))
        if self.shapes != expected:
            raise ValueError(f"tree mask of shapes {self.shapes} for a batch of shapes {expected}")
        if self.flat.dtype != torch.bool or self.flat.shape != (self.offsets[-1],):
            raise ValueError(
                f"tree mask of {tuple(self.flat.shape)} {self.flat.dtype} where {self.offsets[-1]} bools are needed"
            )


def ancestor_pairs(parents: Sequence[int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return ``(row, ancestor)`` for every tree token and each token on its path, itself included.

    Parameters
    ----------
    parents : sequence of int
        Index of each token's parent, -1 for a child of the prompt; parents stand before their children.
    """
    above = np.asarray(parents, dtype=np.int64)
    # Causal kernels stop at a row's own position, so an ancestor behind its descendant would be missed.
    assert (above < np.arange(len(above))).all()
    row = at = np.arange(len(above), dtype=np.int64)
    rows, ancestors = [row], [at]
    while len(row):
        up = above[at]
        row, at = row[up >= 0], up[up >= 0]
        rows.append(row)
        ancestors.append(at)
    return np.concatenate(rows), np.concatenate(ancestors)


def batch_mask(trees: TreeBatch, forward_batch: Any) -> BatchMask:
    """Build and check the mask of a forward batch that holds at least one tree."""
    extend_lens = [int(length) for length in forward_batch.extend_seq_lens_cpu]
    prefix_lens = [int(length) for length in forward_batch.extend_prefix_lens_cpu]
    mask = MaskLayout.of(trees, extend_lens, prefix_lens).build(forward_batch.positions.device)
    mask.check(extend_lens, forward_batch.seq_lens_cpu.tolist())
    return mask
