"""Exactness and speed of compiled choices on a GPU, in one run with hard time limits; ``--dry-run`` on a CPU."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.table import Table

from bench.gpu import speed
from bench.gpu.client import BenchClient
from bench.gpu.exactness import exactness
from bench.gpu.limits import StageTimeoutError, time_limit
from bench.gpu.models import EXACT_CPU, EXACT_GPU, QWEN_7B, write_dummy_qwen, write_random_llama
from bench.gpu.records import Record, Results, Status, environment
from bench.gpu.speed import Sizes
from sgl_compiled.server import CPU_ARGS, SGLangServer

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console(width=120)

STAGES = ("exactness", "speed", "llguidance", "plain")
CPU_SIZES = Sizes(
    prompts=(60, 200), extends=(1, 24), picks=(2, 3), clients=(1, 3), repeats=2, decode_tokens=8, labels=8
)
GPU_ARGS = ("--mem-fraction-static", "0.6", "--cuda-graph-backend-prefill", "disabled")
EXACT_OPTIONS = {"page16": ("--page-size", "16"), "graphs": ("--cuda-graph-backend-prefill", "breakable")}
"""What an exactness variant adds to its attention backend; prefill graphs are SGLang's default."""

Work = Callable[[BenchClient], Awaitable[Any]]


class Bench:
    """A run: where its models lie, how its servers are started, where its results go."""

    def __init__(self, results: Results, folder: Path, *, dry: bool, limit_s: float, start_s: float) -> None:
        self.results = results
        self.folder = folder
        self.dry = dry
        self.limit_s = limit_s
        self.start_s = start_s
        self.sizes = CPU_SIZES if dry else Sizes()
        # xgrammar cannot mask logits on a CPU.
        self.grammar = "outlines" if dry else "xgrammar"
        self._server: SGLangServer | None = None
        self._key: Any = None

    def model(self, kind: str) -> Path:
        """Return the model of ``kind`` (``"exact"`` or ``"speed"``), written on first use."""
        # One tiny model is enough for a dry run, and one server then serves both stages.
        folder = self.folder / ("exact" if self.dry else kind)
        if (folder / "config.json").exists():
            return folder
        folder.mkdir(parents=True, exist_ok=True)
        if folder.name == "exact":
            return write_random_llama(folder, EXACT_CPU if self.dry else EXACT_GPU)
        return write_dummy_qwen(folder, QWEN_7B)

    def args(self, kind: str, *, grammar: str = "", attention: str = "flashinfer") -> list[str]:
        grammar = grammar or self.grammar
        if self.dry:
            return [*CPU_ARGS, "--max-total-tokens", "20000", "--grammar-backend", grammar]
        dummy = ["--load-format", "dummy"] if kind == "speed" else []
        return ["--attention-backend", attention, "--grammar-backend", grammar, *dummy, *GPU_ARGS]

    def serve(
        self,
        name: str,
        kind: str,
        work: dict[str, Work],
        *,
        plugin: bool = True,
        extra: tuple[str, ...] = (),
        **how: str,
    ) -> None:
        """Run the named pieces of work on a server, each under the limit; a failure costs its piece only."""
        env = {} if plugin else {"SGLANG_PLUGINS": "__none__"}
        if not self.dry:
            env["SGLANG_USE_CPU_ENGINE"] = "0"
        try:
            server = self.start(name, self.model(kind), [*self.args(kind, **how), *extra], env)
        except Exception as error:
            # Whatever keeps one server from starting, the other stages are worth having.
            self.fail(name, "server", error)
            return
        for arm, piece in work.items():
            if server.alive():
                self.piece(name, arm, server, piece)
            else:
                self.fail(name, arm, RuntimeError(f"the server had stopped: {server.log_text()[-3000:]}"))

    def start(self, name: str, model: Path, args: list[str], env: dict[str, str]) -> SGLangServer:
        """Return a server with these settings: the one that runs, or a new one in its place."""
        key = (model, args, env)
        if self._server is not None and self._server.alive() and self._key == key:
            return self._server
        self.close()
        log = self.results.path.with_suffix(f".{name}.log")
        server = SGLangServer(model, args, env=env, log=log, timeout_s=self.start_s)
        console.rule(f"{name}: {' '.join(server.command[3:])}")
        start = time.perf_counter()
        with time_limit(self.start_s + 30):
            self._server, self._key = server.__enter__(), key
        console.print(f"ready after {time.perf_counter() - start:.0f} s")
        return server

    def close(self) -> None:
        """Stop the server that runs."""
        if self._server is not None:
            self._server.stop()
        self._server = None

    def piece(self, name: str, arm: str, server: SGLangServer, work: Work) -> None:
        async def run() -> None:
            client = BenchClient(server.url)
            try:
                # The loop's own limit: under uvloop an exception out of a signal handler is logged, not raised.
                await asyncio.wait_for(work(client), self.limit_s)
            finally:
                await client.aclose()

        start = time.perf_counter()
        try:
            asyncio.run(run())
        except Exception as error:
            self.fail(name, arm, error)
        console.print(f"{name} / {arm}: {time.perf_counter() - start:.1f} s")

    def fail(self, stage: str, arm: str, error: Exception) -> None:
        status: Status = "timeout" if isinstance(error, TimeoutError | httpx.TimeoutException) else "error"
        console.print(f"[red]{stage} / {arm}: {status}: {error}")
        self.results.add(Record(stage=stage, arm=arm, status=status, detail=f"{type(error).__name__}: {error}"[:4000]))

    def exactness(self, variants: list[str]) -> None:
        tokenizer_of = self.tokenizer("exact")
        prompts = (33, 120) if self.dry else (40, 700, 3000)

        def work(variant: str) -> Work:
            async def run(client: BenchClient) -> None:
                for record in await exactness(client, tokenizer_of, prompts, self.sizes.labels):
                    record.workload["variant"] = variant
                    self.results.add(record)

            return run

        for variant in variants:
            backend, *options = variant.split("-")
            extra = tuple(part for option in options for part in EXACT_OPTIONS[option])
            self.serve(f"exactness-{variant}", "exact", {"rows": work(variant)}, extra=extra, attention=backend)

    def speed(self) -> None:
        tokenizer = self.tokenizer("speed")
        vocabulary, rest = len(tokenizer), (self.sizes, self.results)
        self.serve(
            "speed",
            "speed",
            {
                "prefill": lambda client: speed.prefill(client, vocabulary, *rest),
                "extend": lambda client: speed.extends(client, vocabulary, *rest),
                "select": lambda client: speed.select(client, vocabulary, *rest, stage=f"select {self.grammar}"),
                "choices": lambda client: speed.choices(client, tokenizer, *rest),
                "plain": lambda client: speed.plain(client, vocabulary, *rest, plugin=True),
            },
        )

    def llguidance(self) -> None:
        vocabulary, rest = len(self.tokenizer("speed")), (self.sizes, self.results)
        self.serve(
            "llguidance",
            "speed",
            {"select": lambda client: speed.select(client, vocabulary, *rest, stage="select llguidance")},
            grammar="llguidance",
        )

    def plain(self) -> None:
        vocabulary, rest = len(self.tokenizer("speed")), (self.sizes, self.results)
        self.serve(
            "plain",
            "speed",
            {"plain": lambda client: speed.plain(client, vocabulary, *rest, plugin=False)},
            plugin=False,
        )

    def tokenizer(self, kind: str) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.model(kind))


