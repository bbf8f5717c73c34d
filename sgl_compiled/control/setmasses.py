"""An evaluated tree as masses on sets of labels, and the sets that may still be the best."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from sgl_compiled.control.evidence import Evidence
from sgl_compiled.control.leaves import TINY, Leaf, Masses, leaves, probability
from sgl_compiled.control.node import Bounds, Objective, Path
from sgl_compiled.control.outcomes import Outcomes
from sgl_compiled.control.setbound import ItemCode, Items, SetBound

__all__ = ["LabelSet", "SetMasses"]

RIVALS = 16
"""Sets, strongest first, whose open prefixes are preferred."""

RIVAL_EVALUATIONS = 500
"""Partial sets to look at for them: on flat posteriors, where that finds none, preferring them gains little."""


class LabelSet(NamedTuple):
    """A set (with ``distinct=False`` a multiset) of labels."""

    labels: tuple[int, ...]  # ascending
    probability: Bounds
    best: Path | None  # its most probable evaluated ordering


class SetMasses:
    """The evidence as masses on sets, at one moment."""

    def __init__(self, evidence: Evidence, outcomes: Outcomes, objective: Objective) -> None:
        self.objective: Objective = objective
        cells = leaves(evidence, objective)
        self.open: list[tuple[Leaf, float, set[int]]] = []
        self.code = ItemCode(outcomes.n_labels, outcomes.n_slots, outcomes.distinct)
        self.total = Masses.of(cells, objective)
        self.lower: defaultdict[Items, float] = defaultdict(float)
        self.best: dict[Items, tuple[float, Path]] = {}
        groups: defaultdict[Items, float] = defaultdict(float)
        for cell in cells:
            mass = cell.mass(objective)
            if cell.complete:
                items = self.code.items(outcomes.labels(cell.state))
                self.lower[items] += mass
                if items not in self.best or mass > self.best[items][0]:
                    self.best[items] = mass, cell.path
            else:
                items = self.code.items(outcomes.filled(cell.state).labels)
                self.open.append((cell, mass, set(items)))
            groups[items] += mass
        self.bound = SetBound(groups, outcomes.n_slots, self.code.universe)
        self.ranked = sorted(self.lower, key=lambda items: (-self.lower[items], items))
        self.first = self.ranked[0] if self.ranked else None
        self._floor = 0.0 if self.first is None else self.lower[self.first]

    @cached_property
    def certified(self) -> bool:
        """No other set has more mass than the first."""
        if self._floor < TINY:
            return False
        return self.total.waiting == 0 or not any(self._rivals(self.bound.exceeding(self._floor)))

    @cached_property
    def rival(self) -> Items | None:
        """The strongest other set that may have more mass than the first."""
        return self._strongest[0]

    @cached_property
    def gap(self) -> float:
        """No other set has more than this much more probability than the first."""
        if self.certified:
            return 0.0
        least = 1.0 if self.objective == "policy" else self.total.settled
        return min(1.0, (self._strongest[1] - self._floor) / least) if least >= TINY else 1.0

    @cached_property
    def _strongest(self) -> tuple[Items | None, float]:
        return next(self._rivals(self.bound.descending(floor=self._floor)), (None, self._floor))

    def _rivals(self, found: Iterator[tuple[Items | None, float]]) -> Iterator[tuple[Items | None, float]]:
        return (pair for pair in found if pair[0] is None or (pair[0] != self.first and self.code.valid(pair[0])))

    def entry(self, items: Items) -> LabelSet:
        """Bounds of one set."""
        lower = self.lower.get(items, 0.0)
        upper = max(lower, self.bound.upper(items)) if self.total.waiting else lower
        best = self.best.get(items)
        return LabelSet(
            self.code.labels(items), probability(Bounds(lower, upper), self.total), best[1] if best else None
        )

    def waiting(self, n: int) -> tuple[Path, ...]:
        """Open prefixes to evaluate next: half of them the heaviest of the best set and its rivals, then by mass.

        Mass alone settles flat posteriors late, the rivals alone chase one set after the other.
        """
        cells = sorted((pair for pair in self.open if pair[1] > 0), key=lambda pair: -pair[1])
        sets = [] if self.first is None else [set(self.first)]
        strongest = self.bound.descending(RIVAL_EVALUATIONS, floor=self._floor)
        sets += [set(items) for items, _ in islice(self._rivals(strongest), RIVALS) if items is not None]
        close = [cell.path for cell, _, items in cells if any(items <= other for other in sets)]
        return tuple(dict.fromkeys([*close[: (n + 1) // 2], *(cell.path for cell, _, _ in cells)]))[:n]
