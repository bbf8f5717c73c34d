"""Cost models of the simulator: seconds of a decode step and of an extend pass."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Protocol

__all__ = ["CAPTURE_SIZES", "CostModel", "RooflineCost"]

CAPTURE_SIZES = (1, 2, 4, *range(8, 513, 8))


class CostModel(Protocol):
    """Times in seconds; memory in tokens of KV."""

    @property
    def kv_tokens(self) -> int: ...
    @property
    def max_rows(self) -> int: ...
    @property
    def chunk_tokens(self) -> int: ...
    @property
    def capture_sizes(self) -> tuple[int, ...]: ...

    def decode_s(self, batch: int, context_tokens: int) -> float:
        """One token for each of `batch` rows whose contexts sum to `context_tokens`."""
        ...

    def extend_s(self, tokens: int, attended_tokens: int) -> float:
        """One pass that computes `tokens`, reading `attended_tokens` of KV in all."""
        ...


@dataclass(frozen=True, slots=True)
class RooflineCost:
    """Roofline of a dense model on one accelerator; the defaults are Qwen3-32B in bf16 on an H200.

    64 layers, 8 KV heads of 128, 32.8e9 parameters. 4.3 TB/s and 790 TFLOP/s are attainable rates, not peaks.
    A step reads all weights once (or computes, whichever is longer) and every row's KV; attention of other
    rows is not shared, as in a paged kernel without cascading. With `colocated` false all prefill runs on another
    machine, as with prefill/decode disaggregation, and extends take no time here.
    """

    weight_bytes: float = 65.6e9
    kv_bytes_token: float = 262144.0
    flops_token: float = 65.6e9
    bandwidth: float = 4.3e12
    compute: float = 790e12
    overhead_s: float = 1.5e-3
    row_overhead_s: float = 5e-6
    kv_tokens: int = 220_000
    max_rows: int = 512
    chunk_tokens: int = 8192
    capture_sizes: tuple[int, ...] = CAPTURE_SIZES
    colocated: bool = True

    def decode_s(self, batch: int, context_tokens: int) -> float:
        """See :class:`CostModel`."""
        sizes = self.capture_sizes
        padded = sizes[bisect_left(sizes, batch)] if batch <= sizes[-1] else batch
        linear = max(self.weight_bytes / self.bandwidth, padded * self.flops_token / self.compute)
        return (
            self.overhead_s
            + linear
            + context_tokens * self.kv_bytes_token / self.bandwidth
            + batch * self.row_overhead_s
        )

    def extend_s(self, tokens: int, attended_tokens: int) -> float:
        """See :class:`CostModel`."""
        if not self.colocated:
            return 0.0
        linear = max(self.weight_bytes / self.bandwidth, tokens * self.flops_token / self.compute)
        return self.overhead_s + linear + attended_tokens * self.kv_bytes_token / self.bandwidth
