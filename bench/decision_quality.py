"""What certified probabilities cost and say: MuSiQue paragraphs (k=3 of 20 numbers) and QASPER section names (k=1).

    python -m bench.decision_quality                    # 20 questions a data set, with the embedded 135M model
    python -m bench.decision_quality --questions 100 --minutes 60

For each question: the certified set search against the full probe (time, decision states evaluated), interaction mass,
the unary policy's and the greedy choice against the set, and the policy against the conditional objective. Each
question is one line of JSON as soon as it is answered; started again, the script goes on where it stopped. The last
lines of a run summarise all questions of the file.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Annotated, Literal

import httpx
import typer
from menus import Option
from pydantic import BaseModel, Field
from rich.console import Console
from serving import serving

from bench.common import RESULTS, Environment, append, environment, flush
from bench.rag.tasks import Ask, load_tasks
from sgl_compiled.client import Client
from sgl_compiled.errors import ServerError, SglCompiledError
from sgl_compiled.runtime.schema import SelectResponse

__all__ = ["Question", "Summary"]

SEARCH_STATES = 400
MAP_STATES = 60
"""Decision states for the most probable answer; the conditional reads forced tokens as well, which are many."""

console = Console()


class Question(BaseModel):
    """One choice."""

    kind: Literal["question"] = "question"
    run: str
    dataset: str
    question: str
    options: int
    k: int
    certified: bool
    gap: float
    states_expanded: int
    states: int
    passes: int
    search_ms: float = Field(description="The set search (MuSiQue) or the distribution (QASPER), prompt cached.")
    full_ms: float | None = Field(default=None, description="One pass over the whole tree; null where it does not fit.")
    interaction: float | None = Field(default=None, description="I_seq in nats, from the full probe.")
    utility_loss: float | None = None
    unary_is_greedy: bool | None = Field(default=None, description="As sequences.")
    unary_is_set: bool | None = None
    greedy_is_set: bool | None = None
    conditional_differs: bool | None = Field(default=None, description="The conditional's best answer is another one.")
    total_variation: tuple[float, float] | None = Field(
        default=None, description="Between policy and conditional, bounds."
    )


class Summary(BaseModel):
    """All questions of a run and data set."""

    kind: Literal["summary"] = "summary"
    run: str
    dataset: str
    questions: int
    certified_share: float
    states_expanded_median: float
    states_median: float
    time_ratio_median: float | None = Field(description="Set search over full probe.")
    interaction_quartiles: list[float] | None
    unary_is_greedy_share: float | None
    greedy_is_set_share: float | None
    conditional_differs_share: float | None
    total_variation_median: float | None = Field(description="Of the lower bounds.")
    environment: Environment


def _musique(client: Client, ask: Ask, run: str, dataset: str, identity: str) -> Question:
    # By number: a full probe over twenty titles would not fit into one pass.
    options = tuple(
        Option(str(number), f"{option.name}: {option.text}") for number, option in enumerate(ask.menu.options, 1)
    )
    ask = replace(ask, menu=replace(ask.menu, options=options))
    prompt, names = ask.prompt(), ask.names
    client.select_k(prompt, names, ask.k, plan="chunked")  # prompt cached, grammar compiled, for both alike
    start = time.perf_counter()
    search = client.select_k(prompt, names, ask.k, decide="map_set", max_states=SEARCH_STATES)
    search_ms = 1e3 * (time.perf_counter() - start)
    record = _record(ask, run, dataset, identity, search, search_ms)
    assert search.inference is not None
    best = sorted(search.inference.sets[0].indices)
    greedy = client.select_k(prompt, names, ask.k)
    record.greedy_is_set = sorted(greedy.indices) == best
    try:
        start = time.perf_counter()
        full = client.select_k(prompt, names, ask.k, plan=f"[{ask.k}]", evidence=True)
        record.full_ms = 1e3 * (time.perf_counter() - start)
    except ServerError:
        raise
    except SglCompiledError as error:
        console.print(f"{identity}: no full probe ({error})")
    else:
        _read_full(record, full, best, greedy.indices)
    answers = [
        client.select_k(prompt, names, ask.k, decide="map", objective=objective, max_states=MAP_STATES).inference
        for objective in ("policy", "conditional")
    ]
    policy, conditional = answers
    assert policy is not None and conditional is not None and conditional.comparison is not None
    if policy.certified and conditional.certified:
        record.conditional_differs = policy.answers[0].indices != conditional.answers[0].indices
    record.total_variation = (
        conditional.comparison.total_variation.lower,
        conditional.comparison.total_variation.upper,
    )
    return record


def _read_full(record: Question, full: SelectResponse, best: list[int], greedy: list[int]) -> None:
    """Read what only the whole tree says."""
    whole = full.inference
    assert whole is not None and whole.interaction is not None
    record.interaction = whole.interaction.mass.upper
    record.utility_loss = whole.interaction.utility_loss
    record.unary_is_greedy = whole.interaction.unary == greedy
    record.unary_is_set = sorted(whole.interaction.unary) == best


def _qasper(client: Client, ask: Ask, run: str, dataset: str, identity: str) -> Question:
    prompt, names = ask.prompt(), ask.names
    client.select_k(prompt, names, 1, plan="chunked")
    start = time.perf_counter()
    found = client.select_k(prompt, names, 1, decide="map", objective="conditional", evidence=True)
    record = _record(ask, run, dataset, identity, found, 1e3 * (time.perf_counter() - start))
    record.k = 1
    assert found.inference is not None and found.inference.comparison is not None
    both = found.inference.comparison
    record.conditional_differs = both.disagree
    record.total_variation = (both.total_variation.lower, both.total_variation.upper)
    return record


def _record(ask: Ask, run: str, dataset: str, identity: str, answer: SelectResponse, ms: float) -> Question:
    assert answer.inference is not None
    found = answer.inference
    return Question(
        run=run,
        dataset=dataset,
        question=identity,
        options=len(ask.names),
        k=ask.k,
        certified=bool(found.certified),
        gap=found.gap or 0.0,
        states_expanded=found.states_expanded,
        states=found.states,
        passes=len(answer.plan.passes),
        search_ms=ms,
    )


def _lines(path: Path, kind: str) -> list[str]:
    """Records of one kind that the file holds, as they are written."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line for line in lines if f'"kind":"{kind}"' in line]


