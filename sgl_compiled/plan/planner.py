"""Choose the plan with the least expected time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sgl_compiled.plan.cost import CostModel
from sgl_compiled.plan.memory import RankMemory
from sgl_compiled.plan.passes import CHUNKED, Plan, compositions, even_compositions, narrowed

__all__ = ["Candidate", "PassSize", "choose", "predict"]

EVERY = 8
"""Actions up to which every composition is considered, 128 of them; beyond it the even ones."""
WIDTHS = (2, 4, 8)


@dataclass(frozen=True)
class PassSize:
    """Tokens of one pass: the path taken so far that is new to the cache, and the tree; and its decision rows."""

    path: int
    tree: int
    rows: int = 1


@dataclass(frozen=True)
class Candidate:
    """A plan, its passes' sizes and its expected time."""

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
        total += cost.pass_ms(new + size.path + size.tree, prefix, size.rows)
        prefix += new + size.path
        new = 0
    return total


def choose(
    actions: int,
    sizer: Sizer,
    cost: CostModel,
    *,
    cached: int,
    fresh: int,
    load: float = 1.0,
    ranks: RankMemory | None = None,
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
        paid when others fill the pass.
    ranks : RankMemory, optional
        Admits narrowed plans, with the misses it expects.
    """
    loaded = cost.shared(load)
    found: list[Candidate] = []
    for plan in _plans(actions, ranks is not None):
        sizes = sizer(plan)
        if sizes is None:
            continue
        ms = predict(sizes, loaded, cached=cached, fresh=fresh)
        if plan.width is not None and ranks is not None:
            # A miss ends its pass early: what is left of it is asked again, about as large.
            again = sum(
                (1 - (1 - ranks.miss(plan.width)) ** (count - 1))
                * loaded.pass_ms(size.path + size.tree, cached, size.rows)
                for count, size in zip(plan.passes, sizes, strict=False)
                if count > 1
            )
            ms += again
        found.append(Candidate(plan, sizes, ms))
    assert found, "the chunked plan has no width and always fits"
    found.sort(key=lambda candidate: candidate.ms)
    return found[0], found


def _plans(actions: int, narrow: bool) -> Iterator[Plan]:
    yield CHUNKED
    for plan in compositions(actions) if actions <= EVERY else even_compositions(actions, EVERY):
        yield plan
        for width in WIDTHS if narrow else ():
            thin = narrowed(plan, width)
            if thin is not None:
                yield thin
