"""Depth against width: every plan in every cell of labels, slots and prompt length, beside token-wise decoding.

    python -m bench.work_depth                  # the sweep, about 15 minutes on two cores
    python -m bench.work_depth --plots          # only draw the plots from the records

Each record holds one cell: per plan the median time, passes and positions, whether it chose what the serial reference
chose, and what ``auto`` picked. All arms of a cell take turns behind the same cached prompt and choice.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import httpx
import matplotlib
import typer
from pydantic import BaseModel
from rich.console import Console
from rich.progress import Progress

from bench.common import RESULTS, Environment, append, environment, flush, ready_regex
from bench.select_vs_serial import by_regex, prompt_of, regex_of, use_tokenizer
from sgl_compiled.client import Client
from sgl_compiled.model import embedded_model
from sgl_compiled.server import CPU_ARGS, SGLangServer

matplotlib.use("Agg")
console = Console()

PLANS: dict[int, tuple[str, ...]] = {
    2: ("chunked", "[1,1]", "[2]"),
    3: ("chunked", "[1,2]", "[2,1]", "[1,1,1]", "[1,2]~4"),
    4: ("chunked", "[2,2]", "[1,1,2]", "[1,3]~4", "[1,1,1,1]"),
}
"""Fixed plans of a cell; ``[1, n-1]`` is the paper's, with a shared tree."""


class Way(BaseModel):
    """One way to answer a cell's question."""

    median_ms: float
    times_ms: list[float]
    same_as_serial: int
    passes: float
    positions: float


class Cell(BaseModel):
    """One cell of the sweep."""

    bench: str = "work_depth"
    k_labels: int
    n_slots: int
    prompt_tokens: int
    repeats: int
    ways: dict[str, Way]
    auto_chose: list[str]
    auto_over_best_fixed: float
    environment: Environment


def run_cell(server: SGLangServer, client: Client, k: int, n: int, tokens: int, repeats: int, stock: bool) -> Cell:
    """Measure one cell."""
    labels = [str(i) for i in range(1, k + 1)]
    ways: dict[str, list[tuple[float, Any, float, float]]] = {}
    auto_chose: list[str] = []
    decode = by_regex(server.url)
    # After the serial reference the prompt and the choice are cached: every plan finds its later passes' prefix there.
    plans = ("serial", "auto", *PLANS[n])

    def timed(name: str, prompt: list[int]) -> Any:
        start = time.perf_counter()
        answer = client.select_k(prompt, labels, n, plan=name)
        ways.setdefault(name, []).append(
            (1e3 * (time.perf_counter() - start), answer.token_ids, answer.plan.forwards, answer.plan.tree_positions)
        )
        return answer

    for repeat in range(repeats + 1):
        prompt = prompt_of(tokens, seed=repeat)
        flush(server.url)
        client.select_k(prompt, labels, 1, plan="chunked")
        for plan in plans:
            answer = timed(plan, prompt)
            if plan == "auto":
                auto_chose.append(answer.plan.name)
        if stock:
            ready_regex(server.url, regex_of(labels, n))
            start = time.perf_counter()
            _, _, forwards = decode(prompt, labels, n)
            # Its spelling is free, so its tokens are no measure of agreement.
            ways.setdefault("outlines", []).append((1e3 * (time.perf_counter() - start), None, forwards, forwards))
    # The first round warms the grammar, the cost model and the allocator up.
    reference = [entry[1] for entry in ways["serial"][1:]]
    found = {}
    for name, entries in ways.items():
        kept = entries[1:]
        times = [round(entry[0], 2) for entry in kept]
        found[name] = Way(
            median_ms=statistics.median(times),
            times_ms=times,
            same_as_serial=sum(entry[1] == ref for entry, ref in zip(kept, reference, strict=True)),
            passes=statistics.fmean(entry[2] for entry in kept),
            positions=statistics.fmean(entry[3] for entry in kept),
        )
    best = min(found[plan].median_ms for plan in PLANS[n])
    return Cell(
        k_labels=k,
        n_slots=n,
        prompt_tokens=tokens,
        repeats=repeats,
        ways=found,
        auto_chose=auto_chose[1:],
        auto_over_best_fixed=round(found["auto"].median_ms / best, 3),
        environment=environment(server.model),
    )


