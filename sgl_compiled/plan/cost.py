"""What one extend costs: a linear model with two steps, and its fit to measured passes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import nnls

__all__ = ["CostModel", "OnlineCost", "Sample", "fit"]


@dataclass(frozen=True)
class CostModel:
    """``T = a + wide + max(floor, b * tokens + d * rows) + c * tokens * prefix`` for one pass.

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
    wide_ms : float
        Once for a pass of more than one token: on a CPU, matrix products in place of matrix-vector products.
    floor_ms : float
        Time to read the weights once; on a memory-bound device it hides the first tokens.
    """

    a_ms: float
    b_ms: float
    c_ms: float = 0.0
    d_ms: float = 0.0
    wide_ms: float = 0.0
    floor_ms: float = 0.0

    def pass_ms(self, tokens: int, prefix: int, rows: int = 1) -> float:
        """Predicted milliseconds of an extend of ``tokens`` behind ``prefix`` cached tokens, reading ``rows`` rows."""
        work = self.b_ms * tokens + self.d_ms * rows
        wide = self.wide_ms if tokens > 1 else 0.0
        return self.a_ms + wide + max(self.floor_ms, work) + self.c_ms * tokens * (prefix + tokens / 2)

    def shared(self, load: float) -> CostModel:
        """Return the model of a device on which ``load`` probes of a size share each pass."""
        # Passes that are shared are wide for all.
        return replace(
            self,
            a_ms=self.a_ms + (self.wide_ms if load > 1 else 0.0),
            b_ms=self.b_ms * load,
            c_ms=self.c_ms * load,
            d_ms=self.d_ms * load,
            wide_ms=0.0 if load > 1 else self.wide_ms,
        )

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


def fit(samples: Iterable[Sample], floor_ms: float = 0.0, hidden: Callable[[Sample], bool] | None = None) -> CostModel:
    """Fit ``a``, ``b``, ``c``, ``d`` and ``wide`` by non-negative least squares on relative errors.

    Relative errors keep a few long prefills from drowning the short passes that plans are made of.

    Parameters
    ----------
    samples : iterable of Sample
        At least four.
    floor_ms : float
        Time to read the weights, which no fit of these can tell from ``a``.
    hidden : callable, optional
        Whether that time hides a sample's tokens and rows; such samples say nothing about ``b`` and ``d``.
    """
    data = list(samples)
    assert len(data) >= 4
    seen = np.array([hidden is None or not hidden(s) for s in data], dtype=np.float64)
    tokens, rows = np.array([s.tokens for s in data]), np.array([s.rows for s in data])
    attended = tokens * (np.array([s.prefix for s in data]) + tokens / 2)
    matrix = np.column_stack([np.ones(len(data)), seen * tokens, attended, seen * rows, tokens > 1])
    times = np.array([s.ms for s in data])
    solution, _ = nnls(matrix / times[:, None], np.maximum(times - (1 - seen) * floor_ms, 0.0) / times)
    a, b, c, d, wide = (float(value) for value in solution)
    return CostModel(a, b, c, d, wide, floor_ms)


class OnlineCost:
    """A cost model that follows what the server's passes really take.

    Starts from a calibrated or default model and is refitted from a sliding window of passes. Served passes alone would
    not do: under one plan they are all alike, or rows and tokens grow together, and then what belongs to the pass, the
    token and the row cannot be told apart. So every fit also sees the initial model's own passes of many shapes, as
    slow or fast as the window is against it.
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
        if self._seen % self._refit_every == 0:
            expected = [self._initial.pass_ms(s.tokens, s.prefix, s.rows) for s in self._samples]
            pace = float(np.median([s.ms / ms for s, ms in zip(self._samples, expected, strict=True)]))
            shapes = _ANCHORS + (_WIDE_ANCHORS if self._initial.floor_ms else [])
            anchors = [Sample(*shape, pace * self._initial.pass_ms(*shape)) for shape in shapes]
            self.model = fit([*self._samples, *anchors], pace * self._initial.floor_ms, self._hidden)

    def _hidden(self, sample: Sample) -> bool:
        initial = self._initial
        return initial.b_ms * sample.tokens + initial.d_ms * sample.rows < initial.floor_ms


_WIDE_ANCHORS = [(tokens, prefix, 8) for tokens in (1_024, 4_096) for prefix in (64, 1_024)]
"""Passes that the reading of the weights does not hide."""

_ANCHORS = [(tokens, prefix, rows) for tokens in (1, 16, 64) for prefix in (64, 1_024) for rows in (1, 8, 48)]
"""Tokens, prefix and rows of the initial model's passes that every fit sees."""
