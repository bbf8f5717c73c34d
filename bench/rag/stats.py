"""Means with intervals from resampled documents."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["FEWEST", "RESAMPLES", "SEED", "mean_interval", "ratio_interval"]

RESAMPLES = 10_000
SEED = 20240607
FEWEST = 5
"""Documents below which resampling says nothing."""


def _sums(values: NDArray[np.float64], clusters: Sequence[Hashable]) -> NDArray[np.float64]:
    """Return one row a cluster: the sums of the columns of ``values``, shape ``(clusters, columns)``."""
    index = {cluster: row for row, cluster in enumerate(dict.fromkeys(clusters))}
    out = np.zeros((len(index), values.shape[1]))
    np.add.at(out, [index[cluster] for cluster in clusters], values)
    return out


def ratio_interval(
    numerator: Sequence[float], denominator: Sequence[float], clusters: Sequence[Hashable], level: float = 0.95
) -> tuple[float, float, float]:
    """Return ``sum(numerator) / sum(denominator)`` with its percentile interval.

    Parameters
    ----------
    numerator, denominator : sequence of float
        Paired by question, of equal length, not empty; denominators positive.
    clusters : sequence
        The document of each question; whole documents are drawn, 10,000 times, with a fixed seed.
    level : float
        Coverage of the interval.

    Returns
    -------
    tuple of float
        Ratio, lower and upper end; the ends are NaN where there are fewer than ``FEWEST`` documents.
    """
    sums = _sums(np.column_stack([numerator, denominator]).astype(np.float64), clusters)
    top, bottom = sums.sum(axis=0)
    count = len(sums)
    if count < FEWEST:
        return float(top / bottom), float("nan"), float("nan")
    draws = np.random.default_rng(SEED).multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    totals = draws @ sums
    low, high = np.quantile(totals[:, 0] / totals[:, 1], [(1 - level) / 2, (1 + level) / 2])
    return float(top / bottom), float(low), float(high)


def mean_interval(values: Sequence[float], clusters: Sequence[Hashable]) -> tuple[float, float, float]:
    """Return the mean over questions with its interval; see :func:`ratio_interval`."""
    return ratio_interval(values, np.ones(len(values)).tolist(), clusters)
