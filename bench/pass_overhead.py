"""What a pass costs beside its forward: a model so small that almost nothing else is left.

    python -m bench.pass_overhead            # about two minutes on two cores

On a random two-layer model a forward takes a few milliseconds. A choice of ``n`` slots under the chunked plan takes
about ``2 n - 1`` passes, all behind one cached prompt: the slope of its latency over the passes is what a pass costs,
messages between SGLang's three processes, scheduling and the walk included, and so bounds the time between the end of
one extend and the start of the next. ``between_ms`` is the part of it spent in the engine, between two passes. Beside
it stands a decoded token of the same server, whose loop needs no message.
"""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path
from typing import Annotated

import httpx
import numpy as np
import typer
from pydantic import BaseModel
from rich.console import Console

from bench.common import RESULTS, Environment, append, environment
from sgl_compiled.client import Client
from sgl_compiled.model import random_model
from sgl_compiled.server import CPU_ARGS, SGLangServer

console = Console()


class Record(BaseModel):
    """One run, in milliseconds."""

    bench: str = "pass_overhead"
    pass_ms: float
    between_ms: float
    fixed_ms: float
    decoded_token_ms: float
    same_as_serial: int
    answers: int
    environment: Environment


def main(
    repeats: Annotated[int, typer.Option(help="Choices of each size.")] = 20,
    out: Annotated[Path, typer.Option(help="JSONL file, appended to.")] = RESULTS / "pass_overhead.jsonl",
) -> None:
    """Measure the slope."""
    path = random_model()
    where, rng = environment(path.name), random.Random(0)
    points: list[tuple[int, float, float]] = []
    token_ms: list[float] = []
    same = answers = 0
    args = [*CPU_ARGS, "--grammar-backend", "outlines", "--max-total-tokens", "20000"]
    labels = [str(i) for i in range(20)]
    with SGLangServer(path, args) as server, Client(server.url) as client:
        for repeat in range(repeats + 2):
            prompt = [rng.randrange(300, 4_000) for _ in range(200)]
            for n in (1, 2, 4, 8):
                serial = client.select_k(prompt, labels, n, plan="serial")
                start = time.perf_counter()
                answer = client.select_k(prompt, labels, n, plan="chunked")
                ms = 1e3 * (time.perf_counter() - start)
                if repeat >= 2:
                    points.append((len(answer.plan.passes), ms, sum(one.ms for one in answer.plan.passes)))
                    same += answer.token_ids == serial.token_ids
                    answers += 1
            times = []
            for length in (8, 40):
                sampling = {"max_new_tokens": length, "temperature": 0, "ignore_eos": True}
                start = time.perf_counter()
                body = {"input_ids": prompt, "sampling_params": sampling}
                httpx.post(server.url + "/generate", json=body, timeout=60, trust_env=False).raise_for_status()
                times.append(1e3 * (time.perf_counter() - start))
            if repeat >= 2:
                token_ms.append((times[1] - times[0]) / 32)
    passes, latency, inside = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    slope, fixed = np.polyfit(passes, latency, 1)
    between, _ = np.polyfit(passes, latency - inside, 1)
    record = Record(
        pass_ms=round(float(slope), 3),
        between_ms=round(float(between), 3),
        fixed_ms=round(float(fixed), 3),
        decoded_token_ms=round(statistics.median(token_ms), 3),
        same_as_serial=same,
        answers=answers,
        environment=where,
    )
    append(out, record)
    console.print(record.model_dump(exclude={"environment"}))


if __name__ == "__main__":
    typer.run(main)
