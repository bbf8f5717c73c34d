"""Discrete-event simulation of one server: prefill first, then decode steps under a branch policy.

Scheduling follows SGLang: whatever waits and fits is computed in an extend pass before decoding goes on; a request is
admitted when its prompt and declared output fit into the free KV. Branches start with an extend pass of a few tokens
over the cached prefix, and the join recomputes the branches' text as a new extend, since in the frontend both are
new requests.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from sgl_compiled.branches.policy import Policy
from sgl_compiled.branches.predictor import StepFeatures, StepTimePredictor
from sgl_compiled.branches.slack import expected_remaining
from sgl_compiled.branches.view import StepView

from .cost import CostModel
from .workload import Job

__all__ = ["Noise", "Outcome", "Slo", "StepLog", "simulate"]

BRANCH_PROMPT_TOKENS = 16
_ROW_COLUMNS = ("owner", "context", "done", "target", "expected", "waited")


@dataclass(frozen=True, slots=True)
class Slo:
    """Targets: first token, time a token, and (for forking requests) end to end as a share of the serial allowance.

    ``start_s`` comes on top of that share.
    """

    ttft_s: float = 2.0
    tpot_s: float = 0.05
    e2e_factor: float | None = 0.6
    start_s: float = 2.0

    def deadline_s(self, job: Job) -> float:
        """Seconds after arrival at which a forking job must be complete; inf when only tokens count."""
        if self.e2e_factor is None or not job.branches:
            return float("inf")
        return self.start_s + self.e2e_factor * job.output * self.tpot_s


@dataclass(frozen=True, slots=True)
class Noise:
    """How a machine's times scatter about its cost model, in natural logarithms.

    `step` is the spread from step to step; `drift` that of the machine's speed, which wanders within some `drift_s`
    seconds (a machine shared with others).
    """

    step: float = 0.03
    drift: float = 0.0
    drift_s: float = 5.0


@dataclass(slots=True)
class Outcome:
    """When a job's first token and end came; inf if they did not."""

    job: Job
    first_s: float = float("inf")
    finish_s: float = float("inf")


@dataclass(slots=True)
class StepLog:
    """Per-step measurements of one run."""

    elapsed_s: list[float] = field(default_factory=list)
    error_s: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    parked: list[int] = field(default_factory=list)
    max_wait_steps: int = 0
    overload_steps: int = 0


@dataclass(slots=True)
class _Extend:
    """Tokens to compute before rows may decode: (slot, stage) with stage 0 head, 1 branches, 2 tail."""

    slot: int
    stage: int
    tokens: int
    attended: int


