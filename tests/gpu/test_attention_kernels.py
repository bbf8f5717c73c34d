"""The GPU kernels themselves under our masks, against dense attention; without the mask they must deviate."""

from __future__ import annotations

import pytest
import torch

from sgl_compiled.compat import resolve
from tests.contract.batches import CASES, Case
from tests.contract.flashinfer_fakes import HEAD_DIM, HEADS, KV_HEADS, bare_backend, hook
from tests.contract.triton_interpreted import Pool, attend, dense, fake_layer, fresh_rows

pytestmark = pytest.mark.gpu

BACKEND = "sglang.srt.layers.attention.flashinfer_backend"
BF16 = 3e-2
"""Outputs are averages of values of order one; bf16 keeps three digits."""

TF32 = 1e-2


def branches(case: Case) -> bool:
    return any(len(set(part.parents or ())) < len(part.parents or ()) for part in case.parts)


def flashinfer(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper, BatchPrefillWithRaggedKVCacheWrapper

    workspace = torch.empty(128 * 1024 * 1024, dtype=torch.uint8, device="cuda")
    paged = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="fa2")
    ragged = BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
    slots = case.slots("cuda")
    backend = bare_backend(slots, paged, ragged)
    backend.num_wrappers, backend.is_dllm_model = 1, False
    pool = Pool(slots.numel(), case.page_size, KV_HEADS, HEAD_DIM).to("cuda", torch.bfloat16)
    backend.token_to_kv_pool = pool
    batch = case.forward_batch("cuda")
    backend.init_forward_metadata(batch)
    layer = fake_layer(HEADS, KV_HEADS, HEAD_DIM)
    q, k, v = (rows.to("cuda", torch.bfloat16) for rows in fresh_rows(case, HEADS, KV_HEADS, HEAD_DIM))
    got = resolve(f"{BACKEND}.FlashInferAttnBackend.forward_extend")(backend, q, k, v, layer, batch)
    return got.view(q.shape).double(), dense(case, pool, q, slots, layer.scaling)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_flashinfer(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    control, expected = flashinfer(case)
    assert bool((control - expected).abs().max() > BF16) == branches(case)
    hook(monkeypatch, f"{BACKEND}.FlashInferAttnBackend.init_forward_metadata")
    hook(monkeypatch, f"{BACKEND}.FlashInferIndicesUpdaterPrefill.call_begin_forward")
    got, expected = flashinfer(case)
    assert (got - expected).abs().max() < BF16


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_triton(case: Case) -> None:
    control, expected = attend(case, hooked=False, device="cuda")
    assert bool((control - expected).abs().max() > TF32) == branches(case)
    got, expected = attend(case, hooked=True, device="cuda")
    assert (got - expected).abs().max() < TF32
