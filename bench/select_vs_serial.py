"""Compiled control against everything that could replace it, on one server in one run.

    python -m bench.select_vs_serial            # about 30 minutes on two cores
    python -m bench.select_vs_serial --only 20,3,1400,cached

For each cell (k labels, n slots, prompt length, cached or fresh prompt) the arms take turns; a record holds medians,
ratios, and whether each arm chose what the serial reference chose. ``outlines`` and ``llguidance`` spell the JSON list
under a regex of every ordered choice of distinct labels where that is small enough to compile, and of repeated labels
otherwise (a regex cannot say "distinct"); their spelling is free, so their choice may differ. ``choices`` asks
``gen(choices=)`` slot by slot, the chosen label taken out; it is measured at one slot only, since it sends a whole
sequence a label.
"""

from __future__ import annotations

import random
import re
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import permutations
from math import perm
from pathlib import Path
from typing import Annotated, Any

import httpx
import sglang as sgl
import typer
from pydantic import BaseModel
from rich.console import Console
from rich.progress import Progress

from bench.common import RESULTS, Environment, append, environment, flush, json_list_regex, prefill, ready_regex
from sgl_compiled.client import Client
from sgl_compiled.model import embedded_model
from sgl_compiled.server import CPU_ARGS, SGLangServer

console = Console()
TEXT = "the model reads a long paper and picks what answers a question about data method loss result table"
WORDS = TEXT.split()
MAX_REGEX_CHOICES = 400
PLANS = ("auto", "root+probe", "chunked")
BACKENDS = ("outlines", "llguidance")


class Cell(BaseModel):
    """What is asked."""

    k_labels: int
    n_slots: int
    prompt_tokens: int
    cached: bool

    @property
    def name(self) -> str:
        """As ``--only`` takes it."""
        return f"{self.k_labels},{self.n_slots},{self.prompt_tokens},{'cached' if self.cached else 'fresh'}"


class Arm(BaseModel):
    """One way to answer it."""

    median_ms: float
    times_ms: list[float]
    same_tokens: int | None
    same_labels: int
    forwards: float


class Record(BaseModel):
    """One cell: correctness beside speed, and where it ran."""

    bench: str = "select_vs_serial"
    grammar_backend: str
    cell: Cell
    repeats: int
    arms: dict[str, Arm]
    times_faster_than: dict[str, float]
    environment: Environment


def use_tokenizer(model: Path) -> None:
    """Load the tokenizer that prompts are made with."""
    from transformers import AutoTokenizer

    global TOKENIZER
    TOKENIZER = AutoTokenizer.from_pretrained(model)


def prompt_of(tokens: int, seed: int) -> list[int]:
    """Return a prompt of so many tokens: words in random order, and the question at the end."""
    rng = random.Random(seed)
    tail = TOKENIZER.encode("\nThe best of them, most useful first, as a JSON list: ")
    body: list[int] = []
    while len(body) < tokens - len(tail):
        body += TOKENIZER.encode(" " + " ".join(rng.choices(WORDS, k=50)))
    return [*body[: tokens - len(tail)], *tail]


def regex_of(labels: list[str], n: int) -> str:
    """Return the regex of the JSON list: distinct where that is small, repeats allowed otherwise."""
    if perm(len(labels), n) <= MAX_REGEX_CHOICES:
        inner = "|".join('", "'.join(map(re.escape, chosen)) for chosen in permutations(labels, n))
        return rf'\["({inner})"\]'
    return json_list_regex(labels, n)


Answer = tuple[list[int] | None, list[str], float]
"""Token ids (if the arm has them), labels, forwards."""


def by_plan(client: Client, plan: str) -> Callable[[list[int], list[str], int], Answer]:
    def run(prompt: list[int], labels: list[str], n: int) -> Answer:
        answer = client.select_k(prompt, labels, n, plan=plan)
        return answer.token_ids, answer.labels, answer.plan.forwards

    return run


def by_regex(url: str) -> Callable[[list[int], list[str], int], Answer]:
    def run(prompt: list[int], labels: list[str], n: int) -> Answer:
        body = {
            "input_ids": prompt,
            "sampling_params": {"regex": regex_of(labels, n), "temperature": 0, "max_new_tokens": 16 * n},
        }
        response = httpx.post(url + "/generate", json=body, timeout=600, trust_env=False)
        response.raise_for_status()
        out = response.json()
        found = re.findall(r'"([^"]*)"', out["text"])
        return None, found, out["meta_info"]["completion_tokens"]

    return run


def by_choices(url: str) -> Callable[[list[int], list[str], int], Answer]:
    """``gen(choices=)``, slot by slot; it takes text, so the prompt is decoded."""

    @sgl.function  # type: ignore[untyped-decorator]
    def choose(s: Any, text: str, labels: list[str], slots: int) -> None:
        s += text + '["'
        left = list(labels)
        for slot in range(slots):
            s += sgl.gen(f"label{slot}", choices=left)
            left.remove(s[f"label{slot}"])
            s += '"]' if slot == slots - 1 else '", "'

    backend = sgl.RuntimeEndpoint(url)

    def run(prompt: list[int], labels: list[str], n: int) -> Answer:
        state = choose.run(text=TOKENIZER.decode(prompt), labels=labels, slots=n, backend=backend)
        chosen = [state[f"label{slot}"] for slot in range(n)]
        # Each slot is one request for the common prefix and one batch of a request a label.
        return None, chosen, 2 * n

    return run


