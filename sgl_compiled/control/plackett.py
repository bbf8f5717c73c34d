"""The Plackett-Luce policy: every slot from the first slot's probabilities, with taken labels removed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from sgl_compiled.control.node import log_sum

__all__ = ["PlackettLuce"]


class PlackettLuce:
    r"""A distribution over label sequences that looks at the prompt only.

    .. math:: P_U(\sigma) = \prod_i \frac{w(\sigma_i)}{\sum_{x \notin \{\sigma_1 .. \sigma_{i-1}\}} w(x)}

    Parameters
    ----------
    log_weights : ndarray of float64, shape (n_labels,)
        Log-probabilities of the labels in the first slot.
    n_slots : int
    distinct : bool
        Without it nothing is removed, and every slot has the first one's distribution.
    """

    def __init__(self, log_weights: npt.NDArray[np.float64], n_slots: int, distinct: bool) -> None:
        self.log_weights = log_weights
        self.n_slots = n_slots
        self.distinct = distinct
        # Ascending: the least likely sequence takes the least likely labels first.
        self._ascending = [int(label) for label in np.argsort(log_weights, kind="stable")]
        self._left: dict[frozenset[int], float] = {}
        self._prefix: dict[tuple[int, ...], float] = {}

    def log_prefix(self, labels: tuple[int, ...]) -> float:
        """Log-probability that the first slots hold ``labels``."""
        if not labels:
            return 0.0
        if labels not in self._prefix:
            self._prefix[labels] = self.log_prefix(labels[:-1]) + self.log_next(labels[:-1], labels[-1:])
        return self._prefix[labels]

    def log_next(self, taken: tuple[int, ...], among: Iterable[int]) -> float:
        """Log-probability that the slot behind ``taken`` holds one of ``among`` (labels taken already do not count)."""
        free = [label for label in among if not (self.distinct and label in taken)]
        left = self._log_left(frozenset(taken) if self.distinct else frozenset())
        if not free or not np.isfinite(left):
            return -np.inf
        return (float(self.log_weights[free[0]]) if len(free) == 1 else log_sum(self.log_weights[free])) - left

    def log_least(self, labels: tuple[int, ...]) -> float:
        """Log-probability of the least likely whole sequence that starts with ``labels``."""
        total, filled = self.log_prefix(labels), labels
        while len(filled) < self.n_slots:
            label = next(label for label in self._ascending if not (self.distinct and label in filled))
            total += self.log_next(filled, (label,))
            filled = (*filled, label)
        return total

    def choice(self) -> tuple[int, ...]:
        """Its greedy sequence: labels by weight, the lower index first on a tie."""
        order = np.argsort(-self.log_weights, kind="stable")
        return tuple(int(order[slot if self.distinct else 0]) for slot in range(self.n_slots))

    def _log_left(self, taken: frozenset[int]) -> float:
        if taken not in self._left:
            weights = self.log_weights.copy()
            weights[list(taken)] = -np.inf
            self._left[taken] = log_sum(weights)
        return self._left[taken]
