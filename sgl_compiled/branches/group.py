"""Groups and their rows: who belongs together, how far each is, and the view of a step made from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .slack import expected_remaining
from .slo import Slo
from .tags import BranchTag
from .view import StepView

__all__ = ["Group", "GroupTable", "Row"]

_IDLE_LIMIT_S = 600.0


@dataclass(slots=True)
class Group:
    """One request, or all requests that share a tag's id.

    Attributes
    ----------
    start_s, first_token_s, seen_s : float
        Arrival of the first member, first token of any, last step in which a member was alive.
    tokens : int
        Output tokens of all members so far.
    """

    slo: Slo
    start_s: float
    key: str | None = None
    first_token_s: float = float("inf")
    seen_s: float = 0.0
    tokens: int = 0
    after_tokens: int = 0
    index: int = field(default=-1, repr=False)  # place on the request axis of the step being built
    stamp: int = field(default=-1, repr=False)  # that step


@dataclass(slots=True)
class Row:
    """One sequence of a group."""

    group: Group
    expected_tokens: int
    counted_tokens: int = 0
    waited_steps: int = 0


class GroupTable:
    """All tagged groups, by id; forgets one that had no member for ten minutes."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self._stamp = 0

    def join(self, tag: BranchTag, arrival_s: float, max_new_tokens: int) -> Row:
        """Row of a new member of the tag's group."""
        group = self.groups.get(tag.group)
        if group is None:
            group = self.groups[tag.group] = Group(tag.slo, arrival_s, tag.group, seen_s=arrival_s)
        group.start_s = min(group.start_s, arrival_s)
        group.after_tokens = tag.after_tokens
        return Row(group, tag.expected_tokens or max_new_tokens)

    def view(
        self,
        now_s: float,
        rows: Sequence[Row],
        context_tokens: Sequence[int],
        progress_tokens: Sequence[int],
        blocked: bool,
    ) -> StepView:
        """Arrays of one step; counts the tokens that came since the last one."""
        self._stamp += 1
        groups: list[Group] = []
        for row, progress in zip(rows, progress_tokens, strict=True):
            group = row.group
            if group.stamp != self._stamp:
                group.stamp, group.index = self._stamp, len(groups)
                groups.append(group)
            group.tokens += progress - row.counted_tokens
            row.counted_tokens = progress
        for group in groups:
            group.seen_s = now_s
            if group.first_token_s > now_s:
                group.first_token_s = now_s
        done = np.array(progress_tokens, dtype=np.int64)
        tpot = np.array([group.slo.tpot_s for group in groups])
        tokens = np.array([group.tokens for group in groups], dtype=np.float64)
        with np.errstate(invalid="ignore"):
            line = np.array([group.first_token_s for group in groups]) + tokens * tpot
        return StepView(
            now_s,
            np.array([row.group.index for row in rows], dtype=np.int64),
            np.array(context_tokens, dtype=np.int64),
            done,
            np.array([row.waited_steps for row in rows], dtype=np.int64),
            expected_remaining(np.array([row.expected_tokens for row in rows], dtype=np.float64), done),
            np.where(np.isinf(tpot), np.inf, line),
            tpot,
            np.array([group.start_s + group.slo.e2e_s for group in groups]),
            np.array([group.after_tokens for group in groups], dtype=np.float64),
            blocked,
        )

    def forget_idle(self, now_s: float) -> None:
        """Drop groups whose last member was seen long ago."""
        for key in [key for key, group in self.groups.items() if now_s - group.seen_s > _IDLE_LIMIT_S]:
            del self.groups[key]

    def check_integrity(self) -> None:
        """Assert that keys and counters are consistent."""
        for key, group in self.groups.items():
            assert group.key == key, f"group {group.key} filed under {key}"
            assert group.tokens >= 0 and group.after_tokens >= 0
            assert group.first_token_s >= group.start_s, f"group {key} has a token before it arrived"
