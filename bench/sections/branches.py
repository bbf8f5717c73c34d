"""Sections on the branch policies: simulation, the time of a decision, a real server."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from bench.sections.markdown import Records, latest, place, table

__all__ = ["taper_overhead", "taper_server", "taper_sim"]

_ATTAINED = ("attainment_serial", "attainment_forked")


def taper_server(records: Records) -> Iterator[str]:
    """Branch policies on a real server, and the error of the step prediction."""
    names = ("phase", "mix", "load_rps", "repetition", "policy")
    records = latest(records, lambda record: tuple(record.get(name) for name in names))
    runs = [record for record in records if record["kind"] == "run"]
    yield from place(records)
    targets = sorted({f"{1e3 * run['tpot_target_s']:.0f}" for run in runs}, key=int)
    yield (
        f"Token target {' or '.join(targets)} ms (a multiple of a lone step, measured when the server starts). "
        "Goodput: requests a second that met their targets, each repetition, and their mean."
    )
    yield ""
    rows = []
    for mix, load in dict.fromkeys((run["mix"], run["load_rps"]) for run in runs):
        for policy in ("off", "eager", "taper"):
            mine = [run for run in runs if (run["mix"], run["load_rps"], run["policy"]) == (mix, load, policy)]
            rows.append(
                [mix, f"{load}", f"`{policy}`", ", ".join(f"{run['goodput_rps']:.2f}" for run in mine)]
                + [f"{statistics.fmean(run['goodput_rps'] for run in mine):.3f}"]
                + [f"{sum(run['met'] for run in mine)} of {sum(run['requests'] for run in mine)}"]
                + [f"{statistics.fmean(run[name] for run in mine):.0%}" for name in _ATTAINED]
                + [f"{sum(r['outputs_that_differ'] for r in mine)} of {sum(r['outputs'] for r in mine)}"]
            )
    head = ["mix", "load", "policy", "goodput", "mean", "met", "serial met", "forked met", "outputs other than eager's"]
    yield from table(head, rows)
    errors = [
        [record["phase"], str(record["steps"]), f"{record['mae']:.1%}", f"{record['bias']:+.1%}"]
        + [f"{record['p95']:.1%}", f"{record['under_predicted']:.0%}", _plain(record["recovered_after_steps"])]
        for record in records
        if record["kind"] == "predictor"
    ]
    yield "Error of the step prediction, relative to the step; the prompts grew between `before` and `after`:"
    yield ""
    yield from table(["phase", "steps", "MAE", "bias", "p95", "under-predicted", "as good again after steps"], errors)


def taper_sim(records: Records) -> Iterator[str]:
    """Loads that the policies sustain in simulation."""
    yield from place([record for record in records if record["kind"] == "header"])
    points = latest([r for r in records if r["kind"] == "point"], _run_of)
    yield (
        "Highest load (requests a second) with at least 95 % of the requests meeting their targets, interpolated "
        "between the loads simulated. `worst`: attainment of `taper` over that of the best fixed policy at its worst "
        "load, where that policy attains 90 %, and in overload. What scenarios and targets are is in `docs/taper.md`."
    )
    yield ""
    rows = []
    summaries = latest([record for record in records if record["kind"] == "summary"], _setting_of)
    for found in summaries:
        least = min(point["load_rps"] for point in points if _setting_of(point) == _setting_of(found))
        loads = found["sustainable_rps"]
        row = [f"`{found['scenario']}`", found["slo"]]
        row += [f"{load:.2f}" if load else f"< {least:g}" for load in loads.values()]
        for other in ("off", "eager"):
            row.append(f"{loads['taper'] / loads[other]:.2f}" if loads[other] else f"> {loads['taper'] / least:.1f}")
        rows.append([*row, *(_ratio(found[name]) for name in ("worst_vs_best_fixed", "worst_vs_best_fixed_overload"))])
    policies = list(summaries[0]["sustainable_rps"])
    yield from table(["scenario", "targets", *policies, "/off", "/eager", "worst", "worst in overload"], rows)
    ours = [point for point in points if point["policy"] == "taper"]
    mae, bias, p95, under = (
        statistics.fmean(point[name] for point in ours)
        for name in ("error_mae", "error_bias", "error_p95", "under_predicted")
    )
    yield (
        f"Error of the step prediction, relative to the step, mean over the runs of `taper`: MAE {mae:.1%}, bias "
        f"{bias:+.2%}, p95 {p95:.1%}, under-predicted {under:.0%}."
    )
    yield ""


def _run_of(record: dict[str, Any]) -> tuple[Any, ...]:
    return *_setting_of(record), record["policy"], record["load_rps"], record["seed"]


def _setting_of(record: dict[str, Any]) -> tuple[str, str]:
    return record["scenario"], record["slo"]


def _ratio(value: float | None) -> str:
    return "" if value is None or value != value else f"{value:.2f}"


def _plain(value: Any) -> str:
    return "" if value is None else str(value)


def taper_overhead(records: Records) -> Iterator[str]:
    """Time of one decision of the branch policies."""
    records = latest(records, lambda record: record["policy"])
    yield from place(records)
    yield (
        f"{records[0]['requests']} requests with {records[0]['branches']} more branches; the step is what the requests "
        f"alone take on the roofline of `taper_sim`, {1e3 * records[0]['step_s']:.1f} ms."
    )
    yield ""
    rows = [
        [f"`{r['policy']}`", f"{1e6 * r['decision_median_s']:.0f}", f"{1e6 * r['decision_p95_s']:.0f}"]
        + [f"{r['share_of_step']:.2%}"]
        for r in records
    ]
    yield from table(["policy", "median us", "p95 us", "median, of the step"], rows)
