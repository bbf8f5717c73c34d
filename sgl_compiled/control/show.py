"""Evidence to look at: a JSON-safe tree, and its drawings for the terminal and for Graphviz."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from rich.markup import escape
from rich.tree import Tree

from sgl_compiled.control.evidence import Evidence
from sgl_compiled.control.node import Node

__all__ = ["to_dict", "to_dot", "to_tree"]


def to_dict(evidence: Evidence, spell: Callable[[int], str] = str, *, min_probability: float = 0.0) -> dict[str, Any]:
    """Return the evaluated tree as nested dictionaries.

    Every node has ``token`` (``None`` at the root and for the end of an answer), ``text``, ``evaluated``,
    ``probability`` (of the step under the policy), ``path_probability`` (from the root), ``raw_logprob`` (of the step
    over the full vocabulary, ``None`` where it was not read or is minus infinity) and ``children``.

    Parameters
    ----------
    evidence : Evidence
    spell : callable
        Token id to text.
    min_probability : float
        Branches with a smaller path probability are left out; ``omitted`` counts them at their parent.
    """

    def entry(
        token: int | None, text: str, node: Node | None, step: float, raw: float | None, path: float
    ) -> dict[str, Any]:
        out: dict[str, Any] = {
            "token": token,
            "text": text,
            "evaluated": node is None or node.policy is not None or not node.legal,
            "probability": step,
            "path_probability": path,
            "raw_logprob": raw if raw is not None and np.isfinite(raw) else None,
            "children": [],
        }
        omitted = 0
        for edge in node.edges() if node is not None else ():
            share = float(np.exp(edge.policy))
            if path * share < min_probability:
                omitted += 1
                continue
            child = None if edge.token is None or node is None else evidence.child(node, edge.token)
            label = "" if edge.token is None else spell(edge.token)
            out["children"].append(entry(edge.token, label, child, share, edge.raw, path * share))
        if omitted:
            out["omitted"] = omitted
        return out

    opening = "".join(map(spell, evidence.root.path))
    return entry(None, opening, evidence.root, 1.0, None, 1.0)


def to_tree(data: dict[str, Any]) -> Tree:
    """Draw :func:`to_dict`'s result with rich: step probability, then path probability; ``?`` is not evaluated."""

    def label(entry: dict[str, Any]) -> str:
        name = "end" if entry["token"] is None else repr(entry["text"])
        mark = "" if entry["evaluated"] else " [yellow]?[/]"
        return f"{escape(name)} [bold]{entry['probability']:.3f}[/] [dim]{entry['path_probability']:.3g}[/]{mark}"

    def grow(tree: Tree, entry: dict[str, Any]) -> None:
        for child in sorted(entry["children"], key=lambda child: -child["probability"]):
            grow(tree.add(label(child)), child)
        if entry.get("omitted"):
            tree.add(f"[dim]{entry['omitted']} less probable[/]")

    top = Tree(escape(repr(data["text"])) + ("" if data["evaluated"] else " [yellow]?[/]"))
    grow(top, data)
    return top


def to_dot(data: dict[str, Any]) -> str:
    """Write :func:`to_dict`'s result in Graphviz's language; dashed nodes are not evaluated."""
    lines = ["digraph evidence {", "  rankdir=LR;", '  node [shape=box, fontname="monospace"];']

    def quote(text: str) -> str:
        # Control characters in a label would break the line.
        safe = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
        return '"' + safe.replace("\\", "\\\\").replace('"', '\\"') + '"'

    def write(entry: dict[str, Any], name: str, top: bool) -> None:
        text = entry["text"] if top or entry["token"] is not None else "end"
        style = "" if entry["evaluated"] else ", style=dashed"
        lines.append(f"  {name} [label={quote(text)}{style}];")
        for index, child in enumerate(entry["children"]):
            below = f"{name}_{index}"
            write(child, below, False)
            lines.append(f'  {name} -> {below} [label="{child["probability"]:.3f}"];')

    write(data, "n", True)
    return "\n".join([*lines, "}"]) + "\n"