def draw(path: Path) -> list[Path]:
    """Draw the plots from the records; return their files."""
    import matplotlib.pyplot as plt

    cells = [Cell.model_validate(json.loads(line)) for line in path.read_text().splitlines()]
    written = []
    for n in sorted({cell.n_slots for cell in cells}):
        here = [cell for cell in cells if cell.n_slots == n]
        names = sorted({name for cell in here for name in cell.ways})
        columns = [f"k={cell.k_labels}\n{cell.prompt_tokens}" for cell in here]
        ratios = [
            [cell.ways[name].median_ms / cell.ways["chunked"].median_ms if name in cell.ways else None for cell in here]
            for name in names
        ]
        figure, axis = plt.subplots(figsize=(1.2 + 0.9 * len(columns), 1 + 0.45 * len(names)))
        image = axis.imshow(
            [[value if value is not None else float("nan") for value in row] for row in ratios],
            cmap="RdYlGn_r",
            vmin=0.4,
            vmax=2.5,
            aspect="auto",
        )
        for y, row in enumerate(ratios):
            for x, value in enumerate(row):
                if value is not None:
                    axis.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=8)
        axis.set_xticks(range(len(columns)), columns, fontsize=8)
        axis.set_yticks(range(len(names)), names, fontsize=8)
        axis.set_title(f"time over chunked, n = {n} slots (labels / prompt tokens)", fontsize=9)
        figure.colorbar(image)
        figure.tight_layout()
        target = path.with_name(f"{path.stem}_n{n}.png")
        figure.savefig(target, dpi=150)
        plt.close(figure)
        written.append(target)
    figure, axis = plt.subplots(figsize=(6, 4))
    for cell in cells:
        for name, way in cell.ways.items():
            if name not in ("outlines", "serial"):
                axis.scatter(way.positions, way.passes, s=way.median_ms / 10, alpha=0.4)
    axis.set_xscale("symlog")
    axis.set_xlabel("answer tokens evaluated (width)")
    axis.set_ylabel("passes (depth)")
    axis.set_title("each circle one plan in one cell; area = median time", fontsize=9)
    figure.tight_layout()
    target = path.with_name(f"{path.stem}_depth_width.png")
    figure.savefig(target, dpi=150)
    plt.close(figure)
    return [*written, target]


def main(
    model: Annotated[Path | None, typer.Option(help="Checkpoint folder; the embedded model by default.")] = None,
    repeats: Annotated[int, typer.Option(help="Timed prompts a cell.")] = 3,
    labels: Annotated[list[int], typer.Option(help="Label counts.")] = [4, 10, 20],  # noqa: B006
    slots: Annotated[list[int], typer.Option(help="Slot counts, 2 to 4.")] = [2, 3, 4],  # noqa: B006
    prompts: Annotated[list[int], typer.Option(help="Prompt lengths in tokens.")] = [350, 1400],  # noqa: B006
    stock: Annotated[bool, typer.Option(help="Also decode under outlines' own mask.")] = True,
    plots: Annotated[bool, typer.Option("--plots", help="Only draw from the records.")] = False,
    out: Annotated[Path, typer.Option(help="JSONL file, appended to.")] = RESULTS / "work_depth.jsonl",
) -> None:
    """Measure the sweep and draw it."""
    if not plots:
        path = model or embedded_model()
        use_tokenizer(path)
        args = [*CPU_ARGS, "--grammar-backend", "outlines", "--max-total-tokens", "20000"]
        with SGLangServer(path, args) as server, Client(server.url) as client, Progress(console=console) as progress:
            found = httpx.post(server.url + "/v1/select_k/calibrate", timeout=600, trust_env=False).json()
            console.print(f"calibrated: {found}")
            cells = [(k, n, tokens) for tokens in prompts for n in slots for k in labels]
            task = progress.add_task("cells", total=len(cells))
            for k, n, tokens in cells:
                cell = run_cell(server, client, k, n, tokens, repeats, stock)
                append(out, cell)
                progress.advance(task)
                shown = ", ".join(f"{name} {way.median_ms:.0f}" for name, way in cell.ways.items())
                console.print(f"k={k} n={n} {tokens}: {shown} ms; auto chose {cell.auto_chose}")
    for target in draw(out):
        console.print(f"wrote {target.name}")


if __name__ == "__main__":
    typer.run(main)