def _ask_all(url: str, questions: int, run: str, minutes: float, done: set[tuple[str, str]]) -> Iterator[Question]:
    end = time.monotonic() + 60 * minutes
    ways = {"musique": _musique, "qasper": _qasper}
    with Client(url) as client:
        for task in load_tasks(list(ways), questions, "true"):
            if time.monotonic() > end:
                return
            ask = task.ask(task.root.children)
            if len(ask.names) > 1 and (task.dataset, task.id) not in done:
                flush(url)
                yield ways[task.dataset](client, ask, run, task.dataset, task.id)


def _share(values: list[bool | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def summarise(records: list[Question], place: Environment) -> Summary:
    """Summarise the questions of one data set."""
    masses = sorted(record.interaction for record in records if record.interaction is not None)
    ratios = [record.search_ms / record.full_ms for record in records if record.full_ms]
    return Summary(
        run=records[-1].run,
        dataset=records[0].dataset,
        questions=len(records),
        certified_share=sum(record.certified for record in records) / len(records),
        states_expanded_median=median(record.states_expanded for record in records),
        states_median=median(record.states for record in records),
        time_ratio_median=median(ratios) if ratios else None,
        interaction_quartiles=[masses[(len(masses) - 1) * part // 4] for part in range(5)] if masses else None,
        unary_is_greedy_share=_share([record.unary_is_greedy for record in records]),
        greedy_is_set_share=_share([record.greedy_is_set for record in records]),
        conditional_differs_share=_share([record.conditional_differs for record in records]),
        total_variation_median=median(record.total_variation[0] for record in records if record.total_variation),
        environment=place,
    )


def main(
    model: Annotated[Path | None, typer.Option(help="Checkpoint folder; the embedded 135M model by default.")] = None,
    url: Annotated[str | None, typer.Option(help="A running server with the plugin, instead of starting one.")] = None,
    questions: Annotated[int, typer.Option(help="Questions a data set.")] = 20,
    minutes: Annotated[float, typer.Option(help="Stop asking after so many minutes.")] = 10.0,
    out: Annotated[Path, typer.Option(help="JSONL file, appended to.")] = RESULTS / "decision_quality.jsonl",
) -> None:
    """Ask, record and summarise."""
    with serving(model, url) as address:
        served = httpx.get(address + "/get_model_info", timeout=60, trust_env=False).json()
        place = environment(served["model_path"])
        # Only summaries name their model.
        summaries = map(Summary.model_validate_json, _lines(out, "summary"))
        if others := {summary.environment.model for summary in summaries} - {place.model}:
            raise typer.BadParameter(f"{out} holds answers of {', '.join(others)}; give {place.model} another --out")
        records = [Question.model_validate_json(line) for line in _lines(out, "question")]
        done = {(record.dataset, record.question) for record in records}
        for record in _ask_all(address, questions, place.timestamp, minutes, done):
            append(out, record)
            records.append(record)
            console.print(f"{record.dataset} {record.question}: {record.states_expanded} of {record.states} states")
    for dataset in ("musique", "qasper"):
        mine = [record for record in records if record.dataset == dataset]
        if mine:
            summary = summarise(mine, place)
            append(out, summary)
            console.print(summary.model_dump(exclude={"environment", "run", "kind"}))


if __name__ == "__main__":
    typer.run(main)
