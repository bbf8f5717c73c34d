"""The paper's evaluation: compiled control against everything that could stand in its place, on one server in one run.

    python -m bench.rag_eval                                # 6 questions a data set, every arm
    python -m bench.rag_eval --questions 100 --datasets qasper,musique --arms serial,compiled,chunked,paper
    python -m bench.rag_eval --nesting false                # the same under a corrupted tree

For each question all arms take turns, in an order that changes from question to question, so that drift of the machine
hits all alike. The prompt is in the radix cache, nothing that another arm chose is, and the grammar is compiled before
an arm is timed. Each answer is
appended to a JSONL file at once; started again, the script goes on where it stopped. ``bench/report.py`` makes tables
and plots of the file.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench.common import RESULTS, environment
from bench.rag.arm import Arm, Engine
from bench.rag.embedding import EmbeddingArm
from bench.rag.records import Run, Store
from bench.rag.runner import answer, console, serving
from bench.rag.selecting import PlanArm, SequentialArm, UnaryArm
from bench.rag.stock import ChoicesArm, FreeArm, LettersArm, RegexArm, SchemaArm
from bench.rag.tasks import DATASETS, Task, load_tasks

ARMS: dict[str, Callable[[], Arm]] = {
    "serial": lambda: PlanArm("serial", "serial"),
    "compiled": lambda: PlanArm("compiled", "auto"),
    "paper": lambda: PlanArm("paper", "root+probe"),
    "chunked": lambda: PlanArm("chunked", "chunked"),
    "regex": RegexArm,
    "unary": UnaryArm,
    "sequential": SequentialArm,
    "free": FreeArm,
    "capped-json": SchemaArm,
    "choices": ChoicesArm,
    "letters": LettersArm,
    "embedding-mmr": EmbeddingArm,
}


def evaluate(
    tasks: list[Task], arms: list[Arm], engine: Engine, store: Store, run: str, nesting: str, end: float
) -> int:
    """Answer what is not answered yet, until ``end`` (monotonic seconds); return how many answers are missing."""
    todo = [
        (task, arm) for task in tasks for arm in arms if (task.dataset, nesting, task.id, arm.name) not in store.done
    ]
    left = len(todo)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("answers", total=len(tasks) * len(arms), completed=len(tasks) * len(arms) - left)
        seen: Counter[str] = Counter()
        for task in tasks:
            # Within its data set every arm comes first as often as the others.
            turn = seen[task.dataset] % len(arms)
            seen[task.dataset] += 1
            for arm in arms[turn:] + arms[:turn]:
                if (task.dataset, nesting, task.id, arm.name) in store.done:
                    continue
                if time.monotonic() > end:
                    return left
                engine.flush()
                progress.update(bar, description=f"{task.dataset} {task.id[:18]} {arm.name}")
                store.add(answer(task, arm, engine, run, nesting))
                left -= 1
                progress.advance(bar)
    return left


def _chosen(text: str, known: list[str], what: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise typer.BadParameter(f"unknown {what}: {', '.join(unknown)}; known: {', '.join(known)}")
    return names


def main(
    model: Annotated[Path | None, typer.Option(help="Checkpoint folder; the embedded 135M model by default.")] = None,
    url: Annotated[str | None, typer.Option(help="A running server with the plugin, instead of starting one.")] = None,
    questions: Annotated[int, typer.Option(help="Questions a data set.")] = 6,
    datasets: Annotated[str, typer.Option(help=f"Of {', '.join(DATASETS)}.")] = "qasper,musique,metatool-10,bfcl",
    arms: Annotated[str, typer.Option(help=f"Of {', '.join(ARMS)}.")] = ",".join(ARMS),
    nesting: Annotated[str, typer.Option(help="'true', or 'false': sections hang below the wrong ones.")] = "true",
    minutes: Annotated[float, typer.Option(help="Stop after so many minutes; start again to go on.")] = 120.0,
    out: Annotated[Path, typer.Option(help="JSONL file, appended to.")] = RESULTS / "rag.jsonl",
) -> None:
    """Answer questions by every arm."""
    if nesting not in ("true", "false"):
        raise typer.BadParameter("--nesting takes 'true' or 'false'")
    tasks = load_tasks(_chosen(datasets, list(DATASETS), "data sets"), questions, nesting)
    chosen = [ARMS[name]() for name in _chosen(arms, list(ARMS), "arms")]
    with serving(model, url, tokens=40_000) as address:
        from transformers import AutoTokenizer

        served = httpx.get(address + "/get_model_info", timeout=60, trust_env=False).json()
        place = environment(served["model_path"])
        run = Run(run=place.timestamp, settings={"model": place.model}, environment=place)
        store = Store(out, run)
        engine = Engine(address, AutoTokenizer.from_pretrained(served["tokenizer_path"]))
        end = time.monotonic() + 60 * minutes
        try:
            left = evaluate(tasks, chosen, engine, store, run.run, nesting, end)
        except httpx.HTTPError as error:
            console.print(f"The server at {address} does not answer as it should ({error}); start again to go on")
            raise typer.Exit(1) from error
    console.print(f"{out}: {len(store.done)} answers" + (f"; {left} are missing, start again to go on" if left else ""))


if __name__ == "__main__":
    typer.run(main)
