"""Tree attention in SGLang's ``flashinfer`` backend: the mask of a batch handed to FlashInfer's planner.

SGLang plans FlashInfer once a forward, and every layer runs that plan, so the mask is built once. The planner takes
slots of single tokens whatever the server's page size is, and groups query heads itself; neither shows in the mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_compiled.runtime.device_masks import BatchMask, batch_mask
from sgl_compiled.runtime.forward import tree_batch_of

__all__ = ["call_begin_forward", "can_run_graph", "init_forward_metadata"]

_MASK = "_sgl_compiled_mask"
_READY = "_sgl_compiled_ready"


def init_forward_metadata(original: Callable[..., None], self: Any, forward_batch: Any) -> None:
    """Plan a batch with trees on the paged wrapper alone: ``FlashInferAttnBackend.init_forward_metadata``.

    The usual plan has a ragged part for new tokens, which takes no mask.
    """
    if not getattr(self, _READY, False):
        # With SGLang's own warm-up request.
        ready_packing(forward_batch.seq_lens.device)
        setattr(self, _READY, True)
    trees = tree_batch_of(forward_batch)
    if trees is None or not trees.has_branches:
        return original(self, forward_batch)
    updater, use_paged = self.indices_updater_prefill, self.use_paged
    setattr(updater, _MASK, batch_mask(trees, forward_batch))
    self.use_paged = True
    try:
        original(self, forward_batch)
        # A mask that no plan took would give plausible wrong numbers.
        assert getattr(updater, _MASK) is None
    finally:
        self.use_paged = use_paged
        delattr(updater, _MASK)


def ready_packing(device: Any) -> None:
    """Have FlashInfer build or load its mask packing, which nothing else of SGLang uses, before a request waits for it.

    Raises
    ------
    RuntimeError
        It cannot be built here.
    """
    if device.type != "cuda":
        return
    import torch
    from flashinfer.quantization import segment_packbits

    try:
        segment_packbits(
            torch.ones(8, dtype=torch.bool, device=device), torch.tensor([0, 8], dtype=torch.int32, device=device)
        )
    except Exception as error:
        raise RuntimeError(
            f"FlashInfer cannot build the kernel that packs tree masks ({error}): install flashinfer-jit-cache or "
            "nvcc, serve with --attention-backend triton, or switch the plugin off with SGLANG_PLUGINS=__none__"
        ) from error


def call_begin_forward(
    original: Callable[..., None],
    self: Any,
    wrapper_ragged: Any,
    wrapper_paged: Any,
    req_pool_indices: Any,
    paged_kernel_lens: Any,
    paged_kernel_lens_sum: int,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Pass the mask of the batch being planned: ``FlashInferIndicesUpdaterPrefill.call_begin_forward``."""
    mask: BatchMask | None = getattr(self, _MASK, None)
    if mask is not None:
        # Keys of the paged plan are all tokens of each request; with a ragged part they would be the cached ones.
        assert paged_kernel_lens_sum == sum(columns for _, columns in mask.shapes)
        kwargs["cross_attention_custom_mask"] = mask.flat
        setattr(self, _MASK, None)
    original(
        self,
        wrapper_ragged,
        wrapper_paged,
        req_pool_indices,
        paged_kernel_lens,
        paged_kernel_lens_sum,
        *args,
        **kwargs,
    )


def can_run_graph(original: Callable[..., bool], self: Any, forward_batch: Any) -> bool:
    """Keep probes out of captured prefill graphs: ``PrefillCudaGraphRunner.can_run_graph``."""
    return tree_batch_of(forward_batch) is None and original(self, forward_batch)
