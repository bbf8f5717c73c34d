"""Logits of decision rows only, gathered at their legal ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsMetadata

from sgl_compiled.runtime.forward import TreeBatch, tree_batch_of
from sgl_compiled.runtime.transfer import to_device

__all__ = ["KEY", "gather", "logits_forward"]

KEY = "sgl_compiled"
"""Name under which a probe's numbers travel in ``LogitsProcessorOutput.customized_info``."""

CHUNK_ROWS = 64
"""Rows whose full-vocabulary logits exist at a time: 12.6 MB at a vocabulary of 49,152 in float32."""

CHUNK_ROWS_GPU = 256
"""On a GPU each chunk reads the whole head from memory: 156 MB of logits at 152,064 ids."""


def logits_forward(
    original: Callable[..., Any],
    self: Any,
    input_ids: torch.Tensor,
    hidden_states: torch.Tensor,
    lm_head: Any,
    logits_metadata: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Read the decision rows beside the usual last row: ``LogitsProcessor.forward``."""
    output = original(self, input_ids, hidden_states, lm_head, logits_metadata, *args, **kwargs)
    trees = tree_batch_of(logits_metadata)
    if trees is not None:
        metadata = LogitsMetadata.from_forward_batch(logits_metadata)
        metadata.next_token_logits_buffer = None
        with _synchronised(self._logits_gatherer):
            numbers = gather(trees, hidden_states, lambda states: self._get_logits(states, lm_head, metadata))
        output.customized_info = {**(output.customized_info or {}), KEY: numbers}
    return output


@contextmanager
def _synchronised(gatherer: Any) -> Iterator[None]:
    """Let ranks wait for each other before each gathering of logits.

    SGLang leaves that out (``MultimemAllGatherer``, ``skip_entry_sync``) since a whole model lies between two of its
    own; between ours nothing does, and a fast rank would overwrite what a slow one still reads.
    """
    skip, gatherer._skip_entry_sync = gatherer._skip_entry_sync, False
    try:
        yield
    finally:
        gatherer._skip_entry_sync = skip


def gather(
    trees: TreeBatch, hidden_states: torch.Tensor, logits_of: Callable[[torch.Tensor], torch.Tensor]
) -> list[torch.Tensor | None]:
    """Evaluate the decision rows of every probe.

    Parameters
    ----------
    trees : TreeBatch
    hidden_states : Tensor, shape (n_tokens, hidden)
        Final hidden states of the batch's extend tokens.
    logits_of : callable
        Hidden states to full-vocabulary logits.

    Returns
    -------
    list, one entry a request of the batch
        For a probe a float32 tensor: the log-sum-exp of each row, then the logits of each row's legal ids, row by
        row; ``None`` for other requests. Values stay on the device.
    """
    device = hidden_states.device
    rows = to_device([row for piece in trees.slices for row in piece.row_indices], device)
    legal = [ids for piece in trees.slices for ids in piece.probe.legal]
    sums: list[torch.Tensor] = []
    picked: list[torch.Tensor] = []
    size = CHUNK_ROWS_GPU if device.type == "cuda" else CHUNK_ROWS
    for start in range(0, len(legal), size):
        chunk = legal[start : start + size]
        logits = logits_of(hidden_states[rows[start : start + size]])
        sums.append(torch.logsumexp(logits.float(), dim=-1))
        at = to_device([index for index, ids in enumerate(chunk) for _ in ids], device)
        ids = to_device([token for ids in chunk for token in ids], device)
        picked.append(logits[at, ids].float())
    lse = torch.cat(sums) if sums else torch.empty(0, device=device)
    values = torch.cat(picked) if picked else torch.empty(0, device=device)
    out: list[torch.Tensor | None] = [None] * trees.size
    row_at = value_at = 0
    for piece in trees.slices:
        n_rows = len(piece.probe.rows)
        n_values = sum(map(len, piece.probe.legal))
        out[piece.index] = torch.cat([lse[row_at : row_at + n_rows], values[value_at : value_at + n_values]])
        row_at += n_rows
        value_at += n_values
    return out
