"""Upper bounds over all sets of a size at once, without listing them."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["ItemCode", "Items", "SetBound"]

Items = tuple[int, ...]
"""A set of items, ascending."""

FloatArray = npt.NDArray[np.float64]

MAX_EVALUATIONS = 4_000
"""Partial sets that a search bounds at most."""


class ItemCode(NamedTuple):
    """Labels as items of a set: where a label may come again, its second coming is an item of its own."""

    n_labels: int
    n_slots: int
    distinct: bool

    @property
    def universe(self) -> int:
        """How many items there are."""
        return self.n_labels if self.distinct else self.n_labels * self.n_slots

    def items(self, labels: Iterable[int]) -> Items:
        """Encode labels, in any order."""
        if self.distinct:
            return tuple(sorted(labels))
        times: Counter[int] = Counter()
        out: list[int] = []
        for label in labels:
            out.append(label + self.n_labels * times[label])
            times[label] += 1
        return tuple(sorted(out))

    def labels(self, items: Items) -> tuple[int, ...]:
        """Decode, ascending."""
        return tuple(sorted(item % self.n_labels for item in items))

    def valid(self, items: Items) -> bool:
        """Whether some labels have this code: no second coming without a first."""
        return all(item < self.n_labels or item - self.n_labels in items for item in items)


class SetBound:
    r"""Bounds ``U(S) = sum of g(A) over A within S``, for sets ``S`` of ``size`` items out of ``universe``.

    ``g(A)`` is the mass of all cells of the evaluated tree that fix the items ``A``: a whole ordering of ``S`` counts
    for ``S`` alone, an open prefix for every set that contains it.

    A partial set ``I`` bounds all sets that extend it: ``g`` of the groups within ``I``, plus the ``size - |I|``
    largest weights :math:`w(x) = \sum_{A \ni x} g(A) / |A \setminus I|` (a group's mass, shared out among the items
    it still needs, is collected in full only by sets that hold all of them).

    Parameters
    ----------
    groups : mapping
        ``g``, by items.
    size, universe : int
        Items of a set, and how many there are to choose from.
    """

    def __init__(self, groups: Mapping[Items, float], size: int, universe: int) -> None:
        kept = [items for items in groups if len(items) <= size]
        self.size, self.universe = size, universe
        self._mass = np.array([groups[items] for items in kept], dtype=np.float64)
        self._item = np.array([item for items in kept for item in items], dtype=np.int64)
        self._owner = np.repeat(np.arange(len(kept)), [len(items) for items in kept])

    def upper(self, items: Items) -> float:
        """Return ``U`` of one set."""
        return float(self._mass[self._needs(items) == 0].sum())

    def descending(
        self, max_evaluations: int = MAX_EVALUATIONS, *, floor: float = -np.inf
    ) -> Iterator[tuple[Items | None, float]]:
        """Yield sets with ``U`` above ``floor`` from the largest ``U`` down, found best first.

        After ``max_evaluations`` partial sets it ends with ``(None, bound)``: no set that is still missing exceeds it.
        """
        # Among equal bounds the fullest set first: it is the next to be complete.
        return self._search(max_evaluations, floor, lambda bound, left: (-bound, left))

    def exceeding(self, floor: float, max_evaluations: int = MAX_EVALUATIONS) -> Iterator[tuple[Items | None, float]]:
        """Yield the sets of :meth:`descending` in the order of the first found: the quickest way to know of any."""
        return self._search(max_evaluations, floor, lambda bound, left: (left, -bound))

    def _search(
        self, max_evaluations: int, floor: float, rank: Callable[[float, int], tuple[float, float]]
    ) -> Iterator[tuple[Items | None, float]]:
        """Yield sets with ``U`` above ``floor``; of the partial sets the one that ranks lowest is split next."""
        evaluated = 0
        ties = count()
        heap: list[tuple[tuple[float, float], int, float, Items, Items, int]] = []

        def push(chosen: Items, excluded: Items) -> None:
            nonlocal evaluated
            evaluated += 1
            found = self._bound(chosen, excluded)
            if found is not None and found[0] > floor:
                bound, item = found
                left = self.size - len(chosen)
                heapq.heappush(heap, (rank(bound, left), next(ties), bound, chosen, excluded, item))

        push((), ())
        while heap:
            _, _, bound, chosen, excluded, item = heapq.heappop(heap)
            if len(chosen) == self.size:
                yield tuple(sorted(chosen)), bound
            elif evaluated >= max_evaluations:
                yield None, max([bound, *(other for _, _, other, *_ in heap)])
                return
            else:
                push((*chosen, item), excluded)
                push(chosen, (*excluded, item))

    def _needs(self, chosen: Items, excluded: Items = ()) -> FloatArray:
        """How many items each group needs beside ``chosen``; too many for any set where it holds an excluded one."""
        cost = np.ones(self.universe)
        cost[list(chosen)] = 0
        cost[list(excluded)] = self.size + 1
        needs = np.bincount(self._owner, weights=cost[self._item], minlength=len(self._mass))
        return np.asarray(needs, dtype=np.float64)

    def _bound(self, chosen: Items, excluded: Items) -> tuple[float, int] | None:
        """Bound of all sets that hold ``chosen`` and nothing ``excluded``, and the item to branch on next."""
        left = self.size - len(chosen)
        if self.universe - len(chosen) - len(excluded) < left:
            return None
        needs = self._needs(chosen, excluded)
        within = float(self._mass[needs == 0].sum())
        if left == 0:
            return within, -1
        share = np.divide(self._mass, needs, out=np.zeros(len(self._mass)), where=(needs > 0) & (needs <= left))
        weight = np.bincount(self._item, weights=share[self._owner], minlength=self.universe)
        weight[[*chosen, *excluded]] = -1.0
        best = np.partition(weight, -left)[-left:]
        return within + float(best.sum()), int(weight.argmax())
