"""Where the evaluated tree ends: whole answers, and prefixes that nobody has looked behind."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, isfinite
from sys import float_info
from typing import NamedTuple

from sgl_compiled.control.evidence import Evidence
from sgl_compiled.control.node import Bounds, Node, Objective, Path
from sgl_compiled.grammar.tokens import State

__all__ = ["TINY", "Leaf", "Masses", "leaves", "probability"]

TINY = float_info.min
"""Sums below it have lost their digits to underflow: they are no longer divided by, nor compared."""


class Leaf(NamedTuple):
    """A cell of the partition of all answers that the evaluated tree makes."""

    path: Path
    state: State
    policy: float  # log of the constrained policy's probability of the path
    raw: float  # log of the full-vocabulary probability of the path, or an upper bound of it
    raw_exact: bool
    complete: bool  # a whole answer; otherwise every answer that starts with the path
    unit: float = 0.0  # log of the weight that counts as 1, the same for all cells listed together

    def mass(self, objective: Objective) -> float:
        """Probability (``"policy"``) or weight (``"conditional"``, in the cells' unit) of the cell, at most."""
        return exp(self.policy if objective == "policy" else self.raw - self.unit)


def leaves(evidence: Evidence, objective: Objective = "policy", root: Node | None = None) -> list[Leaf]:
    """List the cells below ``root`` (by default the whole tree) in the order of their paths.

    The policy passes states with one legal id without evaluating them; a full-vocabulary probability needs their rows
    too, so with ``"conditional"`` such a state without a row ends its path.

    The unit of weight is the heaviest cell: only ratios are used, and long answers' own weights underflow.
    """
    start = evidence.root if root is None else root
    out: list[Leaf] = []
    stack: list[tuple[Node, float, float, bool]] = [(start, 0.0, 0.0, True)]
    while stack:
        node, policy, raw, exact = stack.pop()
        if not node.legal:
            out.append(Leaf(node.path, node.state, policy, raw, exact, True))
            continue
        edges = node.edges()
        if not edges or (objective == "conditional" and node.logits is None):
            out.append(Leaf(node.path, node.state, policy, raw, exact, False))
            continue
        for edge in reversed(edges):
            step = (policy + edge.policy, raw + (edge.raw or 0.0), exact and edge.raw is not None)
            if edge.token is None:
                # First of the edges, so that an answer stands before those it is a prefix of.
                out.append(Leaf(node.path, node.state, *step, True))
            else:
                stack.append((evidence.child(node, edge.token), *step))
    heaviest = max(cell.raw for cell in out)
    return [cell._replace(unit=heaviest) for cell in out] if isfinite(heaviest) else out


class Masses(NamedTuple):
    """Total mass of complete and of open cells; only open ones can still lose mass (under ``"conditional"``)."""

    settled: float  # of complete cells, in the cells' unit
    waiting: float  # of open cells, in the cells' unit
    objective: Objective
    unit: float

    @classmethod
    def of(cls, cells: Sequence[Leaf], objective: Objective) -> Masses:
        """Sum the cells of one list."""
        settled = sum(cell.mass(objective) for cell in cells if cell.complete)
        waiting = sum(cell.mass(objective) for cell in cells if not cell.complete)
        return cls(settled, waiting, objective, cells[0].unit if objective == "conditional" else 0.0)

    @property
    def complete(self) -> float:
        """Absolute mass of complete cells, which may underflow."""
        return self.settled * exp(self.unit)

    @property
    def open(self) -> float:
        """Absolute mass of open cells, which may underflow."""
        return self.waiting * exp(self.unit)


def probability(mass: Bounds, total: Masses) -> Bounds:
    """Bound the probability of an event with at least ``mass.lower`` and at most ``mass.upper`` of all mass.

    Masses are in the cells' unit.

    Under the policy masses are probabilities. Under the conditional objective they are weights ``W``, and
    ``P = W / (W + W_rest)``: lowest where all open mass falls to the rest, highest where the event gets all it can
    and the other open cells turn out to lead nowhere.
    """
    if total.objective == "policy":
        return Bounds(min(mass.lower, 1.0), min(mass.upper, 1.0))
    everything = total.settled + total.waiting
    least = total.settled - mass.lower + mass.upper
    if everything == 0:
        return Bounds(0.0, 1.0)
    lower = min(mass.lower / everything, 1.0)
    if total.waiting == 0 and mass.exact:
        return Bounds(lower, lower)
    return Bounds(lower, min(mass.upper / least, 1.0) if least >= TINY else 1.0)
