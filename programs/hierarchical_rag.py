"""Hierarchical RAG: descend a paper's sections with ``select_k`` until a handful of them is left.

    python programs/hierarchical_rag.py                       # starts a server with the embedded 135M model
    python programs/hierarchical_rag.py --url http://127.0.0.1:30000   # uses yours

Each round shows the model the sections that are open and lets it choose some of them; those with subsections are opened
in the next round. The same choice is also made by grammar-constrained decoding on the same server, so that answers,
forward passes and times can be compared.

Output with the embedded model, which chooses about as well as chance (first round of ``--questions 1``, without times
and probabilities)::

    Round 1: 7 sections open
      1. Acknowledgments
      2. Appendices
      3. Conclusion
    way               answer                                                         forward passes
    select_k          ["Acknowledgments", "Appendices", "Conclusion"]                2 ([1,2])
    serial reference  ["Acknowledgments", "Appendices", "Conclusion"]                16
    gen(regex=...)    ["Acknowledgments", "Acknowledgments", "Acknowledgments"]      26
    the same tokens as serial decoding; 14 forward passes saved
    ...
    3 rounds, 3 the same as serial decoding; 5 forward passes instead of 42
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import sglang as sgl
import typer
from menus import unique_names
from papers import SAMPLE, Paper, Question, Section, load_papers
from rich.table import Table
from serving import console, serving

from sgl_compiled import Client, select_k


@sgl.function  # type: ignore[untyped-decorator]
def choose_sections(s: Any, prompt: str, names: list[str], k: int) -> None:
    """Choose ``k`` of the sections, as a JSON list."""
    s += prompt
    s += select_k("picked", names, k)


def write_prompt(paper: Paper, question: Question, sections: list[Section], names: list[str]) -> str:
    """Return the prompt of one round: the question, and the open sections with their first words."""
    texts = [" ".join(section.text().split()) for section in sections]
    lines = [f"{name}: {text[:160]}" for name, text in zip(names, texts, strict=True)]
    return (
        f"Paper: {paper.title}\nSections:\n- " + "\n- ".join(lines) + f"\nQuestion: {question.text}\n"
        "The sections that answer the question, most useful first, as a JSON list: "
    )


@dataclass
class Round:
    """One choice, made three ways."""

    names: list[str]
    compiled: dict[str, Any]
    compiled_s: float
    serial: Any
    serial_s: float
    regex_text: str
    regex_s: float
    regex_forwards: int


def regex_of(names: list[str], k: int) -> str:
    """Return the regex of a JSON list of ``k`` names, for token-by-token decoding (it cannot say 'distinct')."""
    one = "(?:" + "|".join(re.escape(json.dumps(name, ensure_ascii=False)) for name in names) + ")"
    return r"\[" + ", ".join([one] * k) + r"\]"


def run_round(paper: Paper, question: Question, sections: list[Section], k: int, client: Client) -> Round:
    """Choose among ``sections`` by compiled control, by its serial reference, and by a regex."""
    # Two sections may have subsections of one name; labels must differ.
    names = unique_names(section.name for section in sections)
    prompt = write_prompt(paper, question, sections, names)
    pattern = regex_of(names, k)
    backend = sgl.global_config.default_backend
    # All three find the prompt in the radix cache and their grammar compiled. Decoding looks no further than the
    # prompt, so that it does not matter to the other two what the first one chose.
    # SGLang refuses to flush while a request is being put away, and waits for that if told how long.
    httpx.post(f"{backend.base_url}/flush_cache?timeout=10", timeout=30, trust_env=False).raise_for_status()
    client.select_k(prompt, names, 1, plan="chunked")
    client.select_k("-", names, k)
    client.select_k("-", names, k, plan="serial")
    regex_decode(backend, "-", pattern, max_tokens=1)
    start = time.perf_counter()
    state = choose_sections.run(prompt=prompt, names=names, k=k)
    picked = state["picked"]
    compiled_s = time.perf_counter() - start
    meta = state.get_meta_info("picked")
    assert picked == meta["labels"]
    start = time.perf_counter()
    serial = client.select_k(prompt, names, k, plan="serial")
    serial_s = time.perf_counter() - start
    start = time.perf_counter()
    text, info = regex_decode(backend, prompt, pattern)
    return Round(
        names, meta, compiled_s, serial, serial_s, text, time.perf_counter() - start, int(info["completion_tokens"])
    )


@sgl.function  # type: ignore[untyped-decorator]
def spell(s: Any, prompt: str, regex: str, max_tokens: int) -> None:
    """Spell the choice token by token under a regex."""
    s += prompt
    s += sgl.gen("answer", regex=regex, max_tokens=max_tokens, temperature=0)


def regex_decode(backend: Any, prompt: str, regex: str, max_tokens: int = 200) -> tuple[str, dict[str, Any]]:
    """Return what ``gen(regex=...)`` writes, and its meta information."""
    state = spell.run(prompt=prompt, regex=regex, max_tokens=max_tokens, backend=backend)
    return state["answer"], state.get_meta_info("answer")


def descend(paper: Paper, question: Question, k: int, client: Client) -> Iterator[Round]:
    """Open ``k`` sections a level, until nothing below them is left to open."""
    level = paper.root.children
    while level:
        k_here = min(k, len(level))
        step = run_round(paper, question, level, k_here, client)
        yield step
        chosen = [level[index] for index in step.compiled["indices"]]
        level = [child for section in chosen for child in section.children]


def show(step: Round, number: int) -> None:
    """Print one round."""
    plan = step.compiled["plan"]
    same = step.compiled["token_ids"] == step.serial.token_ids
    console.print(f"\n[bold]Round {number}[/bold]: {len(step.names)} sections open")
    for slot, label in enumerate(step.compiled["labels"]):
        chance = 1.0
        for decision in step.compiled["decisions"]:
            if decision["slot"] == slot:
                taken = [c for c in decision["candidates"] if c["token_id"] == decision["token_id"]]
                chance *= taken[0]["probability"]
        console.print(f"  {slot + 1}. {label}  [dim](probability {chance:.3f})[/dim]")
    table = Table("way", "answer", "forward passes", "seconds")
    table.add_row("select_k", step.compiled["text"], f"{plan['forwards']} ({plan['name']})", f"{step.compiled_s:.2f}")
    table.add_row("serial reference", step.serial.text, str(step.serial.plan.forwards), f"{step.serial_s:.2f}")
    table.add_row("gen(regex=...)", step.regex_text, str(step.regex_forwards), f"{step.regex_s:.2f}")
    console.print(table)
    verdict = "[green]the same tokens as serial decoding" if same else "[red]not the same as serial decoding"
    saved = step.serial.plan.forwards - plan["forwards"]
    console.print(
        f"{verdict}[/]; {saved} forward passes saved, {step.serial_s / step.compiled_s:.1f}x faster than the serial "
        f"reference, {step.regex_s / step.compiled_s:.1f}x than gen(regex=...)"
    )


def main(
    model: Annotated[Path | None, typer.Option(help="Checkpoint folder; the embedded 135M model by default.")] = None,
    url: Annotated[str | None, typer.Option(help="A running server with the plugin, instead of starting one.")] = None,
    paper: Annotated[int, typer.Option(help="Which paper of the file.")] = 0,
    questions: Annotated[int, typer.Option(help="How many of its questions.")] = 2,
    k: Annotated[int, typer.Option(help="Sections to open a level.")] = 3,
    data: Annotated[Path, typer.Option(help="Papers in QASPER's layout.")] = SAMPLE,
) -> None:
    """Choose sections of a real paper through compiled control."""
    chosen = load_papers(data)[paper]
    rounds: list[Round] = []
    with serving(model, url) as address:
        sgl.set_default_backend(sgl.RuntimeEndpoint(address))
        with Client(address) as client:
            console.rule(f"{chosen.title}")
            for question in chosen.questions[:questions]:
                console.rule(f"[bold]{question.text}", style="dim")
                for number, step in enumerate(descend(chosen, question, k, client), start=1):
                    show(step, number)
                    rounds.append(step)
    same = sum(step.compiled["token_ids"] == step.serial.token_ids for step in rounds)
    total = sum(step.compiled_s for step in rounds)
    console.rule()
    console.print(
        f"{len(rounds)} rounds, {same} the same as serial decoding; "
        f"{sum(s.compiled['plan']['forwards'] for s in rounds)} forward passes instead of "
        f"{sum(s.serial.plan.forwards for s in rounds)}; {sum(s.serial_s for s in rounds) / total:.1f}x faster than "
        f"the serial reference, {sum(s.regex_s for s in rounds) / total:.1f}x than gen(regex=...)"
    )
    if same != len(rounds):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
