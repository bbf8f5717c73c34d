"""Choose the plan with the least predicted time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sgl_compiled.plan.cost import CostModel
from sgl_compiled.plan.passes import CHUNKED, Plan, compositions

__all__ = ["Candidate", "PassSize", "choose", "predict"]

MAX_PASSES = 8
MAX_CANDIDATES = 128


@dataclass(frozen=True)
class PassSize:
    """Tokens of one pass: the path taken so far that is new to the cache, and the tree."""

    path: int
    tree: int


@dataclass(frozen=True)
class Candidate:
    """A plan, its passes' sizes and its predicted time."""

    plan: Plan
    sizes: tuple[PassSize, ...]
    ms: float


Sizer = Callable[[Plan], tuple[PassSize, ...] | None]
"""Sizes of a plan's passes for one grammar, or ``None`` where a tree would exceed the limit."""


def predict(sizes: tuple[PassSize, ...], cost: CostModel, *, cached: int, fresh: int) -> float:
    """Predicted milliseconds of passes behind a prompt of ``cached + fresh`` tokens.

    The first pass computes the fresh part of the prompt too (and its last token in any case).
    """
    total, prefix, new = 0.0, cached, max(fresh, 1)
    for size in sizes:
        total += cost.pass_ms(new + size.path + size.tree, prefix)
        prefix += new + size.path
        new = 0
    return total


def choose(
    actions: int, sizer: Sizer, cost: CostModel, *, cached: int, fresh: int, load: float = 1.0
) -> tuple[Candidate, list[Candidate]]:
    """Return the fastest plan and all candidates, fastest first.

    Parameters
    ----------
    actions : int
        Actions of the grammar.
    sizer : callable
    cost : CostModel
    cached, fresh : int
        Prompt tokens believed to be in the radix cache, and not.
    load : float
        How many probes compete for the device: width that one probe gets for free under the weight-read floor is
        paid ``load`` times when as many share the pass.
    """
    loaded = CostModel(cost.a_ms, cost.b_ms * load, cost.c_ms * load, cost.floor_ms)
    found: list[Candidate] = []
    plans = [CHUNKED]
    for plan in compositions(actions, MAX_PASSES):
        plans.append(plan)
        if len(plans) >= MAX_CANDIDATES:
            break
    for plan in plans:
        sizes = sizer(plan)
        if sizes is not None:
            found.append(Candidate(plan, sizes, predict(sizes, loaded, cached=cached, fresh=fresh)))
    assert found, "the chunked plan has no width and always fits"
    found.sort(key=lambda candidate: candidate.ms)
    return found[0], found
