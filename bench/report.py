"""Write ``docs/report.md`` and its plots from the JSONL files of ``bench/rag_eval.py``, and from nothing else.

python -m bench.report
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from bench.common import RESULTS
from bench.rag import plots
from bench.rag.records import Question, Run, read
from bench.rag.stats import FEWEST, RESAMPLES, SEED
from bench.rag.tables import EXACT, Difference, Group, Row, differences, groups, row, saving

DOCS = Path(__file__).parents[1] / "docs"

INTRODUCTION = """# Compiled control against its alternatives

Written by `python -m bench.report` from the result files named below, and from nothing else. A table has one row an
arm; a row is made of the lines of its file with these `dataset`, `nesting` and `arm`:

    jq -c 'select(.dataset == "qasper" and .nesting == "true" and .arm == "serial")' {example}

**What is claimed.** Fidelity (is the choice the one that serial decoding makes?) and cost. A model of 135 million
parameters chooses about as well as chance; its quality figures are here because the evaluation measures them, not
because they mean much. **Times are indicative only**: they were taken on a shared machine under the load averages
named with each run. Arms took turns question by question, so a comparison within a table is fairer than any single
figure, and with a handful of questions none is worth much. A run can be cut short; it goes on with its command.

| arm | what it is |
| --- | --- |
| `serial` | the reference: SGLang's token-by-token decoding of the same grammar in its canonical spelling |
| `compiled` | `select_k`, plan chosen by the planner (`auto`) |
| `paper` | `select_k`, root pass and then one full probe (`root+probe`) |
| `chunked` | `select_k`, one pass a label |
| `regex` | the server's `outlines` backend under a regex, any spelling; it cannot forbid repeats: they are errors |
| `unary` | the k most probable labels of the first slot |
| `sequential` | one label at a time, one a line, without JSON |
| `free` | free text, told to write exactly k names as a JSON list |
| `capped-json` | JSON schema of k strings, capped at the tokens of the longest right answer; names left to the model |
| `choices` | SGLang's `gen(choices=)` slot by slot, what was chosen taken out |
| `letters` | options lettered in the prompt, the k best letters at one position |
| `embedding-mmr` | all-MiniLM-L6-v2 with maximal marginal relevance, no LLM |

