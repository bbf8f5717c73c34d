"""Tables of all measurements but the evaluation, from their records only.

python -m bench.summary            # writes docs/measured.md
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from bench.common import RESULTS
from bench.sections import branches, choices
from bench.sections.markdown import Records

ROOT = Path(__file__).parents[1]
INTRODUCTION = """# Measured

Written by `python -m bench.summary` from the files in `bench/results`, and from nothing else; each section names its
file, command and environment. Times are medians in milliseconds unless the column says otherwise. What a table compares
was measured in one run. Of several records of one thing the newest counts.
"""

SECTIONS: tuple[tuple[str, str, Callable[[Records], Iterator[str]]], ...] = (
    ("select_vs_serial", "Compiled choices against everything that could replace them", choices.select_vs_serial),
    ("work_depth", "Plans", choices.work_depth),
    ("clients", "Many clients", choices.clients),
    ("pass_overhead", "What a pass costs", choices.pass_overhead),
    ("compile_speed", "Compilation", choices.compile_speed),
    ("parity", "Reduced precision", choices.parity),
    ("decision_quality", "Certified probabilities", choices.decision_quality),
    ("taper_sim", "Branch policies in simulation", branches.taper_sim),
    ("taper_overhead", "Time of a branch decision", branches.taper_overhead),
    ("taper_server", "Branch policies on a CPU server", branches.taper_server),
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