def summary(results: Results) -> None:
    """Print what came out."""
    table = Table("stage", "arm", "workload", "status", "p50 ms", "requests/s", "correctness")
    for record in results.records:
        workload = " ".join(f"{key}={value}" for key, value in record.workload.items() if not isinstance(value, list))
        facts = " ".join(
            f"{key}={value:.3g}" if isinstance(value, float) else f"{key}={value}"
            for key, value in record.correctness.items()
        )
        latency = f"{record.latency.p50_ms:.1f}" if record.latency else ""
        rate = f"{record.requests_per_s:.1f}" if record.requests_per_s else ""
        table.add_row(record.stage, record.arm, workload, record.status, latency, rate, facts)
    console.print(table)


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="Results, JSON lines; logs of servers lie beside them.")] = Path(
        "bench/gpu/results/run.jsonl"
    ),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Everything on a CPU, with a tiny model.")] = False,
    stages: Annotated[str, typer.Option(help="Comma-separated.")] = ",".join(STAGES),
    variants: Annotated[str, typer.Option(help="Attention backends of the exactness stage.")] = "flashinfer,"
    "flashinfer-page16-graphs,triton",
    limit_s: Annotated[float, typer.Option(help="Hard limit of each piece of work, in seconds.")] = 120.0,
    start_s: Annotated[float, typer.Option(help="Hard limit of a server's start, in seconds.")] = 240.0,
    total_s: Annotated[float, typer.Option(help="No stage starts after so many seconds.")] = 540.0,
    models: Annotated[Path | None, typer.Option(help="Folder for the generated models; kept.")] = None,
) -> None:
    """Run the stages; exit 1 if anything is wrong, timed out or failed."""
    chosen = stages.split(",")
    unknown = set(chosen) - set(STAGES)
    if unknown:
        raise typer.BadParameter(f"unknown stages {sorted(unknown)}; there are {', '.join(STAGES)}")
    start = time.perf_counter()
    results = Results(out, environment("tiny random Llama" if dry_run else "Qwen2.5-7B shape", dry_run=dry_run))
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(results, models or Path(scratch), dry=dry_run, limit_s=limit_s, start_s=start_s)
        work: dict[str, Callable[[], None]] = {
            "exactness": lambda: bench.exactness(["torch_native"] if dry_run else variants.split(",")),
            "speed": bench.speed,
            "llguidance": bench.llguidance,
            "plain": bench.plain,
        }
        try:
            for stage in chosen:
                if time.perf_counter() - start > total_s:
                    bench.fail(stage, "all", StageTimeoutError(f"not started: {total_s:.0f} s were over"))
                else:
                    work[stage]()
        finally:
            bench.close()
    summary(results)
    console.print(f"{out}: {len(results.records)} records in {time.perf_counter() - start:.0f} s")
    if any(record.status != "passed" for record in results.records):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