def measure(
    server: SGLangServer, cell: Cell, arms: dict[str, Callable[..., Answer]], repeats: int
) -> Iterator[tuple[str, Answer, float]]:
    """Yield arm, answer and milliseconds; the arms take turns so that drift hits all of them."""
    labels = [str(i) for i in range(1, cell.k_labels + 1)]
    for repeat in range(repeats):
        for name, run in arms.items():
            # A fresh prompt must be fresh for each arm, and yet the same question for all.
            prompt = prompt_of(cell.prompt_tokens, repeat)
            # What an earlier arm chose must not lie in the cache where a plan's second pass looks; an arm of one
            # request looks no further than the prompt.
            cold = not cell.cached or name == next(iter(arms)) or name in PLANS
            if cold:
                flush(server.url)
            if cell.cached and cold:
                prefill(server.url, prompt)
            if name in BACKENDS:
                # The flush emptied the backend's own cache as well.
                ready_regex(server.url, regex_of(labels, cell.n_slots))
            start = time.perf_counter()
            answer = run(prompt, labels, cell.n_slots)
            yield name, answer, 1e3 * (time.perf_counter() - start)


def record(
    server: SGLangServer, backend: str, cell: Cell, arms: dict[str, Callable[..., Answer]], repeats: int
) -> Record:
    answers: dict[str, list[Answer]] = {name: [] for name in arms}
    times: dict[str, list[float]] = {name: [] for name in arms}
    for name, answer, ms in measure(server, cell, arms, repeats):
        answers[name].append(answer)
        times[name].append(round(ms, 2))
    reference = answers["serial"]
    found = {}
    for name in arms:
        pairs = list(zip(answers[name], reference, strict=True))
        found[name] = Arm(
            median_ms=statistics.median(times[name]),
            times_ms=times[name],
            same_tokens=None if pairs[0][0][0] is None else sum(mine[0] == ref[0] for mine, ref in pairs),
            same_labels=sum(mine[1] == ref[1] for mine, ref in pairs),
            forwards=statistics.fmean(mine[2] for mine, _ in pairs),
        )
    auto = found["auto"].median_ms
    ratios = {name: round(arm.median_ms / auto, 3) for name, arm in found.items()}
    return Record(
        grammar_backend=backend,
        cell=cell,
        repeats=repeats,
        arms=found,
        times_faster_than=ratios,
        environment=environment(server.model),
    )


def main(
    model: Annotated[Path | None, typer.Option(help="Checkpoint folder; the embedded model by default.")] = None,
    repeats: Annotated[int, typer.Option(help="Prompts a cell.")] = 3,
    only: Annotated[
        list[str] | None, typer.Option(help="Only these cells: labels, slots, prompt tokens, cached or fresh.")
    ] = None,
    out: Annotated[Path, typer.Option(help="JSONL file, appended to.")] = RESULTS / "select_vs_serial.jsonl",
) -> None:
    """Measure every arm in every cell."""
    path = model or embedded_model()
    use_tokenizer(path)
    cells = [
        Cell(k_labels=k, n_slots=n, prompt_tokens=tokens, cached=cached)
        for tokens in (350, 1_400)
        for cached in (True, False)
        for k in (4, 20)
        for n in (1, 2, 3)
    ]
    if only:
        cells = [cell for cell in cells if cell.name in only]
        if len(cells) < len(only):
            raise typer.BadParameter("--only takes labels,slots,tokens,cached or fresh, as in 20,3,1400,cached")
    for backend in BACKENDS:
        args = [*CPU_ARGS, "--grammar-backend", backend, "--max-total-tokens", "20000"]
        with SGLangServer(path, args) as server, Client(server.url) as client, Progress(console=console) as progress:
            # The fixed plans do not depend on the grammar backend; once is enough.
            plans = (*PLANS, "serial") if backend == "outlines" else ("auto", "serial")
            arms: dict[str, Callable[..., Answer]] = {plan: by_plan(client, plan) for plan in plans}
            arms[backend] = by_regex(server.url)
            # Compile every grammar and let the cost model see passes of several sizes before anything is timed.
            httpx.post(server.url + "/v1/select_k/calibrate", timeout=600, trust_env=False)
            for cell in {(cell.k_labels, cell.n_slots): cell for cell in reversed(cells)}.values():
                list(measure(server, cell, arms, 1))
            task = progress.add_task(backend, total=len(cells))
            for cell in cells:
                here = dict(arms)
                if not cell.cached:
                    # Beside the prompt's own computation fixed plans hardly differ.
                    here.pop("root+probe", None)
                if backend == "outlines" and cell.n_slots == 1 and cell.cached:
                    # A sequence a label and slot: on a CPU more than one slot takes minutes.
                    here["choices"] = by_choices(server.url)
                row = record(server, backend, cell, here, repeats)
                append(out, row)
                progress.advance(task)
                shown = ", ".join(f"{name} {arm.median_ms:.0f} ms" for name, arm in row.arms.items())
                console.print(f"k={cell.k_labels} n={cell.n_slots} {cell.prompt_tokens} cached={cell.cached}: {shown}")


TOKENIZER: Any = None

if __name__ == "__main__":
    typer.run(main)
