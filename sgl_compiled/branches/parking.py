"""Take rows out of a decode batch and put them back, on SGLang's own ``filter_batch`` and ``merge_batch``.

A parked batch keeps the rows' KV, sampling state and place in the future map; only the batch tensors are split.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = ["hide_last_token", "split_batch"]


def split_batch(batch: Any, run: Sequence[bool]) -> Any:
    """Keep the rows marked in `run` in `batch` and return a second batch with the others; both must be non-empty."""
    keep = [i for i, runs in enumerate(run) if runs]
    park = [i for i, runs in enumerate(run) if not runs]
    assert keep and park, "a split needs rows on both sides"
    parked = copy.copy(batch)
    parked.reqs = list(batch.reqs)
    parked.sampling_info = _copy_sampling_info(batch.sampling_info, parked)
    batch.filter_batch(keep_indices=keep)
    parked.filter_batch(keep_indices=park)
    return parked


def _copy_sampling_info(info: Any, batch: Any) -> Any:
    """Copy sampling state deeply enough that filtering one copy leaves the other whole.

    Tensors are replaced by filtering, never changed; but the penalizers and the back references between batch,
    orchestrator and penalizer are objects of their own.
    """
    info = copy.copy(info)
    if info.penalizer_orchestrator is None:
        return info
    orchestrator = copy.copy(info.penalizer_orchestrator)
    orchestrator.batch = batch
    orchestrator.penalizers = {kind: copy.copy(penalizer) for kind, penalizer in orchestrator.penalizers.items()}
    for penalizer in orchestrator.penalizers.values():
        penalizer._orchestrator_ref = weakref.ref(orchestrator)
    info.penalizer_orchestrator = orchestrator
    return info


@contextmanager
def hide_last_token(reqs: Iterable[Any]) -> Iterator[None]:
    """Show `reqs` without their last output token for the time of the block.

    With the overlap scheduler a step is prepared before the results of the one before it are known, so penalties count
    the last token but one. A row that returns from parking has its last result already, and would skip a token.
    """
    hidden = [(req, req.output_ids.pop()) for req in reqs if len(req.output_ids)]
    try:
        yield
    finally:
        for req, token in hidden:
            req.output_ids.append(token)
