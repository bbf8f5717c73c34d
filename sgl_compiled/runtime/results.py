"""A probe's numbers on their way back, kept out of everybody else's answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from sgl_compiled.runtime.admission import probe_of
from sgl_compiled.runtime.rows import KEY
from sgl_compiled.runtime.transfer import to_host

__all__ = ["collect_customized_info", "copy_to_cpu", "numbers_of", "process_batch_result_prefill", "stream_output"]

_ATTRIBUTE = "sgl_compiled_numbers"


def numbers_of(req: Any) -> np.ndarray[Any, np.dtype[np.float32]] | None:
    """Return the probe's evaluated rows, or ``None`` before its forward has been processed."""
    return getattr(req, _ATTRIBUTE, None)


def copy_to_cpu(self: Any, *_: Any, **__: Any) -> None:
    """Start the copy of all probes' numbers beside the other results': BEFORE ``GenerationBatchResult.copy_to_cpu``.

    The original records ``copy_done`` behind it.
    """
    info = getattr(self.logits_output, "customized_info", None)
    if not info or KEY not in info:
        return
    info[KEY] = [None if numbers is None else to_host(numbers) for numbers in info[KEY]]


def process_batch_result_prefill(self: Any, batch: Any, result: Any) -> None:
    """Hand each probe its numbers before its KV is released: ``process_batch_result_prefill``."""
    output = getattr(result, "logits_output", None)
    info = getattr(output, "customized_info", None)
    if not info or KEY not in info:
        return
    if result.copy_done is not None:
        result.copy_done.synchronize()
    for req, numbers in zip(batch.reqs, info[KEY], strict=True):
        if isinstance(numbers, torch.Tensor):
            setattr(req, _ATTRIBUTE, numbers.detach().cpu().numpy().copy())


def collect_customized_info(original: Callable[..., None], self: Any, i: int, req: Any, logits_output: Any) -> None:
    """Attach a probe's numbers to the probe alone: ``_maybe_collect_customized_info``."""
    info = getattr(logits_output, "customized_info", None)
    if not info or KEY not in info:
        return original(self, i, req, logits_output)
    others = {key: value for key, value in info.items() if key != KEY}
    logits_output.customized_info = others or None
    try:
        original(self, i, req, logits_output)
    finally:
        logits_output.customized_info = info
    numbers = numbers_of(req)
    if numbers is not None:
        probe = probe_of(req)
        assert probe is not None
        # One element, for the one output token; the number of rows says whether the tree was evaluated.
        req.customized_info = {**(req.customized_info or {}), KEY: [(len(probe.rows), numbers)]}


def stream_output(
    original: Callable[..., None], self: Any, reqs: Sequence[Any], return_logprob: bool, skip_req: Any = None
) -> None:
    """Send probes in a message of their own: ``SchedulerOutputStreamer.stream_output``.

    SGLang pads customized info over all requests of a message, which would add a field to answers that are not ours.
    """
    if not self.is_generation or all(probe_of(req) is None for req in reqs):
        return original(self, reqs, return_logprob, skip_req)
    for ours in (False, True):
        group = [req for req in reqs if (probe_of(req) is not None) is ours]
        if group:
            original(self, group, return_logprob, skip_req)
