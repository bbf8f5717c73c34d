"""Plans: how many actions each pass resolves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

__all__ = ["CHUNKED", "SERIAL", "Plan", "composition", "compositions", "even_compositions", "fixed_plan", "narrowed"]

PlanName = Literal["auto", "root+probe", "chunked", "serial"]


@dataclass(frozen=True)
class Plan:
    """A way to resolve an answer.

    Attributes
    ----------
    name : str
        ``"serial"`` decodes token by token, ``"chunked"`` takes one decision a pass without any lookahead; every other
        plan resolves ``passes[i]`` actions in pass ``i``. A walk that is not through after the last pass (a miss)
        repeats it.
    passes : tuple of int
        Actions a pass; empty for ``"serial"`` and ``"chunked"``.
    width : int or None
        Follow only so many candidates of a later slot, the best of the first slot's ranking; any other winner is a
        miss and costs one more pass.
    """

    name: str
    passes: tuple[int, ...] = ()
    width: int | None = None

    def actions(self, index: int) -> int:
        """Actions that pass ``index`` resolves."""
        return self.passes[min(index, len(self.passes) - 1)]

    def __str__(self) -> str:
        return self.name


CHUNKED = Plan("chunked")
SERIAL = Plan("serial")


def composition(passes: tuple[int, ...], width: int | None = None) -> Plan:
    """Return the plan that resolves so many actions a pass, named after them: ``[2,2]``, narrowed ``[1,2]~4``."""
    assert passes and all(count > 0 for count in passes)
    narrow = "" if width is None else f"~{width}"
    return Plan(f"[{','.join(map(str, passes))}]{narrow}", passes, width)


def narrowed(plan: Plan, width: int) -> Plan | None:
    """Return ``plan`` narrowed to ``width`` candidates, where it has a pass that looks ahead behind a ranking."""
    ranked = len(plan.passes) > 1 and plan.passes[0] == 1 and max(plan.passes[1:]) > 1
    return composition(plan.passes, width) if ranked else None


def compositions(actions: int) -> Iterator[Plan]:
    """Yield every way to resolve ``actions`` actions, those with few passes first."""

    def split(left: int, passes: int) -> Iterator[tuple[int, ...]]:
        if passes == 1:
            yield (left,)
            return
        for first in range(1, left - passes + 2):
            for rest in split(left - first, passes - 1):
                yield (first, *rest)

    for passes in range(1, actions + 1):
        yield from map(composition, split(actions, passes))


def even_compositions(actions: int, most: int) -> Iterator[Plan]:
    """Yield the ways to resolve ``actions`` actions in passes of up to ``most`` of them, and in a single one.

    All passes are of one size but the last, which takes what is left, and possibly the first, which takes one action.
    """
    yield composition((actions,))
    for first in (0, 1):
        for size in range(1 + first, most + 1):
            whole, rest = divmod(actions - first, size)
            yield composition((1,) * first + (size,) * whole + (rest,) * (rest > 0))


def fixed_plan(name: str, actions: int) -> Plan:
    """Return a plan by name: ``chunked``, ``serial``, ``root+probe`` or a composition such as ``[2,2]``.

    Parameters
    ----------
    name : str
    actions : int
        Actions of the grammar; a composition must add up to it.

    Raises
    ------
    ValueError
        Unknown name or a composition that does not add up.
    """
    if name == "chunked":
        return CHUNKED
    if name == "serial":
        return SERIAL
    if name == "root+probe":
        return Plan(name, (1, actions - 1) if actions > 1 else (1,))
    body, tilde, narrow = name.partition("~")
    try:
        passes = tuple(int(part) for part in body.strip("[] ").split(","))
        width = int(narrow) if tilde else None
    except ValueError:
        raise ValueError(
            f"unknown plan {name!r}; use 'auto', 'root+probe', 'chunked', 'serial' or actions a pass such as '[2,2]'"
        ) from None
    if any(count < 1 for count in passes) or sum(passes) != actions:
        raise ValueError(f"plan {name!r} must add up to the {actions} action(s) of this grammar")
    if width is not None and (width < 1 or passes[0] != 1 or len(passes) < 2):
        raise ValueError(f"plan {name!r}: narrowing needs a first pass of one action, as in '[1,2]~4'")
    return composition(passes, width)
