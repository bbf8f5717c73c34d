"""How much mask one extend batch may need on a GPU."""

from __future__ import annotations

from math import isqrt
from typing import Any

__all__ = ["MASK_LIMIT_BYTES", "mask_fits", "mask_positions"]

MASK_LIMIT_BYTES = 64_000_000
"""Mask bytes of one batch: one a row and key, before the kernel packs them eightfold."""


def mask_fits(adder: Any, req: Any) -> bool:
    """Whether the masked batch that a ``PrefillAdder`` collects keeps below the limit with ``req`` in it.

    Kernels take a custom mask for all requests of a batch or for none, so every request counts. On CPU attention runs
    request by request, and only trees have masks.
    """
    if str(adder.token_to_kv_pool_allocator.device).startswith("cpu"):
        return True
    total = len(req.full_untruncated_fill_ids)
    rows = total - len(req.prefix_indices)
    collected = sum(other.extend_range.length * other.extend_range.end for other in adder.can_run_list)
    return bool(collected + rows * total <= MASK_LIMIT_BYTES)


def mask_positions(prompt_tokens: int, prompt_rows: int) -> int:
    """Return the size of the largest tree whose mask alone keeps below the limit.

    Parameters
    ----------
    prompt_tokens : int
        Tokens before the tree.
    prompt_rows : int
        How many of them are computed with it: with a cached prompt, those of its last page.
    """
    # The largest r with (r + rows) * (r + tokens) <= limit.
    return max(0, (isqrt((prompt_tokens - prompt_rows) ** 2 + 4 * MASK_LIMIT_BYTES) - prompt_tokens - prompt_rows) // 2)
