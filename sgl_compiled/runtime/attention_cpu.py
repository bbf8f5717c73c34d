"""Tree attention on CPU, on top of SGLang's ``torch_native`` backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from torch.nn.functional import scaled_dot_product_attention

from sgl_compiled.runtime.forward import ProbeSlice, tree_batch_of

__all__ = ["attend", "forward_extend"]


def forward_extend(
    original: Callable[..., torch.Tensor],
    self: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layer: Any,
    forward_batch: Any,
    save_kv_cache: bool = True,
) -> torch.Tensor:
    """Attend a probe's extend rows only, its tree by mask: ``TorchNativeAttnBackend.forward_extend``.

    SGLang's routine computes every cached row again. Only batches that hold a probe leave it, and inside them every
    other request still runs through it, alone and with the same arguments, so that its numbers do not change.
    """
    trees = tree_batch_of(forward_batch)
    if trees is None:
        return original(self, q, k, v, layer, forward_batch, save_kv_cache)
    if save_kv_cache and k is not None and v is not None:
        self.token_to_kv_pool.set_kv_buffer(
            layer, KVWriteLoc(forward_batch.out_cache_loc, self.swa_out_cache_loc), k, v
        )
    queries = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
    out = q.new_empty((q.shape[0], layer.tp_q_head_num * layer.v_head_dim))
    rows_out = out.view(-1, layer.tp_q_head_num, layer.v_head_dim)
    keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
    values = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
    start = 0
    for index, length in enumerate(forward_batch.extend_seq_lens_cpu):
        here = slice(start, start + length)
        start += length
        piece = trees.by_index.get(index)
        one = slice(index, index + 1)
        if piece is None:
            self._run_sdpa_forward_extend(
                queries[here],
                rows_out[here],
                keys,
                values,
                self.req_to_token_pool.req_to_token,
                forward_batch.req_pool_indices[one],
                forward_batch.seq_lens[one],
                forward_batch.extend_prefix_lens[one],
                forward_batch.extend_seq_lens[one],
                None,
                scaling=layer.scaling,
                enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num,
                causal=True,
            )
        else:
            slots = self.req_to_token_pool.req_to_token[
                forward_batch.req_pool_indices[index], : piece.prefix_len + length
            ]
            rows_out[here] = attend(queries[here], keys[slots], values[slots], piece, layer.scaling)
    return out


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, piece: ProbeSlice, scaling: float | None
) -> torch.Tensor:
    """Attention of one probe's extend rows.

    Parameters
    ----------
    query : Tensor, shape (rows, n_heads, head_dim)
        New prompt rows, then tree rows.
    key, value : Tensor, shape (prefix + rows, n_kv_heads, head_dim)
    piece : ProbeSlice
    scaling : float or None

    Returns
    -------
    Tensor, shape (rows, n_heads, head_dim)
    """
    q, k, v = (part.movedim(0, 1).unsqueeze(0).to(query.dtype) for part in (query, key, value))
    gqa = q.shape[1] != k.shape[1]
    n_prompt = piece.prompt_rows
    parts = []
    first = 0
    if piece.prefix_len == 0 and n_prompt > max(1, len(piece.probe.parents)):
        # A long fresh prompt attends causally on its own: one masked call over everything leaves the fast kernel.
        first = n_prompt
        here = slice(0, n_prompt)
        parts.append(
            scaled_dot_product_attention(
                q[:, :, here], k[:, :, here], v[:, :, here], scale=scaling, is_causal=True, enable_gqa=gqa
            )
        )
    if first < q.shape[2]:
        bias = piece.bias[first:].to(q.dtype)
        parts.append(scaled_dot_product_attention(q[:, :, first:], k, v, attn_mask=bias, scale=scaling, enable_gqa=gqa))
    return torch.cat(parts, dim=2).squeeze(0).movedim(1, 0)
