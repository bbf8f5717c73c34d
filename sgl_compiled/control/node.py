"""A point of an answer tree and what one row of logits says there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from sgl_compiled.grammar.tokens import State

__all__ = ["Bounds", "Edge", "FloatArray", "Node", "Objective", "Path", "log_sum"]

FloatArray = npt.NDArray[np.float64]

Path = tuple[int, ...]
"""Answer tokens from the automaton's start, stop ids excluded."""

Objective = Literal["policy", "conditional"]
"""Renormalised at every decision (what masked decoding follows), or once over whole answers."""


class Bounds(NamedTuple):
    """A number known to lie in ``[lower, upper]``; both ends are equal where it is exact."""

    lower: float
    upper: float

    @property
    def exact(self) -> bool:
        """Whether nothing unevaluated can move it."""
        return self.lower == self.upper


def log_sum(values: FloatArray) -> float:
    """Log of the sum of exponentials; minus infinity for an empty array."""
    top = float(values.max(initial=-np.inf))
    return top + float(np.log(np.exp(values - top).sum())) if np.isfinite(top) else top


class Edge(NamedTuple):
    """One way on: a token, or the end of the answer (all stop ids together)."""

    token: int | None  # None: the answer ends here
    policy: float  # log-probability over the legal set
    raw: float | None  # log-probability over the full vocabulary; None where no row was read


@dataclass(eq=False)
class Node:
    """A point of the answer, reached by one token path.

    Attributes
    ----------
    path, state
        The tokens that lead here, and where they leave the automaton.
    legal : tuple of int
        Legal ids, ascending, stop ids included; empty where the answer is complete.
    following : mapping
        Legal ids that continue the answer.
    logits : ndarray of float64, shape (n_legal,), or None
        ``None``: not evaluated.
    lse : float
        Log-sum-exp of the whole vocabulary's logits.
    """

    path: Path
    state: State
    legal: tuple[int, ...]
    following: Mapping[int, State]
    logits: FloatArray | None = None
    lse: float = 0.0
    children: dict[int, Node] = field(default_factory=dict, repr=False)
    _edges: tuple[Edge, ...] = field(default=(), repr=False)

    @property
    def raw(self) -> FloatArray | None:
        """Log-probabilities of the legal ids over the full vocabulary."""
        return None if self.logits is None else self.logits - self.lse

    @property
    def policy(self) -> FloatArray | None:
        """Log-probabilities over the legal set; known without a row where only one id is legal."""
        if len(self.legal) == 1:
            return np.zeros(1)
        return None if self.logits is None else self.logits - log_sum(self.logits)

    def edges(self) -> tuple[Edge, ...]:
        """Return the end of the answer first, then the children by id; nothing where the policy is not known."""
        if self._edges:
            return self._edges
        if self.policy is None:
            return ()
        policy, raw = self.policy.tolist(), None if self.raw is None else self.raw.tolist()
        stops = [index for index, token in enumerate(self.legal) if token not in self.following]
        out = [
            Edge(token, policy[index], None if raw is None else raw[index])
            for index, token in enumerate(self.legal)
            if token in self.following
        ]
        if stops:
            ends = [None if values is None else log_sum(np.array(values)[stops]) for values in (policy, raw)]
            assert ends[0] is not None
            out.insert(0, Edge(None, ends[0], ends[1]))
        if raw is not None:
            self._edges = tuple(out)
        return tuple(out)
