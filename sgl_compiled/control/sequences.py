"""Whole answers by probability: the most probable ones, and every option of a single choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sgl_compiled.control.evidence import Evidence
from sgl_compiled.control.leaves import Leaf, Masses, leaves, probability
from sgl_compiled.control.node import Bounds, Objective, Path
from sgl_compiled.grammar.tokens import State

__all__ = ["Ranking", "Sequence", "ranking", "language_mass"]


class Sequence(NamedTuple):
    """One answer, as its tokens."""

    path: Path
    state: State  # where it ends; for the automaton's reader of answers
    probability: Bounds
    logprob: float  # log of the policy's probability
    raw_logprob: float | None  # over the full vocabulary; None where a forced token's row was not read


@dataclass(frozen=True)
class Ranking:
    """The most probable answers.

    Attributes
    ----------
    top : tuple of Sequence
        Evaluated answers by probability, descending; the lower token path first on a tie.
    certified : int
        How many of ``top`` are certainly in their places: no unevaluated answer is more probable.
    open : tuple of (path, float)
        Unevaluated prefixes by mass: each answer behind one has at most this probability (``"policy"``) or weight.
    floor : float
        Mass of the last of ``top``, 0 if fewer were found than asked for: a prefix with less is behind all of them.
    """

    top: tuple[Sequence, ...]
    certified: int
    open: tuple[tuple[Path, float], ...]
    floor: float
    objective: Objective


def ranking(evidence: Evidence, n: int = 5, objective: Objective = "policy") -> Ranking:
    r"""Rank whole answers.

    An answer's probability is :math:`\prod_t \pi(a_t \mid a_{<t})` under the policy :math:`\pi` (renormalised over
    the legal ids at each decision), or :math:`\prod_t p(a_t \mid a_{<t}) / Z` under the conditional objective
    (:math:`p` over the full vocabulary, :math:`Z` the sum over all answers). Neither divides by length.

    An answer behind an unevaluated prefix of mass ``m`` has at most mass ``m``; the first answers whose masses reach
    the largest ``m`` are certain. To certify more, evaluate the prefixes in ``open`` from the first on
    (:func:`~sgl_compiled.control.expand.expansion`).
    """
    cells = leaves(evidence, objective)
    total = Masses.of(cells, objective)
    ranked = sorted((cell for cell in cells if cell.complete), key=lambda cell: (-_log(cell, objective), cell.path))
    waiting = sorted((cell for cell in cells if not cell.complete), key=lambda cell: -_log(cell, objective))
    limit = _log(waiting[0], objective) if waiting else -np.inf
    top = tuple(
        Sequence(
            cell.path,
            cell.state,
            probability(Bounds(cell.mass(objective), cell.mass(objective)), total),
            cell.policy,
            cell.raw if cell.raw_exact else None,
        )
        for cell in ranked[:n]
    )
    certified = sum(_log(cell, objective) >= limit for cell in ranked[:n])
    floor = ranked[n - 1].mass(objective) if len(ranked) >= n else 0.0
    return Ranking(top, certified, tuple((cell.path, cell.mass(objective)) for cell in waiting), floor, objective)


def language_mass(evidence: Evidence) -> Bounds:
    """Bound the probability that the unconstrained model, behind the forced opening, writes an answer of the grammar.

    Exact where every state was evaluated, those with one legal id included.
    """
    cells = leaves(evidence, "conditional")
    total = Masses.of(cells, "conditional")
    return Bounds(min(total.complete, 1.0), min(total.complete + total.open, 1.0))


def _log(cell: Leaf, objective: Objective) -> float:
    return cell.policy if objective == "policy" else cell.raw
