"""Cost and unsteadiness of a measured server, from the trace of its steps."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from .engine import Noise

__all__ = ["MeasuredCost", "fit_measured"]

FloatArray = NDArray[np.float64]

_ENOUGH = 20  # steps behind the median of a number of rows
_NEAR, _FAR = 4, 32  # lags, in steps, between which the drift's decay is read


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """Median step for each number of rows, a line through the upper half beyond; contexts are in the medians.

    On a CPU the first rows cost most and some numbers of rows less than the one before, which no line shows.
    """

    rows: tuple[int, ...]
    rows_s: tuple[float, ...]
    pass_s: float
    token_s: float
    kv_tokens: int
    max_rows: int = 64
    chunk_tokens: int = 2048
    capture_sizes: tuple[int, ...] = ()

    def decode_s(self, batch: int, context_tokens: int) -> float:
        """See :class:`.cost.CostModel`."""
        last, half = self.rows[-1], self.rows[len(self.rows) // 2]
        if batch <= last or last == half:
            return float(np.interp(batch, self.rows, self.rows_s))
        slope = (self.rows_s[-1] - self.rows_s[len(self.rows) // 2]) / (last - half)
        return self.rows_s[-1] + max(slope, 0.0) * (batch - last)

    def extend_s(self, tokens: int, attended_tokens: int) -> float:
        """See :class:`.cost.CostModel`."""
        return self.pass_s + self.token_s * tokens


def fit_measured(trace: Path, kv_tokens: int) -> tuple[MeasuredCost, Noise]:
    """Fit costs and noise to the trace of a measured server.

    Extends are charged with what their steps took beyond the median of as many rows. The noise of a step, in
    logarithms, is taken for white noise and a drift with exponential autocorrelation: a machine shared with others is
    slow for seconds at a time.
    """
    with trace.open(newline="") as file:
        steps = [row for row in csv.DictReader(file) if float(row["actual_s"] or 0) > 0]
    rows, passes, tokens = (
        np.array([int(step[name]) for step in steps]) for name in ("rows", "extend_passes", "extend_tokens")
    )
    actual = np.array([float(step["actual_s"]) for step in steps])
    plain = passes == 0
    known = [int(n) for n in np.unique(rows) if np.count_nonzero(plain & (rows == n)) >= _ENOUGH]
    assert known, f"no number of rows has {_ENOUGH} steps without an extend"
    medians = tuple(float(np.median(actual[plain & (rows == n)])) for n in known)
    cost = MeasuredCost(tuple(known), medians, pass_s=0.0, token_s=0.0, kv_tokens=kv_tokens)
    expected = np.array([cost.decode_s(int(n), 0) for n in rows])
    design = np.column_stack([passes, tokens])[~plain] / actual[~plain, None]
    excess = np.maximum(actual - expected, 0.0)[~plain] / actual[~plain]
    unit = np.maximum(design.max(axis=0, initial=0.0), 1e-12)
    pass_s, token_s = (float(value) for value in nnls(design / unit, excess)[0] / unit) if len(excess) else (0.0, 0.0)
    residual = np.clip(np.log(actual[plain] / expected[plain]), -1.0, 1.0)
    noise = _noise(residual - residual.mean(), float(np.median(actual[plain])))
    return replace(cost, pass_s=pass_s, token_s=token_s), noise


def _noise(residual: FloatArray, step_s: float) -> Noise:
    """Split residuals into white noise and a drift, by their covariance at two lags."""
    variance = float(residual.var())
    near, far = (float(np.mean(residual[:-lag] * residual[lag:])) for lag in (_NEAR, _FAR))
    if not 0.0 < far < near:
        return Noise(variance**0.5)
    per_step = (far / near) ** (1.0 / (_FAR - _NEAR))
    drift = min(near / per_step**_NEAR, variance)
    return Noise((variance - drift) ** 0.5, drift**0.5, step_s / -float(np.log(per_step)))
