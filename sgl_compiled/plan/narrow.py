"""Narrowing: which candidates of later slots a tree follows, by the ranking that the first slot gave them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["SlotRanking"]

Place = Callable[[Any], "tuple[int, Hashable]"]
"""From a state to its slot and its place inside the slot, the same in every slot for the same part of a label."""


class SlotRanking:
    """Logits of the first evaluated slot, kept for the slots behind it.

    Parameters
    ----------
    place : callable
    width : int or None
        Candidates to follow; ``None`` follows all (the ranking is then only observed).
    """

    def __init__(self, place: Place, width: int | None) -> None:
        self._place = place
        self._width = width
        self._slot: int | None = None
        self._known: dict[Hashable, dict[int, float]] = {}

    def add(self, state: Any, legal: Sequence[int], logits: npt.NDArray[np.float64]) -> None:
        """Take a decision row; rows of later slots do not change the ranking."""
        slot, place = self._place(state)
        if self._slot is None:
            self._slot = slot
        if slot == self._slot:
            self._known[place] = dict(zip(legal, map(float, logits), strict=True))

    def rank(self, state: Any, token: int, legal: Sequence[int]) -> int | None:
        """Rank of ``token`` among the candidates still legal, or ``None`` where the first slot says nothing."""
        slot, place = self._place(state)
        known = self._known.get(place)
        if known is None or slot == self._slot or token not in known:
            return None
        return sum(1 for other in legal if known.get(other, -np.inf) > known[token])

    def keep(self, state: Any, children: Mapping[int, Any]) -> Mapping[int, Any]:
        """Return the children to follow, for :func:`sgl_compiled.grammar.layout.unfold`."""
        slot, place = self._place(state)
        known = self._known.get(place)
        if self._width is None or known is None or slot == self._slot:
            return children
        best = sorted(children, key=lambda token: -known.get(token, -np.inf))[: self._width]
        return {token: children[token] for token in sorted(best)}
