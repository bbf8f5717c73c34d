"""The most probable set of labels, order marginalised out, with a certificate from a partly evaluated tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sgl_compiled.control.evidence import Evidence
from sgl_compiled.control.node import Objective, Path
from sgl_compiled.control.outcomes import Outcomes
from sgl_compiled.control.setmasses import LabelSet, SetMasses

__all__ = ["SetPosterior", "SetSearch"]


@dataclass(frozen=True)
class SetPosterior:
    """What is known about ``P(S)``, the sum of an answer distribution over the orderings of ``S``.

    Attributes
    ----------
    top : tuple of LabelSet
        Those with an evaluated ordering, by lower bound.
    rival : LabelSet or None
        The set with most mass at best that may still beat ``top[0]``; ``None`` when certified.
    certified : bool
        No other set has more probability than ``top[0]``.
    gap : float
        No other set has more than this much more probability than ``top[0]``; 0 when certified.
    expanded, states : int
        Decision states evaluated, and in the whole tree.
    objective : {"policy", "conditional"}
    """

    top: tuple[LabelSet, ...]
    rival: LabelSet | None
    certified: bool
    gap: float
    expanded: int
    states: int
    objective: Objective


class SetSearch:
    """Branch and bound: says which prefixes to evaluate next, until the best set is certain.

    The caller adds passes to ``evidence``; every method reads it afresh. An open prefix with mass ``m`` adds at most
    ``m`` to any set that contains its labels. So with ``L(S)`` the mass of the evaluated orderings of ``S``,
    ``L(S) <= mass(S) <= U(S)`` (:class:`~sgl_compiled.control.setbound.SetBound`), and the set with the largest ``L``
    is certain once no other set's ``U`` exceeds it.

    Parameters
    ----------
    evidence : Evidence
    outcomes : Outcomes
    objective : {"policy", "conditional"}
        Distribution over answers whose orderings are summed; see ``docs/probabilities.md``.
    """

    def __init__(self, evidence: Evidence, outcomes: Outcomes, objective: Objective = "policy") -> None:
        self.evidence = evidence
        self.outcomes = outcomes
        self.objective: Objective = objective

    def posterior(self, n: int = 5) -> SetPosterior:
        """Return the ``n`` best sets so far, and whether the first is certain."""
        state = SetMasses(self.evidence, self.outcomes, self.objective)
        return SetPosterior(
            tuple(map(state.entry, state.ranked[:n])),
            None if state.certified or state.rival is None else state.entry(state.rival),
            state.certified,
            state.gap,
            self.expanded,
            self.outcomes.states,
            self.objective,
        )

    def next(self, limit: int) -> tuple[Path, ...]:
        """Up to ``limit`` prefixes to evaluate next, heavy ones and such as tell the best set from its rivals.

        Empty once the best set is certain.
        """
        state = SetMasses(self.evidence, self.outcomes, self.objective)
        return () if state.certified else state.waiting(limit)

    def run(self, evaluate: Callable[[tuple[Path, ...]], None], *, batch: int, max_states: int) -> SetPosterior:
        """Expand until the best set is certain or ``max_states`` decision states are evaluated.

        ``evaluate`` adds a pass over the prefixes it is given to the evidence.
        """
        while self.expanded < max_states and (prefixes := self.next(min(batch, max_states - self.expanded))):
            before = self.evidence.rows
            evaluate(prefixes)
            assert self.evidence.rows > before
        return self.posterior()

    @property
    def expanded(self) -> int:
        """Decision states evaluated so far."""
        nodes = (node for node in self.evidence.nodes() if node.logits is not None and len(node.legal) > 1)
        return len({self.outcomes.decision_state(node.state) for node in nodes})
