"""Run SGLang's Triton kernels on a CPU, in Triton's interpreter, and print what they computed (JSON lines).

The interpreter is chosen when Triton is imported, so this is a process of its own: ``TRITON_INTERPRET=1``.
"""

from __future__ import annotations

import json
import warnings
from types import SimpleNamespace
from typing import Any

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
    from sglang.srt.layers.attention.triton_ops.extend_attention import extend_attention_fwd
    from sglang.srt.layers.radix_attention import AttentionType

from sgl_compiled.runtime import attention_triton
from tests.contract.batches import CASES, Case

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32


class Pool:
    """Key and value buffers of one layer."""

    def __init__(self, slots: int, page_size: int, kv_heads: int, head_dim: int) -> None:
        generator = torch.Generator().manual_seed(1)
        shape = (slots + 2 * page_size, kv_heads, head_dim)
        self.k, self.v = (torch.randn(shape, generator=generator) for _ in range(2))

    def to(self, *where: Any) -> Pool:
        self.k, self.v = self.k.to(*where), self.v.to(*where)
        return self

    def get_kv_buffer(self, _: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.k, self.v

    def get_key_buffer(self, _: int) -> torch.Tensor:
        return self.k

    def get_value_buffer(self, _: int) -> torch.Tensor:
        return self.v

    def set_kv_buffer(self, _layer: Any, where: Any, k: torch.Tensor, v: torch.Tensor, *_scales: Any) -> None:
        self.k[where.loc], self.v[where.loc] = k, v


def fake_layer(heads: int, kv_heads: int, head_dim: int) -> Any:
    """What attention backends read of a layer."""
    return SimpleNamespace(
        layer_id=0,
        tp_q_head_num=heads,
        tp_k_head_num=kv_heads,
        tp_v_head_num=kv_heads,
        qk_head_dim=head_dim,
        v_head_dim=head_dim,
        head_dim=head_dim,
        scaling=head_dim**-0.5,
        k_scale=None,
        v_scale=None,
        k_scale_float=1.0,
        v_scale_float=1.0,
        logit_cap=0.0,
        logit_capping_method="tanh",
        sliding_window_size=-1,
        is_cross_attention=False,
        attn_type=AttentionType.DECODER,
        xai_temperature_len=-1,
    )


def fresh_rows(case: Case, heads: int, kv_heads: int, head_dim: int) -> list[torch.Tensor]:
    """Queries, keys and values of the extend rows."""
    generator = torch.Generator().manual_seed(2)
    rows = sum(case.extend_lens)
    return [torch.randn(rows, count, head_dim, generator=generator) for count in (heads, kv_heads, kv_heads)]


def dense(case: Case, pool: Pool, q: torch.Tensor, slots: torch.Tensor, scaling: float) -> torch.Tensor:
    """Attention over the reference masks, in float64."""
    out, at = [], 0
    group = q.shape[1] // pool.k.shape[1]
    for index, (part, mask) in enumerate(zip(case.parts, case.reference_masks(), strict=True)):
        mine = slots[index, : part.total].long()
        keys, values = (buffer[mine].double().repeat_interleave(group, 1) for buffer in (pool.k, pool.v))
        scores = torch.einsum("qhd,khd->hqk", q[at : at + part.rows].double(), keys) * scaling
        scores.masked_fill_(~torch.from_numpy(mask).to(q.device), -torch.inf)
        out.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), values))
        at += part.rows
    return torch.cat(out)


def attend(case: Case, *, hooked: bool, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """Return the backend's output of the extend rows, and a dense attention over the reference masks."""
    slots = case.slots(device)
    pool = Pool(slots.numel(), case.page_size, KV_HEADS, HEAD_DIM).to(device)
    backend = TritonAttnBackend.__new__(TritonAttnBackend)
    n = len(case.parts)
    for name, value in {
        "dcp_size": 1,
        "sliding_window_size": None,
        "use_sliding_window_kv_pool": False,
        "window_kv_indptr": None,
        "_translate_kv_loc": None,
        "device": torch.device(device),
        "req_to_token": slots,
        "kv_indptr": torch.zeros(n + 1, dtype=torch.int32, device=device),
        "qo_indptr": torch.zeros(n + 1, dtype=torch.int64, device=device),
        "token_to_kv_pool": pool,
        "enable_deterministic": False,
        "use_verify_splitkv": False,
        "allow_bidirectional_attention_in_extend": False,
        "page_size": 1,
        "extend_attention_fwd": extend_attention_fwd,
    }.items():
        setattr(backend, name, value)
    layer = fake_layer(HEADS, KV_HEADS, HEAD_DIM)
    batch = case.forward_batch(device)
    plan = TritonAttnBackend.init_forward_metadata
    if hooked:
        attention_triton.init_forward_metadata(plan, backend, batch)
    else:
        plan(backend, batch)
    q, k, v = (rows.to(device) for rows in fresh_rows(case, HEADS, KV_HEADS, HEAD_DIM))
    got = TritonAttnBackend.forward_extend(backend, q.flatten(1), k, v, layer, batch)
    return got.view(q.shape).double(), dense(case, pool, q, slots, layer.scaling)


def main() -> None:
    for case in CASES:
        got, expected = attend(case, hooked=True)
        control, _ = attend(case, hooked=False)
        record = {
            "case": case.name,
            "error": float((got - expected).abs().max()),
            "control": float((control - expected).abs().max()),
        }
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
