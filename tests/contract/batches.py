"""Extend batches for the attention contract tests, with masks and positions spelled out by brute force."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from sgl_compiled.runtime.forward import ProbeSlice, TreeBatch
from sgl_compiled.runtime.payload import Probe

FLAT = (-1, -1, -1)
CHAIN = (-1, 0, 1, 2)
FORK = (-1, -1, 0, 0, 1, 1, 2, 6, 7)
DEPTH_FIRST = (-1, 0, 1, 0, -1, 4, 4)
WIDE = tuple([-1] * 20 + [parent for parent in range(20) for _ in range(19)])
BINARY = tuple((index - 2) // 2 if index > 1 else -1 for index in range(255))


@dataclass(frozen=True)
class Part:
    """One request of a batch: cached tokens, new prompt tokens, tree (``None``: not a probe)."""

    prefix: int
    prompt: int
    parents: tuple[int, ...] | None = None

    @property
    def rows(self) -> int:
        return self.prompt + len(self.parents or ())

    @property
    def total(self) -> int:
        return self.prefix + self.rows

    def probe(self) -> Probe:
        assert self.parents is not None
        rows = tuple(range(-1 if self.prompt else 0, len(self.parents)))
        return Probe(self.prefix + self.prompt, self.parents, rows, tuple((1, 2) for _ in rows))


@dataclass(frozen=True)
class Case:
    """One extend batch."""

    name: str
    parts: tuple[Part, ...]
    page_size: int = 1
    masked: bool = True
    trees: TreeBatch = field(init=False, repr=False)

    def __post_init__(self) -> None:
        slices, start = [], 0
        for index, part in enumerate(self.parts):
            if part.parents is not None:
                slices.append(ProbeSlice(index, start, part.prefix, part.prompt, part.probe()))
            start += part.rows
        object.__setattr__(self, "trees", TreeBatch(tuple(slices), len(self.parts)))

    @property
    def extend_lens(self) -> list[int]:
        return [part.rows for part in self.parts]

    @property
    def totals(self) -> list[int]:
        return [part.total for part in self.parts]

    def reference_masks(self) -> list[np.ndarray[Any, Any]]:
        """Each request's mask, cell by cell."""
        return [_mask(part) for part in self.parts]

    def reference_positions(self) -> list[int]:
        out = []
        for part in self.parts:
            base = part.prefix + part.prompt
            out += range(part.prefix, base)
            out += [base + len(_path(part.parents or (), node)) - 1 for node in range(len(part.parents or ()))]
        return out

    def slots(self, device: str = "cpu") -> torch.Tensor:
        """A slot table of scattered pages; inside a page, slots are consecutive."""
        width = -(-max(self.totals) // self.page_size)
        pages = torch.randperm(len(self.parts) * width, generator=torch.Generator().manual_seed(7))
        table = pages.view(len(self.parts), width, 1) * self.page_size + torch.arange(self.page_size)
        return (table + self.page_size).reshape(len(self.parts), -1).int().to(device)

    def forward_batch(self, device: str = "cpu") -> Any:
        prefixes = [part.prefix for part in self.parts]
        mode = SimpleNamespace(is_decode_or_idle=lambda: False, is_target_verify=lambda: False, is_extend=lambda: True)
        slots = [row[part.prefix : part.total] for row, part in zip(self.slots(), self.parts, strict=True)]
        on_device = {
            "positions": torch.cat([torch.arange(part.prefix, part.total) for part in self.parts]),
            "out_cache_loc": torch.cat(slots).long(),
            "req_pool_indices": torch.arange(len(self.parts)),
            "seq_lens": torch.tensor(self.totals),
            "extend_prefix_lens": torch.tensor(prefixes, dtype=torch.int32),
            "extend_seq_lens": torch.tensor(self.extend_lens, dtype=torch.int32),
        }
        return SimpleNamespace(
            **{name: values.to(device) for name, values in on_device.items()},
            forward_mode=mode,
            batch_size=len(self.parts),
            seq_lens_cpu=torch.tensor(self.totals),
            seq_lens_sum=sum(self.totals),
            extend_prefix_lens_cpu=prefixes,
            extend_seq_lens_cpu=self.extend_lens,
            encoder_lens=None,
            spec_info=None,
            cross_attention_custom_mask=self.trees if self.trees.slices else None,
        )


def _path(parents: tuple[int, ...], node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path


def _mask(part: Part) -> np.ndarray[Any, Any]:
    base = part.prefix + part.prompt
    mask = np.zeros((part.rows, part.total), dtype=bool)
    for row in range(part.rows):
        for column in range(part.total):
            if row < part.prompt:
                mask[row, column] = column <= part.prefix + row
            elif column < base:
                mask[row, column] = True
            else:
                mask[row, column] = column - base in _path(part.parents or (), row - part.prompt)
    return mask


CASES = (
    Case("one cached probe", (Part(12, 1, FORK),)),
    Case("fresh probe", (Part(0, 9, FORK),)),
    Case("tree without a prompt row", (Part(12, 0, FORK),)),
    Case("one tree token", (Part(3, 1, (-1,)),)),
    Case("depth-first order", (Part(5, 1, DEPTH_FIRST),)),
    Case("two probes", (Part(12, 1, FLAT), Part(30, 1, CHAIN))),
    Case("probe beside a fresh prompt", (Part(12, 1, FORK), Part(0, 17))),
    Case("probe behind a continuation", (Part(40, 8), Part(12, 1, FORK))),
    Case("everything mixed", (Part(0, 5), Part(12, 1, FORK), Part(33, 7), Part(0, 6, CHAIN), Part(21, 1))),
    Case("decoding request of a mixed batch", (Part(12, 1, FLAT), Part(50, 1), Part(51, 1))),
    Case("probe whose tree was dropped beside a tree", (Part(4, 20, ()), Part(12, 1, FORK))),
    Case("page size 16", (Part(16, 5, FORK), Part(32, 16), Part(0, 3)), page_size=16),
    Case("page size 64", (Part(64, 60, CHAIN), Part(128, 1, FLAT)), page_size=64),
    Case("wide tree", (Part(30, 1, WIDE),)),
    Case("deep binary tree", (Part(8, 2, BINARY), Part(0, 11))),
    Case("no probe", (Part(0, 5), Part(12, 7)), masked=False),
    Case("dropped tree alone", (Part(0, 24, ()),), masked=False),
    Case("nothing cached, no probe", (Part(0, 5), Part(0, 2)), masked=False),
)
MASKED = tuple(case for case in CASES if case.masked)
PLAIN = tuple(case for case in CASES if not case.masked)
