"""P(answer | answer in the language) beside the policy that masked decoding follows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sgl_compiled.control.evidence import Evidence
from sgl_compiled.control.future import Futures
from sgl_compiled.control.leaves import Leaf, Masses, leaves, probability
from sgl_compiled.control.node import Bounds, Node, Path
from sgl_compiled.control.sequences import language_mass, ranking

__all__ = ["Comparison", "Disagreement", "compare", "total_variation"]


@dataclass(frozen=True)
class Disagreement:
    """A decision on the reference policy's path where the conditional's most probable token is another one.

    ``policy`` and ``conditional`` are each distribution's probability of the policy's token and of the other one.
    """

    path: Path
    token: int
    instead: int
    policy: tuple[float, float]
    conditional: tuple[float, float]


@dataclass(frozen=True)
class Comparison:
    """Two distributions over the same answers.

    Attributes
    ----------
    greedy : tuple of int or None
        The reference policy's answer; ``None`` where its path is not evaluated to the end.
    policy_map, conditional_map : tuple of int or None
        Each distribution's most probable answer among the evaluated ones.
    certified : bool
        Both are certain.
    agree : bool
        The two most probable answers are the same.
    total_variation : Bounds
        Half the sum of absolute differences: the largest difference in the probability of any event, in [0, 1].
    language_mass : Bounds
        Full-vocabulary probability of the language; the conditional divides by it.
    disagreements : tuple of Disagreement
        Along ``greedy``, as far as the conditional is exactly known.
    """

    greedy: Path | None
    policy_map: Path | None
    conditional_map: Path | None
    certified: bool
    agree: bool
    total_variation: Bounds
    language_mass: Bounds
    disagreements: tuple[Disagreement, ...]


def compare(evidence: Evidence) -> Comparison:
    """Say where and how far the policy and the conditional objective part."""
    policy, conditional = ranking(evidence, 1, "policy"), ranking(evidence, 1, "conditional")
    best = [found.top[0].path if found.top else None for found in (policy, conditional)]
    cells = leaves(evidence, "conditional")
    total = Masses.of(cells, "conditional")
    path, ended = evidence.greedy()
    return Comparison(
        path[-1].path if ended else None,
        best[0],
        best[1],
        bool(policy.certified and conditional.certified),
        best[0] is not None and best[0] == best[1],
        total_variation(cells, total),
        language_mass(evidence),
        _disagreements(evidence, path),
    )


def total_variation(cells: list[Leaf], total: Masses) -> Bounds:
    r"""Bound :math:`\frac12 \sum_a |P(a) - Q(a)|` between the policy :math:`P` and the conditional :math:`Q`.

    A cell with policy mass :math:`P_c` and conditional mass :math:`Q_c \in [l, u]` adds at least the distance of
    :math:`P_c` from that interval, and at most :math:`P_c + u` if it is open (its answers may be disjoint in the two).

    Parameters
    ----------
    cells : list of Leaf
        The partition under ``"conditional"``.
    total : Masses
        Of these cells.
    """
    low = high = 0.0
    for cell in cells:
        policy, weight = cell.mass("policy"), cell.mass("conditional")
        lower, upper = probability(Bounds(weight if cell.complete else 0.0, weight), total)
        low += max(0.0, policy - upper, lower - policy)
        high += max(abs(policy - lower), abs(policy - upper)) if cell.complete else policy + upper
    return Bounds(min(low / 2, 1.0), min(max(low, high) / 2, 1.0))


def _disagreements(evidence: Evidence, path: list[Node]) -> tuple[Disagreement, ...]:
    futures = Futures(evidence)
    found: list[Disagreement] = []
    for node in path:
        logits = futures.logits(node)
        if logits is None or node.logits is None or node.policy is None or not np.isfinite(logits.max()):
            continue
        token, instead = int(node.logits.argmax()), int(logits.argmax())
        if token != instead:
            pair = [token, instead]
            policy = np.exp(node.policy[pair]).tolist()
            conditional = np.exp(logits[pair] - futures.log_future(node).upper).tolist()
            found.append(
                Disagreement(node.path, node.legal[token], node.legal[instead], tuple(policy), tuple(conditional))
            )
    return tuple(found)
