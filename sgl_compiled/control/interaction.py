"""How much the labels of an answer depend on each other, and what it costs to ignore that."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from sgl_compiled.control.evidence import Evidence
from sgl_compiled.control.leaves import Leaf, leaves
from sgl_compiled.control.node import Bounds, log_sum
from sgl_compiled.control.outcomes import Outcomes
from sgl_compiled.control.plackett import PlackettLuce
from sgl_compiled.errors import RequestError

__all__ = ["Interaction", "interaction"]


@dataclass(frozen=True)
class Interaction:
    r"""Interaction mass of one answer distribution.

    Attributes
    ----------
    mass : Bounds
        :math:`I_{seq} = \mathrm{KL}(P_{AR} \| P_U)` in nats: the policy against its Plackett-Luce projection. 0 where
        history does not matter. The interval closes when the whole tree is evaluated.
    utility_loss : float
        :math:`\min(1, \sqrt{I_{seq} / 2})` at the upper end (Pinsker): no expectation of a utility in [0, 1] differs
        by more between the two.
    unary : tuple of int
        The projection's own greedy choice: the first slot's most probable labels, in that order.
    greedy : tuple of int or None
        The reference policy's choice; ``None`` where its path is not evaluated to the end.
    same_sequence, same_set : bool or None
        Whether the two agree.
    """

    mass: Bounds
    utility_loss: float
    unary: tuple[int, ...]
    greedy: tuple[int, ...] | None
    same_sequence: bool | None
    same_set: bool | None


def interaction(evidence: Evidence, outcomes: Outcomes) -> Interaction:
    r"""Measure the interaction mass of the policy.

    The evaluated tree cuts the sequences into cells ``c``. Summing within cells cannot raise a divergence, and within
    a cell :math:`P_{AR}(\sigma) \le P_{AR}(c)`, so

    .. math::

        \sum_c P(c) \log \frac{P(c)}{P_U(c)} \;\le\; I_{seq} \;\le\;
        \sum_c P(c) \log \frac{P(c)}{\min_{\sigma \in c} P_U(\sigma)}

    with equality where every cell is one sequence.

    Raises
    ------
    RequestError
        The labels must come in the list's order (the projection has no such constraint), the grammar has no slots, or
        the first slot is not evaluated.
    """
    if not outcomes.any_order or not outcomes.labelled:
        raise RequestError("interaction mass compares slots of labels in any order; use labels with order='any'")
    cells = leaves(evidence)
    filled = [_filled(outcomes, cell) for cell in cells]
    if any(not labels for labels, _ in filled):
        raise RequestError("interaction mass needs the first slot evaluated; send that pass first")
    first: defaultdict[int, list[float]] = defaultdict(list)
    for cell, (labels, _) in zip(cells, filled, strict=True):
        first[labels[0]].append(cell.policy)
    weights = np.array([log_sum(np.array(first[label])) for label in range(outcomes.n_labels)])
    unary = PlackettLuce(weights, outcomes.n_slots, outcomes.distinct)
    low = high = 0.0
    for cell, (labels, among) in zip(cells, filled, strict=True):
        mass = cell.mass("policy")
        if mass == 0:
            continue
        whole = unary.log_prefix(labels)
        if among is not None:
            whole += unary.log_next(labels, among)
        least = whole if cell.complete else _least(unary, labels, among)
        low += mass * (cell.policy - whole)
        high += mass * (cell.policy - least)
    # A divergence is never negative; rounding may be.
    bounds = Bounds(max(low, 0.0), max(low, high, 0.0))
    path, ended = evidence.greedy()
    greedy = outcomes.labels(path[-1].state) if ended else None
    choice = unary.choice()
    return Interaction(
        bounds,
        min(1.0, float(np.sqrt(bounds.upper / 2))),
        choice,
        greedy,
        None if greedy is None else greedy == choice,
        None if greedy is None else sorted(greedy) == sorted(choice),
    )


def _filled(outcomes: Outcomes, cell: Leaf) -> tuple[tuple[int, ...], frozenset[int] | None]:
    return (outcomes.labels(cell.state), None) if cell.complete else outcomes.filled(cell.state)


def _least(unary: PlackettLuce, labels: tuple[int, ...], among: frozenset[int] | None) -> float:
    """Log-probability of the least likely sequence of an open cell."""
    if among is None:
        return unary.log_least(labels)
    return min(unary.log_least((*labels, label)) for label in among)
