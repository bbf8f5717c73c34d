"""Drive a real CPU server with serial and forking requests under each branch policy in turn, same arrivals.

    python -m bench.taper_server            # 2 mixes, 3 loads, 3 repetitions, about 50 minutes on two idle cores
    python -m bench.taper_server --quick    # one mix, one load, one repetition

The model is a random one of 8 layers: its steps are several times as fast as those of the embedded model, so that as
many more requests come in the same time. The load is open-loop (Poisson arrivals fixed by the seed): of the `narrow`
mix a third of the requests fork into 6 branches, of the `wide` one a fifth into 12. The client runs on the same machine
and keeps to the last core, with the tokenizer; the scheduler has the others. Targets are set from the server's own
speed: a token may take `--stretch` times a lone decode step; a forking request must be complete in 0.6 of what that
allows for its tokens one by one, plus a second. After each run the cache is flushed, which SGLang refuses while any
request holds memory. Outputs under a policy are compared with those under `eager`.

The trace of all decode steps gives the error of the step prediction: before and after a change from short prompts to
long ones, and the number of steps until it has recovered.
"""

from __future__ import annotations

import asyncio
import csv
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer
from pydantic import BaseModel, Field
from rich.console import Console
from transformers import AutoTokenizer

from bench.common import RESULTS, Environment, append, environment, flush
from bench.cores import scheduler_threads, separate
from bench.taper.arrivals import MIXES, Arrival, arrivals
from bench.taper.client import flushed, margin_where_they_part, post, serve
from sgl_compiled.branches import POLICY_KEY
from sgl_compiled.model import random_model
from sgl_compiled.server import CPU_ARGS, SGLangServer

console = Console()
app = typer.Typer(add_completion=False)
POLICIES = ("off", "eager", "taper")


class Run(BaseModel):
    """One policy at one load."""

    kind: Literal["run"] = "run"
    environment: Environment
    policy: str
    mix: str
    load_rps: float
    repetition: int
    tpot_target_s: float
    requests: int
    met: int
    goodput_rps: float
    attainment: float
    attainment_serial: float
    attainment_forked: float
    tpot_serial_mean_s: float
    outputs: int = Field(description="Token sequences: one of a serial request, one more for each branch.")
    outputs_that_differ: int = Field(description="From those under 'eager'.")
    margins_where_they_part: list[float] = Field(
        description="Log-probability between the first two tokens that differ, computed anew."
    )
    flushed: bool


class PredictorError(BaseModel):
    """Error of the step prediction on real steps, relative to the step."""

    kind: Literal["predictor"] = "predictor"
    environment: Environment
    phase: str
    steps: int
    mae: float
    bias: float
    p95: float
    under_predicted: float
    recovered_after_steps: int | None = None


def lone_step_s(url: str) -> float:
    """Median time a token of a request that runs alone."""
    plan, times = arrivals(MIXES["narrow"], 1.0, 6.0, 99, 40), []
    for i, item in enumerate(plan[:4]):
        alone = [Arrival(0.0, item.prompt, 40, ())]
        times.append(asyncio.run(serve(url, alone, 10.0, f"lone-{i}"))[0][1])
    return statistics.median(times)


def prediction_errors(trace: Path, env: Environment) -> list[PredictorError]:
    """Errors on the steps before and after the prompts grew; the trace is cut where the context a row jumps."""
    with trace.open(newline="") as file:
        steps = [row for row in csv.DictReader(file) if float(row["actual_s"] or 0) > 0]
    error = np.array([(float(s["predicted_s"]) - float(s["actual_s"])) / float(s["actual_s"]) for s in steps])
    context = np.array([int(s["context_tokens"]) / max(int(s["rows"]), 1) for s in steps])
    cut = int(np.argmax(context > 250)) or len(steps)
    size = np.abs(error)
    usual = float(np.median([size[i : i + 10].mean() for i in range(64, cut - 10)] or [np.nan]))
    # The first ten steps from the shift on that err as little as usual.
    back = [i for i in range(len(steps) - cut - 9) if size[cut + i : cut + i + 10].mean() <= 1.5 * usual]
    out = []
    for phase, part in (("start", error[:64]), ("before", error[64:cut]), ("after", error[cut:])):
        if len(part):
            out.append(
                PredictorError(
                    environment=env,
                    phase=phase,
                    steps=len(part),
                    mae=float(np.abs(part).mean()),
                    bias=float(part.mean()),
                    p95=float(np.percentile(np.abs(part), 95)),
                    under_predicted=float((part < 0).mean()),
                    recovered_after_steps=back[0] if phase == "after" and back else None,
                )
            )
    return out