**Columns.** *errors*: protocol errors and refusals; they count as nothing found. *same sequence*: choices (rounds of a
descent) with the reference's options and labels in its order; *same set*: in any order; *questions*: all of a
question's rounds. After a round that differs an arm descends elsewhere, so its later rounds rarely agree. *median*,
*mean*: over the arm's own rounds; *saved*: time against `serial`, over the rounds that both reached. *tokens*: decoded
one by one. *passes*, *positions*: forward passes, and answer positions computed in them, a choice. AllEvidence@B: some
annotator's evidence paragraphs are each covered to at least 80 % by the first B tokens of what was chosen. In brackets:
95 % intervals from {resamples:,} resamples of whole documents (seed {seed}); fewer than {fewest} documents have none.
Before an arm was timed the prompt was in the cache, what other arms had chosen was not, and the grammar was compiled.
"""


def percent(interval: tuple[float, float, float]) -> str:
    """Format a share with its interval, if it has one."""
    if interval[1] != interval[1]:
        return f"{100 * interval[0]:.0f} %"
    return "{:.0f} % [{:.0f}, {:.0f}]".format(*(100 * value for value in interval))


def _of(pair: tuple[int, int] | None) -> str:
    return f"{pair[0]} of {pair[1]}" if pair else ""


def _number(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def table(rows: Sequence[Row]) -> Iterable[str]:
    """Yield the lines of a table."""
    qualities = list(dict.fromkeys(name for one in rows for name in one.quality))
    head = [
        "arm",
        "questions",
        "errors",
        "same sequence",
        "same set",
        "same questions",
        "median ms",
        "mean ms",
        "saved",
    ]
    head += ["tokens", "passes", "positions", *qualities]
    yield "| " + " | ".join(head) + " |"
    yield "| " + " | ".join("---" for _ in head) + " |"
    for one in rows:
        if not one.questions:
            yield f"| `{one.arm}` | skipped: {one.skipped} |" + " |" * (len(head) - 2)
            continue
        cells = [f"`{one.arm}`", str(one.questions), str(one.errors)]
        cells += [_of(one.same_rounds), _of(one.same_sets), _of(one.same_questions)]
        cells += [_number(one.median_ms), _number(one.mean_ms), percent(one.saved) if one.saved else ""]
        cells += [_number(one.output_tokens, 1), _number(one.passes, 1), _number(one.positions)]
        cells += [percent(one.quality[name]) if name in one.quality else "" for name in qualities]
        yield "| " + " | ".join(cells) + " |"


def _order(group: Group) -> list[str]:
    known = [name for name in re.findall(r"^\| `([a-z-]+)` \|", INTRODUCTION, re.MULTILINE) if name in group.arms]
    return known + [name for name in group.arms if name not in known]


def fidelity(numbered: Sequence[tuple[int, Question]], rows: dict[tuple[str, str], list[Row]]) -> Iterable[str]:
    """Yield what the exact arms promise, and every exception with its margin."""
    found: list[Difference] = differences(numbered)
    for arm in EXACT[1:]:
        pairs = [
            one.same_questions for group in rows.values() for one in group if one.arm == arm and one.same_questions
        ]
        if pairs:
            same, total = (sum(column) for column in zip(*pairs, strict=True))
            errors = sum(one.errors for group in rows.values() for one in group if one.arm == arm)
            yield f"- `{arm}`: {same} of {total} questions exactly as serial decoding; {errors} protocol errors."
    yield ""
    if not found:
        yield "No exceptions."
        return
    yield "Exceptions (the first differing round of each question):"
    yield ""
    for one in found:
        margin = "unknown" if one.mine.min_margin is None else f"{one.mine.min_margin:.2e}"
        theirs = "nothing" if one.reference is None else one.reference.text
        yield (
            f"- line {one.line}: {one.question.dataset} {one.question.question}, `{one.question.arm}`, round "
            f"{one.number + 1}: `{one.mine.text}`, serial `{theirs}`; smallest margin {margin}"
        )


def section(path: Path, images: Path) -> Iterable[str]:
    """Yield the report's lines on one result file, and draw its plots."""
    records = read(path)
    runs = [record for _, record in records if isinstance(record, Run)]
    numbered = [(line, record) for line, record in records if isinstance(record, Question)]
    yield f"## `{path.name}`"
    yield ""
    if not numbered:
        yield "No answers yet."
        yield ""
        return
    yield f"{len(numbered)} answers, lines {numbered[0][0]} to {numbered[-1][0]}. Runs:"
    yield ""
    loads = {run.run: [record.load_average for _, record in numbered if record.run == run.run] for run in runs}
    for run in runs:
        place, load = run.environment, loads[run.run]
        threads = f", {place.omp_threads} OpenMP thread(s)" if place.omp_threads else ""
        seen = f", load average {min(load):.1f} to {max(load):.1f} during it" if load else ""
        yield (
            f"- {run.run}: {place.model}, commit {place.commit}, {place.cpu} with {place.cpu_count} cores{threads}, "
            f"sglang {place.versions['sglang']}, torch {place.versions['torch']}{seen}: `{place.command}`"
        )
    yield ""
    found = {(group.dataset, group.nesting): group for group in groups(record for _, record in numbered)}
    rows = {key: [row(group, arm) for arm in _order(group)] for key, group in found.items()}
    yield "### Fidelity"
    yield ""
    yield from fidelity(numbered, rows)
    for (dataset, nesting), mine in rows.items():
        name = dataset if nesting == "true" else f"{dataset}, false nesting"
        yield ""
        yield f"### {name}"
        yield ""
        yield from table(mine)
        against = saving(found[dataset, nesting], "compiled", "chunked")
        if against is not None:
            yield ""
            yield f"`compiled` saves {percent(against)} of the time of `chunked`."
        stem = f"{path.stem}-{dataset}-{nesting}"
        drawings = {"latency": plots.latency, "agreement": plots.agreement, "work": plots.work}
        if not any(one.same_rounds for one in mine):
            yield ""
            yield "No agreement: the reference has not answered here yet."
            del drawings["agreement"]
        for kind, draw in drawings.items():
            draw(mine, f"{name} ({path.name})", images / f"{stem}-{kind}.png")
        yield ""
        yield " ".join(f"![{kind}, {name}]({images.name}/{stem}-{kind}.png)" for kind in drawings)
    yield ""


def main(
    results: Annotated[
        list[Path] | None, typer.Argument(help="JSONL files; bench/results/rag*.jsonl by default.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where to write.")] = DOCS / "report.md",
) -> None:
    """Write the report."""
    paths = results or sorted(RESULTS.glob("rag*.jsonl"))
    if not paths:
        raise typer.BadParameter("there are no results; run bench/rag_eval.py first")
    images = out.parent / "report"
    images.mkdir(parents=True, exist_ok=True)
    example = f"bench/results/{paths[0].name}"
    lines = [INTRODUCTION.format(example=example, resamples=RESAMPLES, seed=SEED, fewest=FEWEST)]
    for path in paths:
        lines += section(path, images)
    out.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    typer.echo(f"{out}: {len(paths)} result files")


if __name__ == "__main__":
    typer.run(main)
