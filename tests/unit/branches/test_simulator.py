"""The simulator keeps its books: every job ends, with the times its own cost model implies."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from bench.taper.cost import RooflineCost
from bench.taper.engine import Noise, Slo, simulate
from bench.taper.measured import MeasuredCost, fit_measured
from bench.taper.metrics import met, sustainable_load
from bench.taper.workload import Job, WorkloadSpec, make_jobs
from sgl_compiled.branches import make_policy

QUIET = MeasuredCost((1, 64), (0.011, 0.074), pass_s=0.0, token_s=0.0, kv_tokens=10**6)


def run(jobs, policy, cost=QUIET, slo=None, **kwargs):
    return simulate(jobs, make_policy(policy), cost, slo or Slo(), noise=Noise(0.0), **kwargs)


def test_a_serial_job_by_hand():
    [outcome], log = run([Job(1.0, 100, 11, (), 0, 1.0)], "eager")
    assert outcome.first_s == 1.0
    assert outcome.finish_s == pytest.approx(1.0 + 10 * 0.011)
    assert log.rows == [1] * 10


@pytest.mark.parametrize(("policy", "seconds"), [("eager", 9 * 0.014), ("off", 36 * 0.011), ("cap:2", 18 * 0.012)])
def test_a_fork_by_hand(policy, seconds):
    """Head 3, four branches of 10, tail 2; the first token of each part comes with its extend."""
    [outcome], _ = run([Job(0.0, 100, 3, (10, 10, 10, 10), 2, 1.0)], policy)
    assert outcome.finish_s == pytest.approx(2 * 0.011 + seconds + 0.011)


@pytest.mark.parametrize("policy", ["off", "eager", "taper"])
def test_all_jobs_end_and_memory_is_given_back(policy):
    jobs = make_jobs(WorkloadSpec("code", fanout=4), 3.0, 6.0, seed=3)
    outcomes, log = simulate(jobs, make_policy(policy), RooflineCost(kv_tokens=40_000), Slo(), seed=3)
    assert all(np.isfinite(outcome.finish_s) for outcome in outcomes)
    assert all(outcome.job.arrival_s <= outcome.first_s <= outcome.finish_s for outcome in outcomes)
    decoded = sum(log.rows)
    starts = sum(1 + (len(job.branches) + 1 if job.branches else 0) for job in jobs)
    assert decoded == sum(job.output for job in jobs) - starts
    again, _ = simulate(jobs, make_policy(policy), RooflineCost(kv_tokens=40_000), Slo(), seed=3)
    assert [o.finish_s for o in again] == [o.finish_s for o in outcomes]


@pytest.mark.parametrize("family", ["conv", "code", "mixed"])
def test_workloads_have_the_load_and_structure_asked_for(family):
    spec = WorkloadSpec(family, share=0.5, parallel=0.8, fanout=6)
    jobs = make_jobs(spec, 20.0, 50.0, seed=1)
    assert len(jobs) == 1000
    assert jobs[-1].arrival_s == pytest.approx(50.0)
    forks = [job for job in jobs if job.branches]
    assert 0.4 < len(forks) / len(jobs) < 0.6
    assert all(len(job.branches) == 6 for job in forks)
    inside = sum(sum(job.branches) for job in forks) / sum(job.output for job in forks)
    assert inside == pytest.approx(0.8, abs=0.05)


def test_targets_by_hand():
    serial, fork = Job(0.0, 10, 11, (), 0, 1.0), Job(0.0, 10, 5, (5, 5), 5, 1.0)
    slo = Slo(ttft_s=1.0, tpot_s=0.1, e2e_factor=0.5, start_s=1.0)
    [outcome], _ = run([serial], "eager")
    assert met(outcome, slo)
    outcome.first_s, outcome.finish_s = 1.0, 2.01
    assert not met(outcome, slo)
    [outcome], _ = run([fork], "eager")
    outcome.finish_s = 1.0 + 0.5 * 20 * 0.1
    assert met(outcome, slo)
    outcome.finish_s += 0.01
    assert not met(outcome, slo)


def test_sustainable_load_interpolates():
    assert sustainable_load([1, 2, 4], [1.0, 1.0, 0.9]) == pytest.approx(3.0)
    assert sustainable_load([1, 2], [0.94, 0.9]) == 0.0
    assert sustainable_load([1, 2], [1.0, 0.99]) == 2


def test_a_measured_server_is_recovered_from_its_trace(tmp_path):
    rng, path = np.random.default_rng(0), tmp_path / "steps.csv"
    steps_s = {1: 0.027, 2: 0.041, 3: 0.051, 4: 0.047, 8: 0.055, 12: 0.071}
    drift, per_step = 0.0, 0.98
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["rows", "extend_passes", "extend_tokens", "actual_s"])
        writer.writeheader()
        for _ in range(20_000):
            rows, passes = int(rng.choice(list(steps_s))), int(rng.random() < 0.1)
            tokens = passes * int(rng.integers(20, 400))
            drift = per_step * drift + 0.12 * (1 - per_step**2) ** 0.5 * rng.standard_normal()
            exact = steps_s[rows] + 0.02 * passes + 1e-4 * tokens
            actual = exact * np.exp(drift + 0.08 * rng.standard_normal())
            writer.writerow(dict(zip(writer.fieldnames, (rows, passes, tokens, actual), strict=True)))
        writer.writerow(dict.fromkeys(writer.fieldnames, 1) | {"actual_s": ""})  # the last step is not measured
    cost, noise = fit_measured(path, kv_tokens=1000)
    assert {n: cost.decode_s(n, 0) for n in steps_s} == pytest.approx(steps_s, rel=0.05)
    assert cost.decode_s(6, 0) == pytest.approx(0.051, rel=0.05)
    assert cost.decode_s(20, 0) > cost.decode_s(12, 0)
    assert (cost.pass_s, cost.token_s) == pytest.approx((0.02, 1e-4), rel=0.3)
    assert (noise.step, noise.drift) == pytest.approx((0.08, 0.12), rel=0.15)
    assert noise.drift_s == pytest.approx(0.051 / -np.log(per_step), rel=0.5)


def test_a_machine_whose_speed_wanders_keeps_its_books():
    jobs = [Job(0.1 * i, 40, 30, (), 0, 1.0) for i in range(40)]
    steady, log = run(jobs, "eager")
    wandering, wide = simulate(jobs, make_policy("eager"), QUIET, Slo(), 0, Noise(0.0, 0.2, 5.0))
    ratio = np.array(wide.elapsed_s) / np.array([0.01 + 0.001 * n for n in wide.rows])
    assert np.log(ratio).std() > 0.05
    assert np.corrcoef(ratio[:-1], ratio[1:])[0, 1] > 0.9  # it wanders, it does not jump
    assert sum(wide.rows) == sum(log.rows)
    assert all(outcome.finish_s >= outcome.first_s for outcome in [*steady, *wandering])
