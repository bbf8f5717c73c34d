"""Parts that the sections share."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

__all__ = ["Records", "latest", "place", "table"]

Records = list[dict[str, Any]]


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
        # Where the records were first written is no part of what was measured.
        options = re.sub(r"--(out|trace) \S+", "", options).strip()
        command = f"python -m bench.{script.removesuffix('.py')} {options}".rstrip()
        threads = f" ({where['omp_threads']} OpenMP thread)" if where.get("omp_threads") == 1 else ""
        yield (
            f"`{command}`, {where['timestamp'][:10]}, commit {where['commit']}, {where['model']}, {where['cpu_count']} "
            f"cores of {where['cpu']}{threads}, SGLang {versions['sglang']}, torch {versions['torch']}."
        )
        yield ""
