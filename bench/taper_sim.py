"""Simulate the branch policies on workloads from the Azure traces, with the scheduler's own policy objects.

    python -m bench.taper_sim sweep        # all scenarios, two SLO sets, JSONL and plots
    python -m bench.taper_sim overhead     # time of one decision, 64 requests with 256 branches
    python -m bench.taper_sim fit TRACE    # the same policies on a cost model fitted to a measured server

The seeds reported (7 and 8) are not those the policy was tuned on (100 to 102).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from pydantic import BaseModel, Field
from rich.console import Console
from rich.table import Table

from bench.common import RESULTS, Environment, append, environment
from bench.taper.arrivals import MIXES, arrivals, as_job
from bench.taper.engine import Slo, simulate
from bench.taper.measured import fit_measured
from bench.taper.metrics import Point, met, point, sustainable_load
from bench.taper.scenarios import POLICIES, SCENARIOS, SLO_SETS, Scenario
from bench.taper.workload import make_jobs
from sgl_compiled.branches import StepFeatures, StepTimePredictor, StepView, make_policy

app = typer.Typer(add_completion=False, help=__doc__)
console = Console()
MODEL = "roofline: Qwen3-32B bf16 on one H200"
HORIZON_S = 120.0


class Header(BaseModel):
    """First line of a results file; arrivals end at the horizon, and all of them are served."""

    kind: Literal["header"] = "header"
    environment: Environment
    horizon_s: float = HORIZON_S


class Summary(BaseModel):
    """One scenario under one SLO set."""

    kind: Literal["summary"] = "summary"
    scenario: str
    slo: str
    sustainable_rps: dict[str, float]
    over_off: float | None
    over_eager: float | None
    worst_vs_best_fixed: float
    worst_vs_best_fixed_overload: float


def runs(scenario: Scenario, load: float, seed: int, sets: tuple[str, ...]) -> Iterator[Point]:
    """Every policy on the same arrivals; a fixed policy does not look at targets, so one run serves all sets."""
    jobs = make_jobs(scenario.workload, load, HORIZON_S, seed)
    for name in POLICIES:
        kinds = tuple((kind,) for kind in sets) if name == "taper" else (sets,)
        for group in kinds:
            outcomes, log = simulate(jobs, make_policy(name), scenario.cost, scenario.slo(group[0]), seed)
            for kind in group:
                yield point(scenario.name, kind, name, load, seed, outcomes, log, scenario.slo(kind))


def summarise(scenario: Scenario, kind: str, points: list[Point]) -> tuple[Summary, dict[str, list[float]]]:
    """Sustainable loads, and the worst ratio of TAPER's goodput to the best fixed policy's."""
    mean = {
        name: [
            float(np.mean([p.attainment for p in points if (p.policy, p.load_rps, p.slo) == (name, load, kind)]))
            for load in scenario.loads
        ]
        for name in POLICIES
    }
    best = np.max([mean[name] for name in POLICIES if name != "taper"], axis=0)
    ratio = np.array(mean["taper"]) / np.maximum(best, 1e-9)
    load = {name: sustainable_load(scenario.loads, values) for name, values in mean.items()}
    summary = Summary(
        scenario=scenario.name,
        slo=kind,
        sustainable_rps=load,
        over_off=load["taper"] / load["off"] if load["off"] else None,
        over_eager=load["taper"] / load["eager"] if load["eager"] else None,
        worst_vs_best_fixed=ratio[best >= 0.9].min() if (best >= 0.9).any() else float("nan"),
        worst_vs_best_fixed_overload=ratio[best < 0.9].min() if (best < 0.9).any() else float("nan"),
    )
    return summary, mean


@app.command()
def sweep(
    only: Annotated[list[str] | None, typer.Option(help="Scenario names; all by default.")] = None,
    seeds: Annotated[list[int], typer.Option(help="Seeds to average over.")] = [7, 8],  # noqa: B006
    slo: Annotated[list[str], typer.Option(help=f"SLO sets, of {', '.join(SLO_SETS)}.")] = ["e2e", "tpot"],  # noqa: B006
    out: Annotated[Path, typer.Option(help="Folder for JSONL and plots.")] = RESULTS,
) -> None:
    """Simulate scenarios over their loads; write points, summaries and plots."""
    from bench.taper.plots import plot_scenario

    path = out / "taper_sim.jsonl"
    append(path, Header(environment=environment(MODEL)))
    table = Table(
        "scenario", "SLO", *POLICIES, "/off", "/eager", "worst", "overload", title="load with 95 % attainment"
    )
    for scenario in SCENARIOS:
        if only and scenario.name not in only:
            continue
        started = time.perf_counter()
        points = [item for load in scenario.loads for seed in seeds for item in runs(scenario, load, seed, tuple(slo))]
        for item in points:
            append(path, item)
        for kind in slo:
            summary, mean = summarise(scenario, kind, points)
            append(path, summary)
            plot_scenario(
                f"{scenario.name}, {kind}", scenario.loads, mean, out / f"taper_sim_{scenario.name}_{kind}.png"
            )
            ratios = (summary.over_off, summary.over_eager, summary.worst_vs_best_fixed)
            numbers = (*summary.sustainable_rps.values(), *ratios, summary.worst_vs_best_fixed_overload)
            table.add_row(scenario.name, kind, *("-" if n is None else f"{n:.2f}" for n in numbers))
        console.print(f"{scenario.name}: {time.perf_counter() - started:.0f} s")
    console.print(table)


@app.command()
def fit(
    trace: Annotated[Path, typer.Argument(help="Trace of all steps, from `bench.taper_server --trace`.")],
    kv_tokens: Annotated[int, typer.Option(help="KV capacity of that server, in tokens.")] = 30_000,
    loads: Annotated[list[float], typer.Option(help="Requests a second.")] = [0.4, 0.8, 1.2],  # noqa: B006
    seeds: Annotated[int, typer.Option(help="Seeds for each load.")] = 40,
    stretch: Annotated[float, typer.Option(help="Token target as a multiple of a lone step.")] = 2.5,
    out: Annotated[Path, typer.Option(help="Folder for the record.")] = RESULTS,
) -> None:
    """Simulate the requests of `bench.taper_server` on the cost and unsteadiness of the server it measured."""
    cost, noise = fit_measured(trace, kv_tokens)
    console.print(cost, noise)
    slo = Slo(ttft_s=2.0, tpot_s=stretch * cost.decode_s(1, 80), e2e_factor=0.6, start_s=1.0)
    for mix, load in product(MIXES, loads):
        met_by, requests = dict.fromkeys(POLICIES, 0), 0
        for seed in range(seeds):
            jobs = [as_job(item) for item in arrivals(MIXES[mix], load, 45.0, seed, 40)]
            requests += len(jobs)
            for name in POLICIES:
                outcomes, _ = simulate(jobs, make_policy(name), cost, slo, seed, noise)
                met_by[name] += sum(met(outcome, slo) for outcome in outcomes)
        record = Fitted(
            mix=mix,
            load_rps=load,
            seeds=seeds,
            tpot_target_s=slo.tpot_s,
            requests=requests,
            met=met_by,
            cost=asdict(cost),
            noise=asdict(noise),
        )
        append(out / "taper_sim_fitted.jsonl", record)
        console.print(f"{mix} {load:.2f}/s: met of {requests}: {met_by}")


class Fitted(BaseModel):
    """Requests that met their targets on the cost model of a measured server."""

    kind: Literal["fitted"] = "fitted"
    environment: Environment = Field(default_factory=lambda: environment("cost model fitted to a server's trace"))
    mix: str
    load_rps: float
    seeds: int
    tpot_target_s: float
    requests: int
    met: dict[str, int]
    cost: dict[str, Any]
    noise: dict[str, float]


@app.command()
def overhead(
    requests: Annotated[int, typer.Option(help="Running requests.")] = 64,
    branches: Annotated[int, typer.Option(help="Branches among them.")] = 256,
    out: Annotated[Path, typer.Option(help="Folder for the record.")] = RESULTS,
) -> None:
    """Time one decision of each policy against the step it schedules."""
    view, step_s = _large_view(requests, branches), SCENARIOS[0].cost.decode_s(requests, requests * 1300)
    predictor = StepTimePredictor(capture_sizes=SCENARIOS[0].cost.capture_sizes)
    rng = np.random.default_rng(0)
    for _ in range(200):
        batch = int(rng.integers(8, 300))
        predictor.observe(StepFeatures(batch, batch * 1300), SCENARIOS[0].cost.decode_s(batch, batch * 1300))
    for name in POLICIES:
        policy, times = make_policy(name), []
        for _ in range(2000):
            started = time.perf_counter()
            policy.decide(view, predictor)
            times.append(time.perf_counter() - started)
        median = float(np.median(times))
        record = Overhead(
            environment=environment(MODEL),
            policy=name,
            requests=requests,
            branches=branches,
            decision_median_s=median,
            decision_p95_s=float(np.percentile(times, 95)),
            step_s=step_s,
            share_of_step=median / step_s,
        )
        append(out / "taper_overhead.jsonl", record)
        console.print(
            f"{name:6s} {median * 1e6:6.0f} us, {100 * median / step_s:.2f} % of a step of {step_s * 1e3:.1f} ms"
        )


class Overhead(BaseModel):
    """Cost of a decision; the step is the shortest it could be, with protected rows only."""

    environment: Environment
    policy: str
    requests: int
    branches: int
    decision_median_s: float
    decision_p95_s: float
    step_s: float
    share_of_step: float


def _large_view(requests: int, branches: int) -> StepView:
    rng = np.random.default_rng(1)
    groups = requests // 2
    owner = np.sort(np.concatenate([np.arange(requests), rng.integers(0, groups, branches)]))
    rows = len(owner)
    tpot = np.where(np.arange(requests) < groups, np.inf, 0.03)
    return StepView(
        100.0,
        owner.astype(np.int64),
        rng.integers(200, 4000, rows),
        rng.integers(0, 500, rows),
        rng.integers(0, 20, rows),
        rng.uniform(1, 400, rows),
        np.where(np.isinf(tpot), np.inf, 100.0 + rng.uniform(0, 2, requests)),
        tpot,
        np.where(np.isinf(tpot), 100.0 + rng.uniform(1, 60, requests), np.inf),
        np.zeros(requests),
    )


if __name__ == "__main__":
    app()
