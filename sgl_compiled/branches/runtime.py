"""State of the branch scheduler in one scheduler process: who is parked, what the last step took, what runs next."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import RequestError
from .group import Group, GroupTable, Row
from .policy import Policy, make_policy
from .predictor import StepFeatures, StepTimePredictor
from .slo import BranchSettings
from .tags import parse_tag, tag_of
from .telemetry import StepRecord, Telemetry, make_record

__all__ = ["BranchRuntime"]

logger = logging.getLogger(__name__)

Agree = Callable[[list[bool]], list[bool]]
_ROW = "_sgl_compiled_row"
_FLUSH_STEPS = 4096
_SWEEP_S = 60.0
_LOOK_AT = 256  # waiting requests whose age is looked at


@dataclass(slots=True)
class _Launched:
    """What one turn of the scheduler loop started: a decode step, or an extend."""

    decode: StepFeatures | None
    extend_tokens: int = 0
    record: StepRecord | None = None


class BranchRuntime:
    """Decides and measures; the hooks in :mod:`.scheduler` move the batches.

    Parameters
    ----------
    settings : BranchSettings
        Policy, SLO classes and trace file.
    predictor : StepTimePredictor
        Learns from every turn of the loop while some request is grouped.
    overlap : bool
        The overlap scheduler is on: a step is prepared before the results of the one before it are known.
    behind : bool
        The device also works behind the loop, so that a turn lasts as long as the work of the turn before it; on a CPU
        a turn does its own work, overlap scheduler or not.
    leader : bool
        This rank reads the clock and decides.
    agree : callable or None
        Gives every rank the leader's decision; None with a single rank.
    """

    def __init__(
        self,
        settings: BranchSettings,
        predictor: StepTimePredictor,
        telemetry: Telemetry,
        overlap: bool = True,
        behind: bool = True,
        leader: bool = True,
        agree: Agree | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.settings, self.predictor, self.telemetry = settings, predictor, telemetry
        self.overlap, self.behind = overlap, behind
        self.leader, self.agree, self.clock = leader, agree, clock
        self.policy: Policy = make_policy(settings.policy)
        self.table = GroupTable()
        self.parked: Any = None
        self.active = False
        self._steps = 0
        self._swept_s = self._marked_s = float("-inf")
        self._turn_s: float | None = None
        self._before: _Launched | None = None
        self._record: StepRecord | None = None
        self._pending = _Pending()

    def set_policy(self, name: str) -> None:
        """Change the policy from the next step on; every rank must get the same call between the same steps."""
        self.policy = make_policy(name)
        logger.info("branch policy is now %s", name)

    def grouped(self, reqs: Sequence[Any]) -> bool:
        """Tell whether some group has two rows among `reqs`."""
        tagged = [req for req in reqs if tag_of(req.sampling_params.custom_params) is not None]
        if not tagged:
            return False
        now_s = self.clock()
        if now_s - self._marked_s > _SWEEP_S:
            # A row that decodes by itself for long still belongs to its group.
            self._marked_s = now_s
            for req in tagged:
                self.row_of(req).group.seen_s = now_s
        seen: set[str] = set()
        for req in tagged:
            key = self.row_of(req).group.key
            if key is not None and key in seen:
                return True
            seen.add(key or "")
        return False

    def row_of(self, req: Any) -> Row:
        """Row of a request, made when it is first seen; a malformed tag makes an ungrouped one."""
        row: Row | None = getattr(req, _ROW, None)
        if row is not None:
            return row
        raw = tag_of(req.sampling_params.custom_params)
        arrival_s, limit = req.time_stats.scheduler_recv_time, req.sampling_params.max_new_tokens or 1
        row = Row(Group(self.settings.slo["default"], arrival_s), limit)
        if raw is not None:
            try:
                row = self.table.join(parse_tag(raw, self.settings.slo), arrival_s, limit)
            except RequestError as error:
                logger.warning("request %s runs ungrouped: %s", req.rid, error)
        setattr(req, _ROW, row)
        now_s = self.clock()
        if now_s - self._swept_s > _SWEEP_S:
            # Here, where groups come in: those that never had two rows at once are seen nowhere else.
            self._swept_s = now_s
            self.table.forget_idle(now_s)
        return row

    def choose(self, reqs: Sequence[Any], context_tokens: Sequence[int], waiting: Sequence[Any]) -> list[bool]:
        """Rows that run in the next step; a row that is being aborted always does, to be cleaned up.

        `waiting` are the requests that found no memory.
        """
        rows = [self.row_of(req) for req in reqs]
        run = [True] * len(reqs)
        if self.leader:
            now_s, limit_s = self.clock(), self.settings.slo["default"].ttft_s
            oldest_s = min((req.time_stats.scheduler_recv_time for req in waiting[:_LOOK_AT]), default=now_s)
            blocked = now_s - oldest_s > limit_s
            view = self.table.view(now_s, rows, context_tokens, [len(req.output_ids) for req in reqs], blocked)
            decision = self.policy.decide(view, self.predictor)
            run = (decision.run | np.array([req.to_finish is not None for req in reqs])).tolist()
            if self.telemetry.active:
                self._record = make_record(self.policy.name, view, decision)
        if self.agree is not None:
            run = self.agree(run)
        self._steps += 1
        if self._steps % _FLUSH_STEPS == 0:
            self.telemetry.flush()
        return run

    def count_waits(self, reqs: Sequence[Any], run: Sequence[bool]) -> list[Any]:
        """Update the rows' waits; return the requests that come back from parking."""
        back = []
        for req, runs in zip(reqs, run, strict=True):
            row = self.row_of(req)
            if runs and row.waited_steps:
                back.append(req)
            row.waited_steps = 0 if runs else row.waited_steps + 1
        return back

    def turn(self, batch: Any) -> None:
        """Learn from the turn of the loop that just ended; `batch` is what it launched, None if it idled."""
        now_s = self.clock()
        launched = _launched(batch)
        launched.record, self._record = self._record if launched.decode else None, None
        measured = self._before if self.behind else launched
        if self._turn_s is not None and measured is not None:
            self._learn(measured, now_s - self._turn_s)
        self._turn_s, self._before = now_s, launched
        if launched.decode is None and not launched.extend_tokens:
            self.rest()

    def rest(self) -> None:
        """Stop measuring: no request is grouped, or none is left."""
        if self.active:
            self.active = False
            self._turn_s = self._before = None
            self._pending = _Pending()
            self.telemetry.flush()

    def _learn(self, work: _Launched, elapsed_s: float) -> None:
        """Give the predictor one step, with the extends it had to wait for."""
        pending = self._pending
        pending.elapsed_s += elapsed_s
        if work.decode is None:
            pending.passes += 1
            pending.tokens += work.extend_tokens
            return
        features = StepFeatures(work.decode.batch, work.decode.context_tokens, pending.passes, pending.tokens)
        predicted_s = self.predictor.observe(features, max(pending.elapsed_s, 1e-9)) + pending.elapsed_s
        if work.record is not None:
            work.record.extend_passes, work.record.extend_tokens = pending.passes, pending.tokens
            work.record.predicted_s, work.record.actual_s = predicted_s, pending.elapsed_s
            self.telemetry.write(work.record)
        self._pending = _Pending()

    def check_integrity(self, running: Sequence[Any]) -> None:
        """Assert that no request is both parked and running, and that the groups are consistent."""
        parked = [] if self.parked is None else self.parked.reqs
        assert not {id(req) for req in parked} & {id(req) for req in running}, "a request is parked and running"
        self.table.check_integrity()


@dataclass(slots=True)
class _Pending:
    """Extends since the last decode step, and all time since then."""

    passes: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0


def _launched(batch: Any) -> _Launched:
    if batch is None or not batch.reqs:
        return _Launched(None)
    if batch.forward_mode.is_extend():
        return _Launched(None, max(int(batch.extend_num_tokens or 0), 1))
    return _Launched(StepFeatures(len(batch.reqs), int(batch.seq_lens_cpu.sum())))
