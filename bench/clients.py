"""Many clients at once: decisions a second and latency, compiled against token-wise decoding on the same server.

python -m bench.clients            # about three minutes on two cores
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import httpx
import numpy as np
import typer
from pydantic import BaseModel
from rich.console import Console

from bench.common import RESULTS, Environment, append, environment, flush, prefill
from bench.select_vs_serial import by_plan, by_regex, prompt_of, use_tokenizer
from sgl_compiled.client import Client
from sgl_compiled.model import embedded_model
from sgl_compiled.server import CPU_ARGS, SGLangServer

console = Console()


class Way(BaseModel):
    """One way to serve the same questions."""

    decisions_per_s: float
    p50_ms: float
    p95_ms: float
    same_as_serial: int | None


class Record(BaseModel):
    """All ways, in one run on one server."""

    bench: str = "clients"
    clients: int
    decisions: int
    k_labels: int
    n_slots: int
    prompt_tokens: int
    ways: dict[str, Way]
    environment: Environment


def main(
    clients: Annotated[int, typer.Option(help="Clients that ask at the same time.")] = 16,
    rounds: Annotated[int, typer.Option(help="Questions a client asks.")] = 2,
    tokens: Annotated[int, typer.Option(help="Prompt length.")] = 350,
    k: Annotated[int, typer.Option(help="Labels.")] = 20,
    n: Annotated[int, typer.Option(help="Slots.")] = 3,
    out: Annotated[Path, typer.Option(help="JSONL file, appended to.")] = RESULTS / "clients.jsonl",
) -> None:
    """Ask the same questions every way, each behind its own cached prompt."""
    model = embedded_model()
    use_tokenizer(model)
    args = [*CPU_ARGS, "--grammar-backend", "outlines", "--max-total-tokens", "20000"]
    labels = [str(i) for i in range(1, k + 1)]
    asked = [prompt_of(tokens, seed) for seed in range(clients * rounds)]
    with SGLangServer(model, args) as server, Client(server.url) as client:
        httpx.post(server.url + "/v1/select_k/calibrate", timeout=600, trust_env=False).raise_for_status()
        ways: dict[str, Callable[..., Any]] = {plan: by_plan(client, plan) for plan in ("auto", "chunked", "serial")}
        ways["outlines"] = by_regex(server.url)
        found: dict[str, Way] = {}
        reference: list[Any] = []
        for name in ("serial", "outlines", "chunked", "auto"):
            run = ways[name]
            # Nothing that an earlier way chose lies in the cache, and the grammar is compiled before the clock starts.
            flush(server.url)
            run(prompt_of(tokens, len(asked)), labels, n)
            for prompt in asked:
                prefill(server.url, prompt)

            def ask(job: int, run: Callable[..., Any] = run) -> tuple[Any, float]:
                start = time.perf_counter()
                answer = run(asked[job], labels, n)
                return answer[0], 1e3 * (time.perf_counter() - start)

            start = time.perf_counter()
            with ThreadPoolExecutor(clients) as executor:
                results = list(executor.map(ask, range(len(asked))))
            wall = time.perf_counter() - start
            times = [ms for _, ms in results]
            if name == "serial":
                reference = [tokens for tokens, _ in results]
            same = None
            if results[0][0] is not None:
                same = sum(mine == ref for (mine, _), ref in zip(results, reference, strict=True))
            found[name] = Way(
                decisions_per_s=round(len(results) / wall, 3),
                p50_ms=round(statistics.median(times), 1),
                p95_ms=round(float(np.quantile(times, 0.95)), 1),
                same_as_serial=same,
            )
            console.print(f"{name}: {found[name]}")
        record = Record(
            clients=clients,
            decisions=clients * rounds,
            k_labels=k,
            n_slots=n,
            prompt_tokens=tokens,
            ways=found,
            environment=environment(server.model),
        )
        append(out, record)


if __name__ == "__main__":
    typer.run(main)
