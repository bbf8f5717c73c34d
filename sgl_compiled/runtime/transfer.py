"""Small copies between host and device that nobody waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

__all__ = ["to_device", "to_host"]


def to_device(
    values: Sequence[int] | np.ndarray[Any, Any], device: torch.device, dtype: torch.dtype = torch.int64
) -> torch.Tensor:
    """Copy integers to ``device`` through pinned memory, without a synchronisation.

    A copy out of ordinary memory makes the host wait until everything queued before it has run.
    """
    host = torch.as_tensor(values, dtype=dtype)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


def to_host(values: torch.Tensor) -> torch.Tensor:
    """Start the copy of ``values`` to the host on the current stream; its contents are there once the stream is.

    On CPU the tensor itself is returned.
    """
    if not values.is_cuda:
        return values
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    # The caching allocator must not hand the source to another stream before this one has read it.
    values.record_stream(torch.cuda.current_stream(values.device))
    return host
