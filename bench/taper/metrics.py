"""Attainment of a run, the sustainable load of a policy, and the records of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import BaseModel, Field

from .engine import Outcome, Slo, StepLog

__all__ = ["Point", "met", "point", "sustainable_load"]

COUNTED_S = (20.0, 100.0)
"""Arrivals that are scored: from when the server has filled, and while others still come behind them."""


class Point(BaseModel):
    """One policy at one load, one seed."""

    kind: Literal["point"] = "point"
    scenario: str
    slo: str
    policy: str
    load_rps: float
    seed: int
    requests: int
    attainment: float
    attainment_serial: float
    attainment_forked: float
    goodput_rps: float
    step_mean_s: float
    rows_mean: float
    parked_mean: float
    wait_max_steps: int
    overload_share: float
    error_mae: float = Field(description="Mean absolute error of the step prediction, relative to the step.")
    error_bias: float
    error_p95: float
    under_predicted: float = Field(description="Share of steps that took longer than predicted.")


def met(outcome: Outcome, slo: Slo) -> bool:
    """Tell whether a request met its targets."""
    job = outcome.job
    if job.branches and slo.e2e_factor is not None:
        return outcome.finish_s - job.arrival_s <= slo.deadline_s(job)
    token_s = (outcome.finish_s - outcome.first_s) / max(job.output - 1, 1)
    return outcome.first_s - job.arrival_s <= slo.ttft_s and token_s <= slo.tpot_s


def point(
    scenario: str, kind: str, policy: str, load: float, seed: int, outcomes: Sequence[Outcome], log: StepLog, slo: Slo
) -> Point:
    """Score the counted arrivals of a run."""
    begin, end = COUNTED_S
    counted = [outcome for outcome in outcomes if begin <= outcome.job.arrival_s < end]
    good = np.array([met(outcome, slo) for outcome in counted])
    forks = np.array([bool(outcome.job.branches) for outcome in counted])
    error = np.array(log.error_s) / np.array(log.elapsed_s)
    return Point(
        scenario=scenario,
        slo=kind,
        policy=policy,
        load_rps=load,
        seed=seed,
        requests=len(counted),
        attainment=float(good.mean()),
        attainment_serial=float(good[~forks].mean()) if (~forks).any() else 1.0,
        attainment_forked=float(good[forks].mean()) if forks.any() else 1.0,
        goodput_rps=load * float(good.mean()),
        step_mean_s=float(np.mean(log.elapsed_s)),
        rows_mean=float(np.mean(log.rows)),
        parked_mean=float(np.mean(log.parked)),
        wait_max_steps=log.max_wait_steps,
        overload_share=log.overload_steps / len(log.rows),
        error_mae=float(np.abs(error).mean()),
        error_bias=float(error.mean()),
        error_p95=float(np.percentile(np.abs(error), 95)),
        under_predicted=float((error < 0).mean()),
    )


def sustainable_load(loads: Sequence[float], attainment: Sequence[float], target: float = 0.95) -> float:
    """Highest load up to which attainment holds `target`, interpolated between the loads; 0 below the first."""
    for i, value in enumerate(attainment):
        if value < target:
            if i == 0:
                return 0.0
            high = attainment[i - 1]
            return loads[i - 1] + (loads[i] - loads[i - 1]) * (high - target) / (high - value)
    return loads[-1]