@app.command()
def main(
    mixes: Annotated[list[str], typer.Option(help="Names of mixes.")] = list(MIXES),  # noqa: B006
    loads: Annotated[list[float], typer.Option(help="Requests a second.")] = [0.4, 0.8, 1.2],  # noqa: B006
    repetitions: Annotated[int, typer.Option(help="Seeds for each load.")] = 3,
    seed: Annotated[int, typer.Option(help="The first of them.")] = 0,
    horizon_s: Annotated[float, typer.Option(help="Seconds of arrivals in a run.")] = 45.0,
    stretch: Annotated[float, typer.Option(help="Token target as a multiple of a lone step.")] = 2.5,
    quick: Annotated[bool, typer.Option(help="One mix, one load, one repetition.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Keep the trace of all steps here.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the records.")] = RESULTS,
) -> None:
    """Run all policies at all loads on one server."""
    if unknown := sorted(set(mixes) - set(MIXES)):
        raise typer.BadParameter(f"no mix is called {', '.join(unknown)}; there are {', '.join(MIXES)}")
    if quick:
        mixes, loads, repetitions = mixes[:1], loads[1:2] or loads, 1
    model = random_model(layers=8, hidden=384)
    threads = scheduler_threads()
    env = environment(str(model)).model_copy(update={"omp_threads": threads})
    folder = Path(tempfile.mkdtemp(prefix="taper-"))
    config, trace = folder / "server.toml", (trace or folder / "steps.csv").resolve()
    config.write_text(f'[branches]\npolicy = "eager"\ntrace = "{trace}"\n')
    # The client reads the first token and the last; those between would only take its cores from the server.
    args = [*CPU_ARGS, "--max-total-tokens", "30000", "--grammar-backend", "outlines", "--stream-interval", "16"]
    variables = {"SGLCOMPILED_CONFIG": str(config), "OMP_NUM_THREADS": str(threads)}
    with SGLangServer(model, args, env=variables, log=folder / "server.log") as server:
        separate(server)
        tpot_s = stretch * lone_step_s(server.url)
        console.print(f"token target {tpot_s * 1e3:.0f} ms")
        encode = AutoTokenizer.from_pretrained(model).encode
        for mix, load in product(mixes, loads):
            for repetition in range(seed, seed + repetitions):
                _compare(server.url, encode, env, mix, load, repetition, horizon_s, tpot_s, out)
        # The shift: long prompts, all branches at once.
        post(server.url, "/set_internal_state", server_args={POLICY_KEY: "eager"})
        asyncio.run(serve(server.url, arrivals(MIXES[mixes[0]], loads[0], horizon_s, 50, 300), tpot_s, "shift"))
        flush(server.url)
        time.sleep(1.0)
        for record in prediction_errors(trace, env):
            append(out / "taper_server.jsonl", record)
            console.print(
                f"prediction, {record.phase}: {record.steps} steps, MAE {record.mae:.1%}, bias {record.bias:+.1%}, "
                f"p95 {record.p95:.1%}, under-predicted {record.under_predicted:.0%}"
            )


def _compare(
    url: str,
    encode: Callable[[str], list[int]],
    env: Environment,
    mix: str,
    load: float,
    repetition: int,
    horizon_s: float,
    tpot_s: float,
    out: Path,
) -> None:
    """Run the policies on the same arrivals, in an order that rotates with the repetition."""
    plan, answers, records = arrivals(MIXES[mix], load, horizon_s, repetition, 40), {}, {}
    prompts = [prompt for item in plan for prompt in item.prompts]
    for policy in (*POLICIES[repetition % 3 :], *POLICIES[: repetition % 3]):
        if post(url, "/set_internal_state", server_args={POLICY_KEY: policy}).json() != [True]:
            raise RuntimeError(f"the server did not switch to {policy}")
        answers[policy] = asyncio.run(serve(url, plan, tpot_s, f"{policy}-{mix}-{load}-{repetition}"))
        records[policy] = flushed(url)
    outputs = {policy: [ids for answer in mine for ids in answer[2]] for policy, mine in answers.items()}
    for policy, answer in answers.items():
        good = np.array([met for met, _, _ in answer])
        forks = np.array([bool(item.branches) for item in plan])
        margins = [
            margin_where_they_part(url, encode(prompt), mine, theirs)
            for prompt, mine, theirs in zip(prompts, outputs[policy], outputs["eager"], strict=True)
            if mine != theirs
        ]
        record = Run(
            environment=env,
            policy=policy,
            mix=mix,
            load_rps=load,
            repetition=repetition,
            tpot_target_s=tpot_s,
            requests=len(plan),
            met=int(good.sum()),
            goodput_rps=float(good.sum()) / horizon_s,
            attainment=float(good.mean()),
            attainment_serial=float(good[~forks].mean()) if (~forks).any() else 1.0,
            attainment_forked=float(good[forks].mean()) if forks.any() else 1.0,
            tpot_serial_mean_s=float(np.mean([t for (_, t, _), fork in zip(answer, forks, strict=True) if not fork])),
            outputs=len(prompts),
            outputs_that_differ=len(margins),
            margins_where_they_part=margins,
            flushed=records[policy],
        )
        append(out / "taper_server.jsonl", record)
        console.print(
            f"{mix} {load:.2f}/s #{repetition} {policy:6s} met {record.met}/{record.requests} (serial "
            f"{record.attainment_serial:.2f}, forked {record.attainment_forked:.2f}), token "
            f"{record.tpot_serial_mean_s * 1e3:.0f} ms, {len(margins)} of {len(prompts)} outputs differ "
            f"{margins or ''}, flushed {record.flushed}"
        )
    flushed(url)  # of what the margins left


if __name__ == "__main__":
    app()
