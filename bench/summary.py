"""Tables of all measurements but the evaluation and the simulation, from their records only.

python -m bench.summary            # writes docs/measured.md
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.common import RESULTS

Records = list[dict[str, Any]]
ROOT = Path(__file__).parents[1]
INTRODUCTION = """# Measured

Written by `python -m bench.summary` from the files in `bench/results`, and from nothing else; each section names its
file, command and environment. Times are medians in milliseconds unless the column says otherwise. What a table compares
was measured in one run. Of several records of one thing the newest counts.
"""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    names = list(head)
    yield "| " + " | ".join(names) + " |"
    yield "|" + " --- |" * len(names)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
    yield ""


def latest(records: Records, key: Callable[[dict[str, Any]], Hashable]) -> Records:
    """Return the newest record of each key, in the order in which the keys came first."""
    return list({key(record): record for record in records}.values())


def place(records: Records) -> Iterator[str]:
    """Yield where records were made."""
    for where in latest(
        [record["environment"] for record in records], lambda where: (where["commit"], where["command"])
    ):
        script, _, options = where["command"].partition(" ")
        versions = where["versions"]
        command = f"python -m bench.{script.removesuffix('.py')} {options}".rstrip()
        yield (
            f"`{command}`, {where['timestamp'][:10]}, commit {where['commit']}, {where['model']}, {where['cpu_count']} "
            f"cores of {where['cpu']}, SGLang {versions['sglang']}, torch {versions['torch']}."
        )
        yield ""


def select_vs_serial(records: Records) -> Iterator[str]:
    """Every cell: times, and how much slower than ``auto`` the others are."""
    records = latest(records, lambda record: (record["grammar_backend"], *record["cell"].values()))
    yield from place(records)
    yield (
        "In brackets: how many times the median of `auto`. Same: answers with the serial reference's tokens. The arms "
        "took turns. Stock decoding spells freely, and its regex forbids repeats where there are up to 400 answers."
    )
    yield ""
    for backend in dict.fromkeys(record["grammar_backend"] for record in records):
        mine = [record for record in records if record["grammar_backend"] == backend]
        arms = list(dict.fromkeys(name for record in mine for name in record["arms"]))
        yield f"Grammar backend `{backend}`:"
        yield ""
        rows = []
        for record in mine:
            cell, found = record["cell"], record["arms"]
            kind = "cached" if cell["cached"] else "fresh"
            exact = [arm for arm in found.values() if arm["same_tokens"] is not None]
            same = min(arm["same_tokens"] for arm in exact)
            times = [
                f"{found[name]['median_ms']:.0f} ({record['times_faster_than'][name]:.1f})" if name in found else ""
                for name in arms
            ]
            rows.append(
                [f"{cell['k_labels']}", f"{cell['n_slots']}", f"{cell['prompt_tokens']} {kind}"]
                + [f"{found['auto']['median_ms']:.0f}", *times[1:], f"{same} of {record['repeats']}"]
            )
        yield from table(["labels", "slots", "prompt", *arms, "same"], rows)


def work_depth(records: Records) -> Iterator[str]:
    """``auto`` beside the best fixed plan, chunked and token-wise decoding."""
    records = latest(records, lambda record: (record["k_labels"], record["n_slots"], record["prompt_tokens"]))
    yield from place(records)
    rows = []
    for record in records:
        ways = record["ways"]
        fixed = {name: way for name, way in ways.items() if name not in ("auto", "serial", "outlines")}
        best = min(fixed, key=lambda name: fixed[name]["median_ms"])
        auto = ways["auto"]["median_ms"]
        stock = f"{ways['outlines']['median_ms'] / auto:.1f}" if "outlines" in ways else ""
        same = min(way["same_as_serial"] for name, way in ways.items() if name != "outlines")
        rows.append(
            [
                str(record["k_labels"]),
                str(record["n_slots"]),
                str(record["prompt_tokens"]),
                f"{auto:.0f}",
                ", ".join(dict.fromkeys(record["auto_chose"])),
                f"{best} {fixed[best]['median_ms']:.0f}",
                f"{record['auto_over_best_fixed']:.2f}",
                f"{auto / ways['chunked']['median_ms']:.2f}",
                f"{ways['serial']['median_ms'] / auto:.1f}",
                stock,
                f"{same} of {record['repeats']}",
            ]
        )
    near = sum(record["auto_over_best_fixed"] <= 1.1 for record in records)
    yield f"`auto` is within 10 % of the best fixed plan in {near} of {len(records)} cells."
    yield ""
    yield from table(
        ["labels", "slots", "prompt", "auto", "chose", "best fixed", "auto / best", "auto / chunked"]
        + ["serial / auto", "outlines / auto", "same"],
        rows,
    )


def clients(records: Records) -> Iterator[str]:
    """Many clients at once."""
    for record in latest(records, lambda record: (record["clients"], record["prompt_tokens"])):
        yield from place([record])
        yield (
            f"{record['clients']} clients, {record['decisions']} choices of {record['n_slots']} of "
            f"{record['k_labels']} labels, prompts of {record['prompt_tokens']} tokens:"
        )
        yield ""
        rows = [
            [
                f"`{name}`",
                f"{way['decisions_per_s']:.2f}",
                f"{way['p50_ms']:.0f}",
                f"{way['p95_ms']:.0f}",
                "" if way["same_as_serial"] is None else str(way["same_as_serial"]),
            ]
            for name, way in record["ways"].items()
        ]
        yield from table(["way", "choices a second", "p50 ms", "p95 ms", "same as serial"], rows)


def compile_speed(records: Records) -> Iterator[str]:
    """Grammars to their first mask."""
    records = latest(records, lambda record: (record["grammar"], record["engine"]))
    yield from place(records)
    engines = list(dict.fromkeys(record["engine"] for record in records))
    rows = []
    for grammar in dict.fromkeys(record["grammar"] for record in records):
        row = [grammar]
        for engine in engines:
            record = next(r for r in records if (r["grammar"], r["engine"]) == (grammar, engine))
            row.append(f"{record['median_ms']:,.1f}" if record["median_ms"] is not None else str(record["refused"]))
        rows.append(row)
    yield from table(["grammar", *engines], rows)


def pass_overhead(records: Records) -> Iterator[str]:
    """What a pass costs beside its forward."""
    records = records[-1:]
    yield from place(records)
    rows = [
        [f"{r['pass_ms']:.1f}", f"{r['between_ms']:.2f}", f"{r['fixed_ms']:.1f}", f"{r['decoded_token_ms']:.1f}"]
        + [f"{r['same_as_serial']} of {r['answers']}"]
        for r in records
    ]
    yield from table(["ms a pass", "of it between passes", "ms a request", "ms a decoded token", "same"], rows)


def parity(records: Records) -> Iterator[str]:
    """How far reduced precision takes compiled choices from serial ones."""
    for record in latest(records, lambda record: record["dtype"]):
        yield from place([record])
        logits = record["epsilon"]["logits"]
        yield (
            f"{record['dtype']}: {record['answers_that_differ']} of {record['answers']} answers differ "
            f"({len(record['flip_margins'])} first flips among {record['decisions']} decisions, "
            f"{record['flips_outside_two_epsilon']} of them outside 2 epsilon). Deviation of the legal "
            f"log-probabilities: mean {logits['mean']:.2g}, p95 {logits['p95']:.2g}, p99 {logits['p99']:.2g}, largest "
            f"{logits['max']:.2g}. From theta = {record['parity_theta']:.3g} on all answers agree."
        )
        yield ""
        step = max(1, len(record["curve"]) // 12)
        rows = [
            [f"{theta:.3f}", f"{gated:.0%}", f"{replayed:.0%}", f"{agree:.0%}", f"{cost:.0f}"]
            for theta, gated, replayed, agree, cost in record["curve"][::step]
        ]
        yield from table(["theta", "doubtful decisions", "replayed answers", "agreement", "replay, ms an answer"], rows)


SECTIONS: tuple[tuple[str, str, Callable[[Records], Iterator[str]]], ...] = (
    ("select_vs_serial", "Compiled choices against everything that could replace them", select_vs_serial),
    ("work_depth", "Plans", work_depth),
    ("clients", "Many clients", clients),
    ("pass_overhead", "What a pass costs", pass_overhead),
    ("compile_speed", "Compilation", compile_speed),
    ("parity", "Reduced precision", parity),
)


def main(
    out: Annotated[Path, typer.Option(help="Markdown file.")] = ROOT / "docs" / "measured.md",
) -> None:
    """Write the tables of the records that are there."""
    lines = [INTRODUCTION]
    for name, title, write in SECTIONS:
        path = RESULTS / f"{name}.jsonl"
        if path.exists():
            records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
            lines += [f"## {title}", "", f"`bench/results/{path.name}`", "", *write(records)]
    out.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    typer.echo(f"wrote {out.relative_to(ROOT)}")


if __name__ == "__main__":
    typer.run(main)
