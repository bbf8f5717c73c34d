"""The factor that masked decoding leaves out: how probable it is that a prefix is completed within the language."""

from __future__ import annotations

import numpy as np

from sgl_compiled.control.evidence import Evidence
from sgl_compiled.control.node import Bounds, FloatArray, Node, Path, log_sum

__all__ = ["Futures"]


class Futures:
    r"""Future factors of an evaluated tree, in one pass from its leaves up.

    .. math:: F(s) = \sum_{t \text{ legal at } s} p(t \mid s) \, F(s t), \qquad F(\text{complete}) = 1

    with :math:`p` over the full vocabulary and :math:`F = 1` behind a stop id; :math:`F(s) \in [0, 1]` where ``s`` is
    not evaluated. States with one legal id count: their rows must have been read.

    The conditional distribution of the next token is :math:`p(t \mid s) F(s t) / F(s)`; the policy's drops ``F``.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self._log: dict[Path, Bounds] = {}
        for node in reversed(list(evidence.nodes())):
            self._log[node.path] = self._from_children(node)

    def log_future(self, node: Node) -> Bounds:
        """Bounds of ``log F``."""
        known = self._log.get(node.path)
        return self._from_children(node) if known is None else known

    def logits(self, node: Node) -> FloatArray | None:
        """Unnormalised log-probabilities of the conditional's next token; ``None`` where they are not known exactly."""
        values = self._sides(node)
        return values[0] if values is not None and np.array_equal(*values) else None

    def _from_children(self, node: Node) -> Bounds:
        if not node.legal:
            return Bounds(0.0, 0.0)
        sides = self._sides(node)
        return Bounds(-np.inf, 0.0) if sides is None else Bounds(log_sum(sides[0]), log_sum(sides[1]))

    def _sides(self, node: Node) -> tuple[FloatArray, FloatArray] | None:
        """Lower and upper bounds of ``log p + log F`` for each legal id."""
        if node.raw is None:
            return None
        lower, upper = node.raw, node.raw.copy()
        for index, token in enumerate(node.legal):
            if token in node.following:
                future = self.log_future(self.evidence.child(node, token))
                lower[index] += future.lower
                upper[index] += future.upper
        return lower, upper
