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
    otherwise, ``replay_ms`` what a serial replay of it takes, ``answer`` which answer it belongs to.
    """

    answer: int
    margin: float
    flipped: bool
    replay_ms: float


class Point(NamedTuple):
    """The dial at one setting."""

    theta: float
    gated_share: float  # of the decisions
    decision_agreement: float  # share of the decisions that are replayed or did not flip
    answer_agreement: float  # share of the answers whose decisions all are
    cost_ms: float  # mean replay time an answer


def cost_curve(records: Sequence[Recorded], thetas: Sequence[float] | None = None) -> list[Point]:
    """Cost and agreement as functions of ``theta``.

    Parameters
    ----------
    records : sequence of Recorded
        At least one.
    thetas : sequence of float, optional
        By default 0 and just above each distinct margin, where the curve steps.
    """
    assert records
    margins = np.array([record.margin for record in records])
    flipped = np.array([record.flipped for record in records], dtype=np.bool_)
    cost = np.array([record.replay_ms for record in records])
    _, answer = np.unique([record.answer for record in records], return_inverse=True)
    n_answers = int(answer.max()) + 1
    if thetas is None:
        thetas = [0.0, *np.nextafter(np.unique(margins), np.inf).tolist()]
    out = []
    for theta in thetas:
        replayed = margins < theta
        wrong = flipped & ~replayed
        out.append(
            Point(
                float(theta),
                float(replayed.mean()),
                float(1 - wrong.mean()),
                float(1 - len(np.unique(answer[wrong])) / n_answers),
                float(cost[replayed].sum() / n_answers),
            )
        )
    return out


def parity_theta(records: Sequence[Recorded]) -> float:
    """Least ``theta`` at which every recorded decision agrees: just above the largest margin that flipped."""
    worst = max((record.margin for record in records if record.flipped), default=None)
    return 0.0 if worst is None else float(np.nextafter(worst, np.inf))
