"""SGLang's FlashInfer backend and FlashInfer's planner on a CPU: their own code, without the kernels."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flashinfer import prefill
from sglang.srt.layers.attention import flashinfer_backend
from sglang.srt.layers.attention.flashinfer_backend import FlashInferAttnBackend, FlashInferIndicesUpdaterPrefill
from sglang.srt.plugins.hook_registry import HookType, _wrap_fn

from sgl_compiled.compat import TARGETS, load_handler, resolve

HEADS, KV_HEADS, HEAD_DIM = 8, 2, 128


class Recorder:
    """A wrapper that records the arguments of each plan."""

    def __init__(self, plan: Callable[..., None] | None = None) -> None:
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._plan = plan

    def begin_forward(self, *args: Any, **kwargs: Any) -> None:
        self.calls.append((args, kwargs))
        if self._plan is not None:
            self._plan(*args, **kwargs)


class PageTableKernel:
    """The slots of each request's first ``lens`` tokens, in order."""

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        def run(table: Any, requests: Any, lens: Any, indptr: Any, start: Any, out: Any, _width: int) -> None:
            assert start is None and grid == (len(requests),)
            for request, length, at in zip(requests, lens, indptr, strict=False):
                out[at : at + length] = table[request, :length]

        return run


class PackingKernel:
    """FlashInfer's ``segment_packbits`` kernel, written out."""

    def segment_packbits(self, x: Any, indptr: Any, packed: Any, order: str, out: Any) -> None:
        for index in range(len(indptr) - 1):
            bits = x[indptr[index] : indptr[index + 1]].numpy()
            out[packed[index] : packed[index + 1]] = torch.from_numpy(np.packbits(bits, bitorder=order))


class PlannedModule:
    """The compiled planner: records what reaches it."""

    def __init__(self) -> None:
        self.plans: list[tuple[Any, ...]] = []

    def plan(self, *args: Any) -> list[int]:
        self.plans.append(args)
        return [0]


def hook(patch: pytest.MonkeyPatch, path: str) -> None:
    """Put our handler on one target, the way SGLang's registry does it, until the test ends."""
    target = next(target for target in TARGETS if target.path == path)
    owner, name = path.rsplit(".", 1)
    module, cls = owner.rsplit(".", 1)
    wrapped = _wrap_fn(resolve(path), load_handler(target), HookType(target.hook))
    patch.setattr(getattr(__import__(module, fromlist=[cls]), cls), name, wrapped)


def flashinfer_wrapper(patch: pytest.MonkeyPatch) -> tuple[Any, PlannedModule]:
    """FlashInfer's own paged wrapper, planning into a :class:`PlannedModule`."""
    module = PlannedModule()
    patch.setattr(prefill, "get_batch_prefill_module", lambda *_: module)
    packing = importlib.import_module("flashinfer.quantization.packbits")
    patch.setattr(packing, "get_quantization_module", PackingKernel)
    wrapper = prefill.BatchPrefillWithPagedKVCacheWrapper.__new__(prefill.BatchPrefillWithPagedKVCacheWrapper)
    fields = {
        "_use_cuda_graph": False,
        "device": torch.device("cpu"),
        "_float_workspace_buffer": torch.empty(0),
        "_int_workspace_buffer": torch.empty(0),
        "_pin_memory_int_workspace_buffer": torch.empty(0),
        "_kv_lens_buffer": torch.empty(1024, dtype=torch.int32),
        "_max_total_num_rows": None,
        "_jit_module": None,
        "_backend": "fa2",
        "_custom_mask_buf": None,
        "_mask_indptr_buf": None,
    }
    for name, value in fields.items():
        setattr(wrapper, name, value)
    return wrapper, module


def flashinfer_backend_on_cpu(patch: pytest.MonkeyPatch, slots: torch.Tensor, paged: Any, ragged: Any) -> Any:
    """SGLang's backend with given wrappers, and its page table kernel written out."""
    patch.setattr(flashinfer_backend, "create_flashinfer_kv_indices_triton", PageTableKernel())
    return bare_backend(slots, paged, ragged)


def bare_backend(slots: torch.Tensor, paged: Any, ragged: Any) -> Any:
    """SGLang's backend with given wrappers; nothing of its constructor (which needs a whole server) is run."""
    backend = FlashInferAttnBackend.__new__(FlashInferAttnBackend)
    updater = FlashInferIndicesUpdaterPrefill.__new__(FlashInferIndicesUpdaterPrefill)
    n = len(slots)
    common = {
        "kv_last_page_len": torch.ones(n, dtype=torch.int32, device=slots.device),
        "kv_indptr": [torch.zeros(n + 1, dtype=torch.int32, device=slots.device)],
        "qo_indptr": [torch.zeros(n + 1, dtype=torch.int32, device=slots.device)],
        "prefill_wrapper_ragged": ragged,
        "_swa_kv_pool": None,
    }
    for name, value in {
        **common,
        "num_qo_heads": HEADS,
        "num_kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "data_type": torch.bfloat16,
        "q_data_type": torch.bfloat16,
        "sliding_window_size": None,
        "req_to_token": slots,
        "attn_backend": SimpleNamespace(),
        "update": updater.update_single_wrapper,
    }.items():
        setattr(updater, name, value)
    for name, value in {
        **common,
        "use_sliding_window_kv_pool": False,
        "is_multimodal": False,
        "enable_mis": False,
        "enable_deterministic": False,
        "use_paged": False,
        "prefill_split_tile_size": None,
        "prefill_wrappers_paged": [paged],
        "indices_updater_prefill": updater,
    }.items():
        setattr(backend, name, value)
    return backend
