"""Plots of a sweep: attainment and goodput over load, one line a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

__all__ = ["plot_scenario"]

_COLOURS = {"off": "tab:gray", "cap:2": "tab:green", "cap:4": "tab:olive", "eager": "tab:red", "taper": "tab:blue"}


def plot_scenario(
    title: str,
    loads: Sequence[float],
    attainment: Mapping[str, Sequence[float]],
    path: Path,
) -> None:
    """Write a PNG with attainment and goodput of every policy over load."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
    for policy, values in attainment.items():
        style = {"label": policy, "color": _COLOURS.get(policy), "marker": "o", "markersize": 3}
        left.plot(loads, values, **style)
        right.plot(loads, [load * value for load, value in zip(loads, values, strict=True)], **style)
    left.axhline(0.95, color="black", linewidth=0.7, linestyle=":")
    left.set(xlabel="load (requests/s)", ylabel="SLO attainment", ylim=(0, 1.03), title=title)
    right.set(xlabel="load (requests/s)", ylabel="goodput (requests/s that met their SLO)")
    right.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
