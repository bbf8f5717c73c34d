"""The parity dial: decisions with small margins are replayed serially, at a cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["Point", "Recorded", "cost_curve", "gated", "parity_theta"]


def gated(margin: float, theta: float) -> bool:
    """Whether a decision is replayed serially: its margin is below ``theta`` (0 switches the dial off)."""
    return margin < theta


class Recorded(NamedTuple):
    """A decision seen both ways.

    ``margin`` is the probe's (all that is known when the dial decides), ``flipped`` whether serial decoding decided
    otherwise, ``answer`` which answer it belongs to, ``replay_ms`` what decoding that answer serially takes.
    """

    answer: int
    margin: float
    flipped: bool
    replay_ms: float


class Point(NamedTuple):
    """The dial at one setting."""

    theta: float
    gated_share: float  # of the decisions
    replayed_share: float  # of the answers: those with a gated decision
    answer_agreement: float  # share of the answers that are replayed or have no flip
    cost_ms: float  # mean replay time an answer


def cost_curve(records: Sequence[Recorded], thetas: Sequence[float] | None = None) -> list[Point]:
    """Cost and agreement as functions of ``theta``; one gated decision has its whole answer replayed.

    Parameters
    ----------
    records : sequence of Recorded
        At least one.
    thetas : sequence of float, optional
        By default 0 and just above each distinct margin, where the curve steps.
    """
    assert records
    margins = np.array([record.margin for record in records])
    _, answer = np.unique([record.answer for record in records], return_inverse=True)
    n_answers = int(answer.max()) + 1
    lowest, cost = np.full(n_answers, np.inf), np.zeros(n_answers)
    flipped = np.zeros(n_answers, dtype=np.bool_)
    np.minimum.at(lowest, answer, margins)
    np.maximum.at(cost, answer, [record.replay_ms for record in records])
    np.logical_or.at(flipped, answer, [record.flipped for record in records])
    if thetas is None:
        thetas = [0.0, *np.nextafter(np.unique(margins), np.inf).tolist()]
    out = []
    for theta in thetas:
        replayed = lowest < theta
        out.append(
            Point(
                float(theta),
                float((margins < theta).mean()),
                float(replayed.mean()),
                float((replayed | ~flipped).mean()),
                float(cost[replayed].sum() / n_answers),
            )
        )
    return out


def parity_theta(records: Sequence[Recorded]) -> float:
    """Return the setting at which every recorded answer agrees: just above the largest margin that flipped."""
    worst = max((record.margin for record in records if record.flipped), default=None)
    return 0.0 if worst is None else float(np.nextafter(worst, np.inf))
