"""Online prediction of the time of one scheduler step, with its uncertainty.

Model
-----
The time between two decode launches is linear in what ran in between::

    T = c0 + c1 * pad(B) + c2 * S + c3 * E + c4 * P

``B`` sequences decoded (``pad`` rounds up to a captured CUDA-graph size), ``S`` the sum of their context lengths in
tokens, ``E`` extend passes and ``P`` tokens those passes computed (prefills, fork and ``select_k`` probes alike).

The coefficients are the non-negative least-squares fit with forgetting ``f``; row and target are divided by ``m``,
the larger of predicted and measured time, so that *relative* errors are minimised and one long prefill does not
outweigh a thousand decode steps. With ``x' = x / m``, ``r = (T - theta.x) / m`` and the Huber weight
``w = min(1, k*sigma / |r|)``::

    A <- f*A + w * x' x'^T,   q <- f*q + w * x' * T / m
    theta <- argmin over theta >= 0 of  theta.A.theta - 2 q.theta + ridge * |theta - theta_old|^2

The ridge leaves coefficients alone that present traffic does not excite (no prefill for a minute, say). ``sigma`` is
the exponentially weighted root mean square of ``r``. A run of clipped residuals of one sign is not noise but a new
regime: the past is then discounted at once, and a few steps suffice to follow.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["PredictorSettings", "StepFeatures", "StepTimePredictor"]

FloatArray = NDArray[np.float64]

_SCALE = np.array([1.0, 1 / 64, 1 / 65536, 1.0, 1 / 1024])
_RIDGE = 0.01  # of one observation
_SHIFT_DISCOUNT = 0.01
_GAP_RATE = 0.01
_SETTLING = 64  # steps after a start or a shift in which every observation is solved for


@dataclass(frozen=True, slots=True)
class PredictorSettings:
    """Constants of the estimator.

    Attributes
    ----------
    forgetting : float
        Weight of the past per observation, in (0, 1]; 0.995 remembers about 200 steps.
    clip_sigmas : float
        Residuals beyond this many sigmas are clipped before they move the coefficients.
    shift_run : int
        Clipped residuals of one sign in a row that count as a change of regime.
    warmup_steps : int
        Observations before anything is clipped.
    refit_every : int
        Observations between two solutions, once the fit has settled.
    """

    forgetting: float = 0.995
    clip_sigmas: float = 3.0
    shift_run: int = 4
    warmup_steps: int = 16
    refit_every: int = 4


@dataclass(frozen=True, slots=True)
class StepFeatures:
    """What ran between two decode launches: sequences, context tokens, extend passes and their tokens."""

    batch: int
    context_tokens: int
    extend_passes: int = 0
    extend_tokens: int = 0


class StepTimePredictor:
    """Non-negative least squares with forgetting over :class:`StepFeatures`; times in seconds.

    Parameters
    ----------
    settings : PredictorSettings
        Constants of the estimator.
    capture_sizes : tuple of int
        Ascending captured batch sizes; a batch is padded to the next one. Empty means no padding.
    """

    def __init__(self, settings: PredictorSettings | None = None, capture_sizes: tuple[int, ...] = ()) -> None:
        assert list(capture_sizes) == sorted(set(capture_sizes)), "capture sizes must ascend"
        self.settings = settings or PredictorSettings()
        self.capture_sizes = capture_sizes
        self._sizes = np.asarray(capture_sizes, dtype=np.int64)
        self.observations = 0
        self.shifts = 0
        self._theta = np.zeros(5)
        self._coef = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._moments: FloatArray = np.zeros((5, 5))
        self._cross = np.zeros(5)
        self._variance = 0.05**2
        self._run = 0
        self._gap_s = self._gap_variance = 0.0
        self._settled_at = _SETTLING

    @property
    def relative_sigma(self) -> float:
        """Spread of the relative prediction error (dimensionless)."""
        return float(self._variance**0.5)

    @property
    def coefficients(self) -> tuple[float, float, float, float, float]:
        """Seconds a step, a padded sequence, a context token, an extend pass and an extend token; all >= 0."""
        return self._coef

    @property
    def gap_s(self) -> float:
        """Mean time that extends add to a decode step, seconds."""
        return self._gap_s

    @property
    def gap_sigma_s(self) -> float:
        """Standard deviation of that time from step to step, seconds."""
        return float(self._gap_variance**0.5)

    def padded(self, batch: int) -> int:
        """Batch size the kernels run with."""
        sizes = self.capture_sizes
        return sizes[bisect_left(sizes, batch)] if sizes and batch <= sizes[-1] else batch

    def predict(self, features: StepFeatures) -> float:
        """Seconds that a step with `features` takes; 0.0 before the first observation."""
        c0, c1, c2, c3, c4 = self._coef
        return (
            c0
            + c1 * self.padded(features.batch)
            + c2 * features.context_tokens
            + c3 * features.extend_passes
            + c4 * features.extend_tokens
        )

    def predict_widths(self, batch: int, context_tokens: int, extra_context: NDArray[Any]) -> FloatArray:
        """Step times when the first 1, 2, ... of `extra_context` join a batch.

        Parameters
        ----------
        batch, context_tokens : int
            The step without the extra rows.
        extra_context : ndarray, shape (m,), int
            Context length of each row, in the order of admission.

        Returns
        -------
        ndarray, shape (m,), float64
            Seconds, never descending (the coefficients are kept non-negative).
        """
        c0, c1, c2, _, _ = self._coef
        sizes = np.arange(batch + 1, batch + 1 + len(extra_context))
        if self.capture_sizes:
            inside = int(np.searchsorted(sizes, self.capture_sizes[-1], side="right"))
            sizes[:inside] = self._sizes[np.searchsorted(self._sizes, sizes[:inside])]
        times: FloatArray = c0 + c1 * sizes + c2 * (context_tokens + np.cumsum(extra_context))
        return times

    def observe(self, features: StepFeatures, elapsed_s: float) -> float:
        """Learn from one measured step; returns the prediction error ``predicted - elapsed`` made before learning."""
        assert elapsed_s > 0.0, f"a step cannot take {elapsed_s} s"
        predicted = self.predict(features)
        scale = max(predicted, elapsed_s)
        counts = (1.0, self.padded(features.batch), features.context_tokens)
        row = np.array((*counts, features.extend_passes, features.extend_tokens)) * (_SCALE / scale)
        weight = self._weight((elapsed_s - predicted) / scale)
        self._observe_gap(features)
        self._moments *= self.settings.forgetting
        self._moments += np.outer(row, row * weight)
        self._cross *= self.settings.forgetting
        self._cross += row * (weight * elapsed_s / scale)
        self.observations += 1
        if self.observations < self._settled_at or self.observations % self.settings.refit_every == 0:
            self._refit(_RIDGE / scale**2)
        return predicted - elapsed_s

    def _observe_gap(self, features: StepFeatures) -> None:
        gap = self._coef[3] * features.extend_passes + self._coef[4] * features.extend_tokens
        delta = gap - self._gap_s
        self._gap_s += _GAP_RATE * delta
        self._gap_variance += _GAP_RATE * (delta * delta - self._gap_variance)

    def _weight(self, residual: float) -> float:
        """Huber weight of one relative residual; watches for residuals that keep leaving on one side."""
        if self.observations < self.settings.warmup_steps:
            return 1.0
        limit = self.settings.clip_sigmas * max(self.relative_sigma, 0.005)
        size = abs(residual)
        self._variance += 0.05 * (min(size, limit) ** 2 - self._variance)
        if size <= limit:
            self._run = 0
            return 1.0
        sign = 1 if residual > 0 else -1
        self._run = self._run + sign if self._run * sign >= 0 else sign
        if abs(self._run) < self.settings.shift_run:
            return limit / size
        self.shifts += 1
        self._settled_at = self.observations + _SETTLING
        self._moments *= _SHIFT_DISCOUNT
        self._cross *= _SHIFT_DISCOUNT
        return 1.0

    def _refit(self, ridge: float) -> None:
        """Active-set solution of the non-negative fit: drop the most negative coefficient, solve again."""
        matrix = self._moments + ridge * np.eye(5)
        target = self._cross + ridge * self._theta
        live = np.arange(5)
        solution = np.linalg.solve(matrix, target)
        while len(live) > 1 and solution.min() < 0.0:
            live = np.delete(live, solution.argmin())
            solution = np.linalg.solve(matrix[np.ix_(live, live)], target[live])
        self._theta = np.zeros(5)
        self._theta[live] = np.maximum(solution, 0.0)
        c0, c1, c2, c3, c4 = (self._theta * _SCALE).tolist()
        self._coef = (c0, c1, c2, c3, c4)
