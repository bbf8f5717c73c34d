"""Policies: which rows decode in the next step. Pure; the scheduler and the simulator run the same objects."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..errors import RequestError
from .admission import MAX_WAIT_STEPS, rank_in_request
from .predictor import StepTimePredictor
from .taper import TaperPolicy
from .view import Decision, StepView

__all__ = ["CapPolicy", "EagerPolicy", "Policy", "make_policy"]


class Policy(Protocol):
    """Chooses the rows of a step."""

    @property
    def name(self) -> str:
        """Name under which :func:`make_policy` makes it."""
        ...

    def decide(self, view: StepView, predictor: StepTimePredictor) -> Decision:
        """Rows that run: at least one of every request that has any."""
        ...


@dataclass(frozen=True, slots=True)
class EagerPolicy:
    """Every branch runs in every step."""

    @property
    def name(self) -> str:
        """See :class:`Policy`."""
        return "eager"

    def decide(self, view: StepView, predictor: StepTimePredictor) -> Decision:
        """See :class:`Policy`."""
        return Decision(run=np.ones(len(view.owner), dtype=np.bool_))


@dataclass(frozen=True, slots=True)
class CapPolicy:
    """At most `cap` branches of a request run; with cap 1 they run one by one (`off`)."""

    cap: int

    @property
    def name(self) -> str:
        """See :class:`Policy`."""
        return "off" if self.cap == 1 else f"cap:{self.cap}"

    def decide(self, view: StepView, predictor: StepTimePredictor) -> Decision:
        """See :class:`Policy`."""
        rank, _ = rank_in_request(view, MAX_WAIT_STEPS)
        return Decision(run=rank < self.cap)


def make_policy(name: str) -> Policy:
    """Policy by name.

    Raises
    ------
    RequestError
        If `name` is none of ``taper``, ``eager``, ``off``, ``cap:N`` with N >= 1.
    """
    if name == "taper":
        return TaperPolicy()
    if name == "eager":
        return EagerPolicy()
    if name == "off":
        return CapPolicy(1)
    if match := re.fullmatch(r"cap:([1-9]\d{0,5})", name):
        return CapPolicy(int(match[1]))
    raise RequestError(f"unknown branch policy {name!r}: use taper, eager, off or cap:N with N of 1 or more")