class _Server:
    def __init__(self, policy: Policy, cost: CostModel, slo: Slo, seed: int, noise: Noise) -> None:
        self.policy, self.cost, self.slo = policy, cost, slo
        self.rng, self.noise, self.speed = np.random.default_rng([seed, 77]), noise, 0.0
        self.predictor = StepTimePredictor(capture_sizes=cost.capture_sizes)
        self.now = 0.0
        self.free_kv = cost.kv_tokens
        self.queue: deque[Outcome] = deque()
        self.extends: deque[_Extend] = deque()
        slots = cost.max_rows
        self.job: list[Outcome | None] = [None] * slots
        self.free_slots = list(range(slots))  # a heap: low slots first, so that few columns are looked at
        self.used = 0
        self.line, self.tpot, self.deadline = (np.full(slots, np.inf) for _ in range(3))
        self.after, self.pace = np.zeros(slots), np.zeros(slots)
        self.stage = [0] * slots
        self.live = np.zeros(slots, dtype=np.int64)
        self.owner, self.context, self.done, self.target, self.waited = (np.zeros(0, dtype=np.int64) for _ in range(5))
        self.expected = np.zeros(0)
        self.extended_passes = self.extended_tokens = 0
        self.extended_s = 0.0
        self.log = StepLog()

    def _spend(self, seconds: float) -> float:
        noise = self.noise.step * self.rng.standard_normal()
        if self.noise.drift:
            kept = np.exp(-seconds / self.noise.drift_s)
            fresh = self.noise.drift * (1.0 - kept * kept) ** 0.5
            self.speed = kept * self.speed + fresh * self.rng.standard_normal()
        actual = seconds * float(np.exp(noise + self.speed))
        self.now += actual
        return actual

    def admit(self) -> None:
        while self.queue and self.free_slots:
            job = self.queue[0].job
            if job.prompt + job.output > self.free_kv:
                break
            outcome = self.queue.popleft()
            slot = heappop(self.free_slots)
            self.used = max(self.used, slot + 1)
            self.job[slot] = outcome
            self.free_kv -= job.prompt + job.output
            self.tpot[slot] = self.slo.tpot_s if self.slo.e2e_factor is None or not job.branches else np.inf
            self.pace[slot] = self.tpot[slot] if np.isfinite(self.tpot[slot]) else 0.0
            self.line[slot] = np.inf
            self.deadline[slot] = job.arrival_s + self.slo.deadline_s(job)
            self.after[slot] = 0.0
            self.extends.append(_Extend(slot, 0, job.prompt, job.prompt))

    def extend(self) -> None:
        """One pass over as many waiting extends as the chunk budget holds."""
        room, tokens, attended = self.cost.chunk_tokens, 0, 0
        complete: list[_Extend] = []
        while self.extends and room > 0:
            item = self.extends[0]
            part = min(item.tokens, room)
            tokens, room, attended = tokens + part, room - part, attended + item.attended
            if part < item.tokens:
                item.tokens -= part
                break
            complete.append(self.extends.popleft())
        self.extended_s += self._spend(self.cost.extend_s(tokens, attended))
        self.extended_passes += 1
        self.extended_tokens += tokens
        for item in complete:
            self._start(item)

    def _start(self, item: _Extend) -> None:
        """Rows of a stage begin; the extend itself produced their first token."""
        outcome, slot = self.job[item.slot], item.slot
        assert outcome is not None
        job = outcome.job
        lengths: tuple[int, ...]
        if item.stage == 0:
            lengths, context = (job.head,), job.prompt
            outcome.first_s = self.now
            self.line[slot] = self.now + self.tpot[slot]
        elif item.stage == 1:
            lengths, context = job.branches, job.prompt + job.head + BRANCH_PROMPT_TOKENS
            self.after[slot] = job.tail * job.hint
        else:
            lengths, context = (job.tail,), job.prompt + job.head + sum(job.branches)
            self.after[slot] = 0.0
        if item.stage:
            self.line[slot] += len(lengths) * self.tpot[slot]
        many = len(lengths)
        self.live[slot] = many
        target = np.array(lengths, dtype=np.int64)
        new = {
            "owner": np.full(many, slot),
            "context": np.full(many, context + 1),
            "done": np.ones(many, dtype=np.int64),
            "target": target,
            "expected": target * job.hint,
            "waited": np.zeros(many, dtype=np.int64),
        }
        for name in _ROW_COLUMNS:
            setattr(self, name, np.concatenate([getattr(self, name), new[name]]))
        self._finish_rows()

    def decode(self) -> None:
        rows = len(self.owner)
        grouped = rows > np.count_nonzero(self.live[: self.used])
        if grouped:
            view = StepView(
                self.now,
                self.owner,
                self.context,
                self.done,
                self.waited,
                expected_remaining(self.expected, self.done),
                self.line[: self.used],
                self.tpot[: self.used],
                self.deadline[: self.used],
                self.after[: self.used],
                self._memory_blocked(),
            )
            decision = self.policy.decide(view, self.predictor)
            run = decision.run
            self.log.overload_steps += decision.overload
        else:
            run = np.ones(rows, dtype=np.bool_)
        batch = int(np.count_nonzero(run))
        context = int(self.context[run].sum())
        elapsed = self._spend(self.cost.decode_s(batch, context))
        features = StepFeatures(batch, context, self.extended_passes, self.extended_tokens)
        error = self.predictor.observe(features, elapsed + self.extended_s)
        self.log.elapsed_s.append(elapsed + self.extended_s)
        self.log.error_s.append(error)
        self.log.rows.append(batch)
        self.log.parked.append(rows - batch)
        self.extended_passes = self.extended_tokens = 0
        self.extended_s = 0.0
        self.context += run
        self.done += run
        self.waited = np.where(run, 0, self.waited + 1)
        self.log.max_wait_steps = max(self.log.max_wait_steps, int(self.waited.max()))
        tokens = np.bincount(self.owner[run], minlength=self.used)
        self.line[: self.used] += tokens * self.pace[: self.used]
        self._finish_rows()

    def _memory_blocked(self) -> bool:
        """The head of the queue has waited for memory past its first-token target."""
        return bool(self.queue) and self.now - self.queue[0].job.arrival_s > self.slo.ttft_s

    def _finish_rows(self) -> None:
        over = self.done >= self.target
        if not over.any():
            return
        slots = self.owner[over]
        keep = ~over
        for name in _ROW_COLUMNS:
            setattr(self, name, getattr(self, name)[keep])
        for slot in slots.tolist():
            self.live[slot] -= 1
            if not self.live[slot]:
                self._next_stage(slot)

    def _next_stage(self, slot: int) -> None:
        outcome = self.job[slot]
        assert outcome is not None
        job = outcome.job
        stage = self.stage[slot]
        if job.branches and stage < (2 if job.tail else 1):
            if stage == 0:
                many = len(job.branches)
                tokens, attended = many * BRANCH_PROMPT_TOKENS, many * (job.prompt + job.head)
            else:
                tokens, attended = sum(job.branches), job.prompt + job.head
            self.stage[slot] = stage + 1
            self.extends.append(_Extend(slot, stage + 1, tokens, attended))
            return
        self.stage[slot] = 0
        outcome.finish_s = self.now
        self.free_kv += job.prompt + job.output
        self.job[slot] = None
        heappush(self.free_slots, slot)
        self.line[slot] = self.tpot[slot] = self.deadline[slot] = np.inf


def simulate(
    jobs: list[Job],
    policy: Policy,
    cost: CostModel,
    slo: Slo,
    seed: int = 0,
    noise: Noise | None = None,
) -> tuple[list[Outcome], StepLog]:
    """Run `jobs` (by arrival) to their end."""
    server = _Server(policy, cost, slo, seed, noise or Noise())
    outcomes = [Outcome(job) for job in jobs]
    coming = deque(outcomes)
    while True:
        while coming and coming[0].job.arrival_s <= server.now:
            server.queue.append(coming.popleft())
        server.admit()
        if server.extends:
            server.extend()
        elif len(server.owner):
            server.decode()
        elif coming:
            server.now = coming[0].job.arrival_s
        else:
            break
    return outcomes, server.log
