"""Where the evaluated tree ends: whole answers, and prefixes that nobody has looked behind."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import NamedTuple

from sgl_compiled.control.evidence import Evidence
from sgl_compiled.control.node import Bounds, Node, Objective, Path
from sgl_compiled.grammar.tokens import State

__all__ = ["Leaf", "Masses", "leaves", "probability"]


class Leaf(NamedTuple):
    """A cell of the partition of all answers that the evaluated tree makes."""

    path: Path
    state: State
    policy: float  # log of the constrained policy's probability of the path
    raw: float  # log of the full-vocabulary probability of the path, or an upper bound of it
    raw_exact: bool
    complete: bool  # a whole answer; otherwise every answer that starts with the path

    def mass(self, objective: Objective) -> float:
        """Probability (``"policy"``) or unnormalised weight (``"conditional"``) of the cell, at most."""
        return exp(self.policy if objective == "policy" else self.raw)


def leaves(evidence: Evidence, objective: Objective = "policy", root: Node | None = None) -> list[Leaf]:
    """List the cells below ``root`` (by default the whole tree) in the order of their paths.

    The policy passes states with one legal id without evaluating them; a full-vocabulary probability needs their rows
    too, so with ``"conditional"`` such a state without a row ends its path.
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
    return out


class Masses(NamedTuple):
    """Total mass of complete and of open cells; only open ones can still lose mass (under ``"conditional"``)."""

    complete: float
    open: float
    objective: Objective

    @classmethod
    def of(cls, cells: Sequence[Leaf], objective: Objective) -> Masses:
        """Sum the cells."""
        complete = sum(cell.mass(objective) for cell in cells if cell.complete)
        return cls(complete, sum(cell.mass(objective) for cell in cells if not cell.complete), objective)


def probability(mass: Bounds, total: Masses) -> Bounds:
    """Bound the probability of an event with at least ``mass.lower`` and at most ``mass.upper`` of all mass.

    Under the policy masses are probabilities. Under the conditional objective they are weights ``W``, and
    ``P = W / (W + W_rest)``: lowest where all open mass falls to the rest, highest where the event gets all it can
    and the other open cells turn out to lead nowhere.
    """
    if total.objective == "policy":
        return Bounds(min(mass.lower, 1.0), min(mass.upper, 1.0))
    everything = total.complete + total.open
    least = total.complete - mass.lower + mass.upper
    lower = min(mass.lower / everything, 1.0) if everything > 0 else 0.0
    if total.open == 0 and mass.exact:
        return Bounds(lower, lower)
    return Bounds(lower, min(mass.upper / least, 1.0) if least > 0 else 1.0)
