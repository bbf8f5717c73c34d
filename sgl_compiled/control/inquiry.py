"""What a request wants to know, as a source of prefixes to evaluate: one loop serves them all.

The loop, in whatever way passes are sent::

    while prefixes := inquiry.next(batch):
        layout = expansion(inquiry.evidence, prefixes, max_positions=room, objective=inquiry.objective)
        inquiry.evidence.absorb(layout, rows_of(layout))
"""

from __future__ import annotations

from typing import Protocol

from sgl_compiled.control.evidence import Evidence
from sgl_compiled.control.leaves import leaves
from sgl_compiled.control.node import Objective, Path
from sgl_compiled.control.sample import Samples, sample
from sgl_compiled.control.sequences import Ranking, ranking

__all__ = ["Distribution", "Draws", "Inquiry", "TopSequences"]


class Inquiry(Protocol):
    """A question to an answer tree; :class:`~sgl_compiled.control.mapset.SetSearch` is one too."""

    evidence: Evidence
    objective: Objective

    def next(self, limit: int) -> tuple[Path, ...]:
        """Up to ``limit`` prefixes to evaluate next, most wanted first; empty once the question is answered."""
        ...


class TopSequences:
    """The ``n`` most probable answers, certainly; with ``n = 1`` the most probable one."""

    def __init__(self, evidence: Evidence, n: int = 1, objective: Objective = "policy") -> None:
        self.evidence = evidence
        self.n = n
        self.objective: Objective = objective

    def result(self) -> Ranking:
        """Return the ranking so far."""
        return ranking(self.evidence, self.n, self.objective)

    def next(self, limit: int) -> tuple[Path, ...]:
        """Return the heaviest open prefixes; those that no answer of the first ``n`` can lie behind are left alone."""
        found = self.result()
        if found.certified == self.n:
            return ()
        return tuple(path for path, mass in found.open[:limit] if mass > found.floor)


class Draws:
    """Samples; see :func:`~sgl_compiled.control.sample.sample`."""

    def __init__(
        self, evidence: Evidence, n: int = 1, temperature: float = 1.0, seed: int = 0, objective: Objective = "policy"
    ) -> None:
        self.evidence = evidence
        self.n, self.temperature, self.seed = n, temperature, seed
        self.objective: Objective = objective

    def result(self) -> Samples:
        """Return the draws so far."""
        return sample(self.evidence, self.n, temperature=self.temperature, seed=self.seed, objective=self.objective)

    def next(self, limit: int) -> tuple[Path, ...]:
        """Return the prefixes that most unfinished draws wait for."""
        return tuple(path for path, _ in self.result().missing[:limit])


class Distribution:
    """Every answer's probability, to within ``tolerance``: for options, interaction mass and total variation."""

    def __init__(self, evidence: Evidence, objective: Objective = "policy", tolerance: float = 0.0) -> None:
        self.evidence = evidence
        self.objective: Objective = objective
        self.tolerance = tolerance

    def next(self, limit: int) -> tuple[Path, ...]:
        """Return the heaviest open prefixes, until all open mass together is at most ``tolerance`` of the whole."""
        cells = [(cell.mass(self.objective), cell) for cell in leaves(self.evidence, self.objective)]
        waiting = sorted((pair for pair in cells if not pair[1].complete), key=lambda pair: -pair[0])
        left = sum(mass for mass, _ in waiting)
        if left <= self.tolerance * sum(mass for mass, _ in cells):
            return ()
        return tuple(cell.path for mass, cell in waiting[:limit] if mass > 0)
