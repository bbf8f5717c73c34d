"""Plots of the report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import log10
from pathlib import Path

import matplotlib

from bench.rag.tables import Row

matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402

__all__ = ["agreement", "latency", "work"]


def latency(rows: Sequence[Row], title: str, path: Path) -> None:
    """Median and mean milliseconds a choice, one bar pair an arm."""
    rows = [row for row in rows if row.median_ms is not None]
    figure, axes = plt.subplots(figsize=(8, 0.45 * len(rows) + 1.2), layout="constrained")
    places = range(len(rows))
    axes.barh([place - 0.2 for place in places], [row.median_ms or 0 for row in rows], height=0.4, label="median")
    axes.barh([place + 0.2 for place in places], [row.mean_ms or 0 for row in rows], height=0.4, label="mean")
    axes.set_yticks(list(places), [row.arm for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds a choice, prompt in the cache")
    axes.set_title(title)
    axes.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def agreement(rows: Sequence[Row], title: str, path: Path) -> None:
    """Share of rounds with the serial reference's sequence, and with its set."""
    rows = [row for row in rows if row.same_rounds and row.same_sets]
    figure, axes = plt.subplots(figsize=(8, 0.45 * len(rows) + 1.2), layout="constrained")
    places = range(len(rows))
    for offset, label, pairs in (
        (-0.2, "same sequence", [row.same_rounds for row in rows]),
        (0.2, "same set", [row.same_sets for row in rows]),
    ):
        shares = [100 * pair[0] / pair[1] for pair in pairs if pair]
        axes.barh([place + offset for place in places], shares, height=0.4, label=label)
    axes.set_yticks(list(places), [row.arm for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("per cent of choices as the serial reference's")
    axes.set_title(title)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def work(rows: Sequence[Row], title: str, path: Path) -> None:
    """Forward passes against answer positions, the two things that a plan trades."""
    rows = [row for row in rows if row.passes and row.positions]
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    # Arms that (nearly) meet share a label.
    places: dict[tuple[float, float], list[Row]] = defaultdict(list)
    for row in rows:
        places[round(10 * log10(row.passes or 1)), round(10 * log10(row.positions or 1))].append(row)
    for together in places.values():
        x, y = together[0].passes or 1, together[0].positions or 1
        axes.scatter([row.passes or 1 for row in together], [row.positions or 1 for row in together], s=40)
        names = ", ".join(row.arm for row in together)
        axes.annotate(names, (x, y), xytext=(5, 5), textcoords="offset points", annotation_clip=False)
    axes.margins(0.2)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("forward passes a choice")
    axes.set_ylabel("answer positions a choice")
    axes.set_title(title)
    figure.savefig(path, dpi=110)
    plt.close(figure)
