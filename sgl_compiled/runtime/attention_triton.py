"""Tree attention in SGLang's ``triton`` backend.

Its extend kernel takes a custom mask of (extend tokens, all tokens) a request and reads the part over the new tokens
only; cached tokens are attended by every row, which is what a tree needs. It stops at the tile of a row's own
position, which is right as long as ancestors stand before their descendants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_compiled.runtime.device_masks import batch_mask
from sgl_compiled.runtime.forward import tree_batch_of
from sgl_compiled.runtime.transfer import to_device

__all__ = ["init_forward_metadata"]


def init_forward_metadata(original: Callable[..., None], self: Any, forward_batch: Any) -> None:
    """Add the mask to a batch's metadata: ``TritonAttnBackend.init_forward_metadata``."""
    original(self, forward_batch)
    trees = tree_batch_of(forward_batch)
    if trees is None or not trees.has_branches:
        return
    mask = batch_mask(trees, forward_batch)
    metadata = self.forward_metadata
    assert metadata.custom_mask is None
    metadata.custom_mask = mask.flat
    metadata.mask_indptr = to_device(mask.offsets, mask.flat.device)
