"""What one extend costs: a linear model with a floor, and its fit to measured passes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

__all__ = ["CostModel", "OnlineCost", "Sample", "fit"]


@dataclass(frozen=True)
class CostModel:
    """``T = a + max(floor, b * tokens) + c * tokens * prefix + d * rows`` for one pass.

    Attributes
    ----------
    a_ms : float
        Fixed cost of a pass: scheduling, launches, the trip through the server.
    b_ms : float
        Per token of the extend: the matrix multiplications.
    c_ms : float
        Per token and token of prefix: attention.
    d_ms : float
        Per decision row: the vocabulary's logits.
    floor_ms : float
        Time to read the weights once; on a memory-bound device it hides the first tokens.
    """

    a_ms: float
    b_ms: float
    c_ms: float = 0.0
    d_ms: float = 0.0
    floor_ms: float = 0.0

    def pass_ms(self, tokens: int, prefix: int, rows: int = 1) -> float:
        """Predicted milliseconds of an extend of ``tokens`` behind ``prefix`` cached tokens, reading ``rows`` rows."""
        work = self.b_ms * tokens + self.d_ms * rows
        return self.a_ms + max(self.floor_ms, work) + self.c_ms * tokens * (prefix + tokens / 2)

    def shared(self, load: float) -> CostModel:
        """Return the model of a device on which ``load`` probes of a size share each pass."""
        return CostModel(self.a_ms, self.b_ms * load, self.c_ms * load, self.d_ms * load, self.floor_ms)

    @classmethod
    def roofline(
        cls,
        *,
        weight_bytes: float,
        flop_per_token: float,
        bandwidth_bytes_s: float,
        flops: float,
        overhead_ms: float = 1.0,
    ) -> CostModel:
        """Return the roofline of a device: weights read once a pass, compute linear in tokens."""
        return cls(a_ms=overhead_ms, b_ms=1e3 * flop_per_token / flops, floor_ms=1e3 * weight_bytes / bandwidth_bytes_s)


@dataclass(frozen=True)
class Sample:
    """One measured pass: tokens computed, tokens cached before them, rows read, and its time."""

    tokens: int
    prefix: int
    rows: int
    ms: float


def fit(samples: Iterable[Sample]) -> CostModel:
    """Fit ``a``, ``b``, ``c`` and ``d`` by non-negative least squares on relative errors.

    Relative errors keep a few long prefills from drowning the short passes that plans are made of.
    """
    data = list(samples)
    assert len(data) >= 4
    matrix = np.array([[1.0, s.tokens, s.tokens * (s.prefix + s.tokens / 2), s.rows] for s in data])
    times = np.array([s.ms for s in data])
    solution, _ = nnls(matrix / times[:, None], np.ones(len(data)))
    return CostModel(*(float(value) for value in solution))


class OnlineCost:
    """A cost model that follows what the server's passes really take.

    Starts from a calibrated or default model and is refitted from a sliding window of passes.
    """

    def __init__(self, initial: CostModel, *, window: int = 256, refit_every: int = 16) -> None:
        self.model = initial
        self._initial = initial
        self._refit_every = refit_every
        self._samples: deque[Sample] = deque(maxlen=window)
        self._seen = 0

    def observe(self, sample: Sample) -> None:
        """Record one pass."""
        self._samples.append(sample)
        self._seen += 1
        sizes = {s.tokens for s in self._samples}
        # Passes of one size cannot tell the fixed cost from the cost per token.
        if self._seen % self._refit_every == 0 and len(self._samples) >= self._refit_every and len(sizes) >= 4:
            self.model = fit(self._samples)
