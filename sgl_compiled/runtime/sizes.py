"""Sizes of a plan's passes for one grammar, and the plan a request gets."""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from sgl_compiled.errors import GrammarTooLargeError, RequestError
from sgl_compiled.grammar.compile import CompiledGrammar
from sgl_compiled.grammar.layout import ROOT, Horizon, TreeLayout, actions_ahead, decisions_ahead, legal_ids, unfold
from sgl_compiled.grammar.slots import SlotAutomaton
from sgl_compiled.grammar.tokens import State
from sgl_compiled.plan.cost import CostModel
from sgl_compiled.plan.memory import RankMemory
from sgl_compiled.plan.passes import Plan, fixed_plan
from sgl_compiled.plan.planner import Candidate, PassSize, choose

__all__ = ["pass_sizes", "plan_for"]

_STEP = 256
_MEASURED = 4  # passes of an answer that ends where max_tokens cuts it; the others are taken to be alike

_Sizes = dict[tuple[Plan, int], tuple[PassSize, ...] | None]
_cache: WeakKeyDictionary[CompiledGrammar, _Sizes] = WeakKeyDictionary()
_lock = threading.Lock()


def pass_sizes(compiled: CompiledGrammar, plan: Plan, max_positions: int) -> tuple[PassSize, ...] | None:
    """Return the passes' sizes along a typical path, or ``None`` where a tree exceeds ``max_positions``.

    Trees behind different choices differ little (which label is gone, how long the labels are); the path through
    each decision's middle candidate stands for all.
    """
    key = (plan, max_positions)
    with _lock:
        known = _cache.setdefault(compiled, {})
        if key in known:
            return known[key]
    sizes = _measure(compiled, plan, max_positions)
    with _lock:
        known[key] = sizes
    return sizes


def _measure(compiled: CompiledGrammar, plan: Plan, max_positions: int) -> tuple[PassSize, ...] | None:
    automaton = compiled.automaton
    cut_off = compiled.grammar.max_tokens is not None
    state = automaton.start
    out: list[PassSize] = []
    path = 0
    while True:
        steps, state, ended = _typical(compiled, state, decisions=0)
        path += steps
        if ended:
            return tuple(out)
        if plan.name == "chunked":
            horizon = decisions_ahead(1)
        else:
            if len(out) >= len(plan.passes) and out and not cut_off:
                return tuple(out)
            horizon = actions_ahead(automaton, state, plan.actions(len(out)))
        try:
            layout = (
                compiled.unfold(state, horizon, max_positions)
                if plan.width is None or not out
                else _narrow(compiled, state, horizon, max_positions, plan.width)
            )
        except GrammarTooLargeError:
            return None
        if not layout.rows:
            return None
        out.append(PassSize(path, len(layout), len(layout.rows)))
        if plan.name == "chunked":
            path, state, ended = _typical(compiled, state, decisions=1)
        elif cut_off:
            path, state, ended = _typical(compiled, state, decisions=_decided(compiled, state, layout))
        else:
            path, state, ended = _typical(compiled, state, actions=plan.actions(len(out) - 1))
        if ended:
            return tuple(out)
        if cut_off and len(out) == _MEASURED:
            spent, left = automaton.start[1] - state[1], state[1]
            return (*out, *([out[-1]] * round(left / (spent / len(out)))))


def _typical(
    compiled: CompiledGrammar, state: State, *, decisions: int | None = None, actions: int = 0
) -> tuple[int, State, bool]:
    """Walk through middle candidates; stop before a decision that is out of reach, or at the end."""
    automaton = compiled.automaton
    last = automaton.actions(state) + actions
    steps = taken = 0
    while True:
        legal = legal_ids(automaton, state, compiled.stop_ids)
        if not legal:
            return steps, state, True
        if len(legal) > 1:
            if taken >= decisions if decisions is not None else automaton.actions(state) >= last:
                return steps, state, False
            taken += 1
        _, state = compiled.typical(state)
        steps += 1


def _decided(compiled: CompiledGrammar, state: State, layout: TreeLayout) -> int:
    """Return how many decisions of the typical path a truncated tree holds."""
    automaton, node, decided = compiled.automaton, ROOT, 0
    while True:
        decided += layout.row_at(node) is not None
        if not automaton.step(state):
            return decided
        token, state = compiled.typical(state)
        child = layout.child(node, token)
        if child is None:
            return decided
        node = child


def _narrow(compiled: CompiledGrammar, state: State, horizon: Horizon, limit: int, width: int) -> TreeLayout:
    """Unfold a tree that follows so many candidates of each decision; which ones hardly changes its size."""
    return unfold(
        compiled.automaton,
        state,
        horizon,
        stop_ids=compiled.stop_ids,
        max_positions=limit,
        keep=lambda _, children: dict(list(children.items())[:width]),
    )


def plan_for(
    compiled: CompiledGrammar,
    name: str,
    cost: CostModel,
    *,
    cached: int,
    fresh: int,
    positions: int,
    load: float = 1.0,
    ranks: RankMemory | None = None,
) -> tuple[Plan, tuple[Candidate, ...]]:
    """Return the plan a request asked for, or the fastest by prediction for ``"auto"`` with all that was considered.

    Raises
    ------
    RequestError
        Unknown plan, or one whose trees do not fit.
    """
    slotted = isinstance(compiled.automaton, SlotAutomaton)
    if name != "auto":
        try:
            plan = fixed_plan(name, compiled.horizon)
        except ValueError as error:
            raise RequestError(str(error)) from None
        if plan.width is not None and not slotted:
            raise RequestError(f"plan {name!r}: only slots of labels can be narrowed; use {name.partition('~')[0]!r}")
        if plan.name not in ("serial", "chunked") and pass_sizes(compiled, plan, positions) is None:
            raise RequestError(
                f"plan {name!r} needs a tree of more than {positions} positions for this grammar; use plan='auto' or "
                "'chunked'"
            )
        return plan, ()
    # Long prompts leave a little less room each; one size serves all that are near.
    positions -= positions % _STEP if positions > _STEP else 0
    best, considered = choose(
        compiled.horizon,
        lambda plan: pass_sizes(compiled, plan, positions),
        cost,
        cached=cached,
        fresh=fresh,
        load=load,
        ranks=ranks if slotted else None,
    )
    return best.plan, tuple(considered)
