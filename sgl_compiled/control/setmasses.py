"""An evaluated tree as masses on sets of labels, and the sets that may still be the best."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from sgl_compiled.control.evidence import Evidence
from sgl_compiled.control.leaves import Leaf, Masses, leaves, probability
from sgl_compiled.control.node import Bounds, Objective, Path
from sgl_compiled.control.outcomes import Outcomes
from sgl_compiled.control.setbound import ItemCode, Items, SetBound

__all__ = ["LabelSet", "SetMasses"]

RIVALS = 16
"""Sets whose open prefixes are evaluated first; more would spread a batch thin."""


class LabelSet(NamedTuple):
    """A set (with ``distinct=False`` a multiset) of labels."""

    labels: tuple[int, ...]  # ascending
    probability: Bounds
    best: Path | None  # its most probable evaluated ordering


class SetMasses:
    """The evidence as masses on sets, at one moment."""

    def __init__(self, evidence: Evidence, outcomes: Outcomes, objective: Objective) -> None:
        self.objective: Objective = objective
        self.cells = [(cell, cell.mass(objective)) for cell in leaves(evidence, objective)]
        self.code = ItemCode(outcomes.n_labels, outcomes.n_slots, outcomes.distinct)
        self.total = Masses.of([cell for cell, _ in self.cells], objective)
        self.items: dict[Path, Items] = {}  # of the open cells
        self.lower: defaultdict[Items, float] = defaultdict(float)
        self.best: dict[Items, tuple[float, Path]] = {}
        groups: defaultdict[Items, float] = defaultdict(float)
        for cell, mass in self.cells:
            if cell.complete:
                items = self.code.items(outcomes.labels(cell.state))
                self.lower[items] += mass
                if items not in self.best or mass > self.best[items][0]:
                    self.best[items] = mass, cell.path
            else:
                items = self.items[cell.path] = self.code.items(outcomes.filled(cell.state).labels)
            groups[items] += mass
        self.bound = SetBound(groups, outcomes.n_slots, self.code.universe)
        self.ranked = sorted(self.lower, key=lambda items: (-self.lower[items], items))
        self.first = self.ranked[0] if self.ranked else None
        self.rivals, excess = self._challenge()
        self.rival = self.rivals[0] if self.rivals else None
        self.certified = self.first is not None and (excess <= 0 or self.total.open == 0)
        least = 1.0 if objective == "policy" else self.total.complete
        self.gap = 0.0 if self.certified else min(1.0, excess / least) if least > 0 else 1.0

    def _challenge(self) -> tuple[list[Items], float]:
        """Return sets that may still beat the best one, strongest first, and the mass by which the first may."""
        rivals: list[Items] = []
        threshold = 0.0 if self.first is None else self.lower[self.first]
        excess: float | None = None
        for items, upper in self.bound.descending():
            if items is not None and (items == self.first or not self.code.valid(items)):
                continue
            excess = upper - threshold if excess is None else excess
            if items is None or upper <= threshold or len(rivals) == RIVALS:
                break
            rivals.append(items)
        return rivals, 0.0 if excess is None else excess

    def entry(self, items: Items) -> LabelSet:
        """Bounds of one set."""
        lower = self.lower.get(items, 0.0)
        upper = max(lower, self.bound.upper(items)) if self.total.open else lower
        best = self.best.get(items)
        return LabelSet(
            self.code.labels(items), probability(Bounds(lower, upper), self.total), best[1] if best else None
        )

    def waiting(self) -> list[Leaf]:
        """Open cells by mass, those of the best set and its rivals first."""
        wanted = [set(items) for items in (self.first, *self.rivals) if items is not None]
        cells = [(cell, mass) for cell, mass in self.cells if not cell.complete and mass > 0]

        def order(pair: tuple[Leaf, float]) -> tuple[bool, float]:
            items = set(self.items[pair[0].path])
            return not any(items <= other for other in wanted), -pair[1]

        return [cell for cell, _ in sorted(cells, key=order)]
