"""Workloads from the Azure 2023 traces: lengths and arrival pattern, with a branch structure put on top."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Family", "Job", "WorkloadSpec", "make_jobs"]

Family = Literal["conv", "code", "mixed"]
_DATA = Path(__file__).parents[1] / "data" / "azure_llm_2023"


@dataclass(frozen=True, slots=True)
class Job:
    """One request: `head` tokens, then `branches` in parallel, then `tail` tokens after their join.

    `hint` is the factor by which the declared lengths differ from the true ones.
    """

    arrival_s: float
    prompt: int
    head: int
    branches: tuple[int, ...]
    tail: int
    hint: float

    @property
    def output(self) -> int:
        """Tokens of the whole answer."""
        return self.head + sum(self.branches) + self.tail


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """Knobs of a workload.

    Attributes
    ----------
    family : {"conv", "code", "mixed"}
        Trace of the lengths and arrivals; mixed draws each request from one of both.
    share : float
        Share of requests that fork, among those with at least `min_output` tokens.
    parallel : float
        Share of a forking request's tokens that lies in its branches.
    fanout : int
        Branches of a forking request.
    min_output : int
        Shorter answers never fork.
    unevenness : float
        Spread (log-normal sigma) of the branch lengths of one request.
    hint_sigma : float
        Spread (log-normal sigma) of the declared lengths around the true ones.
    drawn : bool
        Branches are answers of their own, with lengths drawn from the trace (conv for mixed); otherwise they share out
        the tokens of one answer.
    """

    family: Family
    share: float = 0.3
    parallel: float = 0.9
    fanout: int = 8
    min_output: int = 64
    unevenness: float = 0.3
    hint_sigma: float = 0.3
    drawn: bool = True


@lru_cache(maxsize=2)
def _trace(kind: str) -> NDArray[np.float64]:
    """Rows (seconds since the first, context tokens, generated tokens)."""
    with (_DATA / f"AzureLLMInferenceTrace_{kind}_first5000.csv").open() as file:
        rows = [
            (
                datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp(),
                int(row["ContextTokens"]),
                int(row["GeneratedTokens"]),
            )
            for row in csv.DictReader(file)
        ]
    table = np.array(rows, dtype=np.float64)
    table[:, 0] -= table[0, 0]
    return table


def _window(kind: str, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """A contiguous window of `count` rows (wrapping round), with gaps scaled to a mean of 1."""
    table = _trace(kind)
    at = (rng.integers(len(table)) + np.arange(count)) % len(table)
    gaps = np.diff(table[:, 0], prepend=0.0)[at]
    gaps[at == 0] = np.median(gaps)
    rows: NDArray[np.float64] = table[at].copy()
    rows[:, 0] = np.cumsum(gaps / gaps.mean())
    return rows


def make_jobs(spec: WorkloadSpec, load_rps: float, horizon_s: float, seed: int) -> list[Job]:
    """Jobs that arrive in `horizon_s` seconds at a mean rate of `load_rps`."""
    rng = np.random.default_rng(seed)
    count = max(int(load_rps * horizon_s), 8)
    if spec.family == "mixed":
        half = count // 2
        parts = [_window("conv", half, rng), _window("code", count - half, rng)]
        for part in parts:
            part[:, 0] *= count / part[-1, 0]
        rows = np.concatenate(parts)
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
    else:
        rows = _window(spec.family, count, rng)
    rows[:, 0] *= horizon_s / rows[-1, 0]
    return [_job(spec, float(at), int(prompt), max(int(output), 2), rng) for at, prompt, output in rows]


def _job(spec: WorkloadSpec, arrival_s: float, prompt: int, output: int, rng: np.random.Generator) -> Job:
    forks, weights = rng.random() < spec.share, rng.lognormal(0.0, spec.unevenness, spec.fanout)
    hint = float(rng.lognormal(0.0, spec.hint_sigma))
    if spec.drawn:
        if not forks:
            return Job(arrival_s, prompt, output, (), 0, hint)
        lengths = np.maximum(
            _trace("code" if spec.family == "code" else "conv")[rng.integers(0, 5000, spec.fanout), 2], 2
        )
        outside = max(int(lengths.sum() * (1 - spec.parallel) / spec.parallel), 4)
        return Job(arrival_s, prompt, outside - outside // 2, tuple(int(n) for n in lengths), outside // 2, hint)
    if not forks or output < max(spec.min_output, 2 * spec.fanout):
        return Job(arrival_s, prompt, output, (), 0, hint)
    inside = max(int(spec.parallel * output), spec.fanout)
    lengths = np.maximum((weights / weights.sum() * inside).astype(int), 1)
    outside = max(output - int(lengths.sum()), 2)
    return Job(arrival_s, prompt, outside - outside // 2, tuple(int(n) for n in lengths), outside // 2, hint)
