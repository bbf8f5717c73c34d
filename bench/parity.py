"""The parity dial in bfloat16: how often compiled choices differ from SGLang's own decoding, and what agreement costs.

    python -m bench.parity                    # about eight minutes on two cores

A server in bfloat16 is calibrated first (``epsilon``: how far the logits of the two ways lie apart), then answers each
prompt both ways. A decision that serial decoding took otherwise should have a margin within two epsilon; the curve says
for each ``theta`` which share of the decisions is doubtful, how many answers agree, and what replaying costs.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Annotated, Any

import httpx
import matplotlib.pyplot as plt
import typer
from pydantic import BaseModel
from rich.console import Console
from rich.progress import track

from bench.common import RESULTS, Environment, append, environment
from sgl_compiled.client import Client
from sgl_compiled.control.dial import Recorded, cost_curve, parity_theta
from sgl_compiled.model import embedded_model
from sgl_compiled.server import CPU_ARGS, SGLangServer

console = Console()
LABELS = ["Introduction", "Related Work", "Method", "Method and Data", "Data", "Results", "Discussion", "Conclusion"]
TEXT = "the model reads a long paper and picks sections that answer this question about data method and loss"
WORDS = TEXT.split()


class Record(BaseModel):
    """One run: deviation, flips and the dial's curve."""

    bench: str = "parity"
    dtype: str
    answers: int
    decisions: int
    epsilon: dict[str, Any]
    answers_that_differ: int
    flip_margins: list[float]
    flips_outside_two_epsilon: int
    compiled_ms: float
    parity_theta: float
    curve: list[tuple[float, float, float, float, float]]
    environment: Environment


def main(
    model: Annotated[Path | None, typer.Option(help="Checkpoint folder; the embedded model by default.")] = None,
    dtype: Annotated[str, typer.Option(help="Of the server.")] = "bfloat16",
    answers: Annotated[int, typer.Option(help="Prompts that are answered both ways.")] = 100,
    replays: Annotated[int, typer.Option(help="Choices that the calibration replays.")] = 15,
    out: Annotated[Path, typer.Option(help="JSONL file, appended to; the plot lies beside it.")] = RESULTS
    / "parity.jsonl",
) -> None:
    """Calibrate, answer both ways, draw the curve."""
    path = model or embedded_model()
    args = list(CPU_ARGS)
    args[args.index("--dtype") + 1] = dtype
    where = environment(path.name)
    rng = random.Random(1)
    records: list[Recorded] = []
    flips: list[float] = []
    differ, compiled_ms = 0, 0.0
    server_args = [*args, "--grammar-backend", "outlines", "--max-total-tokens", "20000"]
    with SGLangServer(path, server_args) as server, Client(server.url) as client:
        found = httpx.post(
            server.url + "/v1/select_k/calibrate", params={"replays": replays}, timeout=3600, trust_env=False
        )
        epsilon = found.raise_for_status().json()["parity"]
        epsilon["setting"]["model"] = path.name
        for index in track(range(answers), "both ways", console=console):
            prompt = " ".join(rng.choices(WORDS, k=rng.choice((32, 64, 128, 256)))) + "\nSections: "
            start = time.perf_counter()
            mine = client.select_k(prompt, LABELS, 3)
            middle = time.perf_counter()
            theirs = client.select_k(prompt, LABELS, 3, plan="serial")
            compiled_ms += 1e3 * (middle - start) / answers
            replay_ms = 1e3 * (time.perf_counter() - middle)
            differ += mine.token_ids != theirs.token_ids
            for decision in mine.decisions:
                at = decision.position
                if mine.token_ids[:at] != theirs.token_ids[:at]:
                    break  # behind the first flip the two decide about different things
                flipped = mine.token_ids[at] != theirs.token_ids[at]
                records.append(Recorded(index, decision.margin, flipped, replay_ms))
                if flipped:
                    flips.append(decision.margin)
    curve = cost_curve(records)
    row = Record(
        dtype=dtype,
        answers=answers,
        decisions=len(records),
        epsilon=epsilon,
        answers_that_differ=differ,
        flip_margins=sorted(flips),
        flips_outside_two_epsilon=sum(margin > 2 * epsilon["logits"]["max"] for margin in flips),
        compiled_ms=compiled_ms,
        parity_theta=parity_theta(records),
        curve=[tuple(point) for point in curve],  # type: ignore[misc]
        environment=where,
    )
    append(out, row)
    draw(row, out.with_suffix(".png"))
    console.print(row.model_dump(exclude={"curve", "environment"}))


def draw(row: Record, path: Path) -> None:
    """Plot agreement and cost over ``theta``."""
    thetas = [point[0] for point in row.curve]
    figure, left = plt.subplots(figsize=(6, 3.5), layout="constrained")
    left.step(thetas, [point[3] for point in row.curve], where="post", label="answers that agree")
    left.step(thetas, [point[1] for point in row.curve], where="post", label="doubtful decisions", linestyle=":")
    left.axvline(row.parity_theta, color="grey", linewidth=0.8)
    left.set_xlabel("theta (margin in logits)")
    left.set_ylabel("share")
    right = left.twinx()
    right.step(thetas, [point[4] for point in row.curve], where="post", color="tab:red", label="replay, ms an answer")
    right.set_ylabel("ms an answer")
    left.set_title(f"{row.environment.model}, {row.dtype}: {row.answers} answers, {row.answers_that_differ} differ")
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    typer.run(main)
