"""The tree that evaluates given prefixes in one pass."""

from __future__ import annotations

from collections.abc import Sequence

from sgl_compiled.control.evidence import Evidence
from sgl_compiled.control.node import Node, Objective, Path
from sgl_compiled.errors import GrammarTooLargeError
from sgl_compiled.grammar.layout import ROOT, DecisionRow, TreeLayout

__all__ = ["expansion"]


def expansion(
    evidence: Evidence,
    prefixes: Sequence[Path],
    *,
    max_positions: int,
    actions: int = 1,
    objective: Objective = "policy",
) -> TreeLayout:
    """Lay out the rows that are missing within ``actions`` actions behind each prefix.

    The tree hangs on the prompt and the answer's forced opening (``evidence.root.path``), and holds the tokens that
    lead to the prefixes as well. Where not all prefixes fit, the last ones are left out.

    Parameters
    ----------
    evidence : Evidence
    prefixes : sequence of token paths
        Most wanted first; states that are evaluated already, complete or out of reach cost nothing.
    max_positions : int
        Limit on the tree's size.
    actions : int
        Actions to resolve behind each prefix.
    objective : {"policy", "conditional"}
        ``"conditional"`` reads states with one legal id too: a forced token's full-vocabulary probability counts.

    Raises
    ------
    GrammarTooLargeError
        Not even the first prefix fits.
    """
    opening = len(evidence.root.path)
    wanted: dict[Path, Node] = {}
    places: set[Path] = set()
    for prefix in prefixes:
        missing = _missing(evidence, evidence.node(prefix), actions, objective)
        needed = {node.path[:end] for node in missing for end in range(opening + 1, len(node.path) + 1)}
        if len(places | needed) > max_positions:
            if wanted:
                break
            raise GrammarTooLargeError(
                f"looking one action ahead needs more than {max_positions} tree positions; use fewer labels"
            )
        places |= needed
        wanted.update((node.path, node) for node in missing)
    # Lexicographic order is depth-first order: parents first, subtrees contiguous.
    index = {path: number for number, path in enumerate(sorted(places))}
    index[evidence.root.path] = ROOT
    tokens = tuple(path[-1] for path in index if index[path] != ROOT)
    parents = tuple(index[path[:-1]] for path in index if index[path] != ROOT)
    depths = tuple(len(path) - opening - 1 for path in index if index[path] != ROOT)
    rows = tuple(DecisionRow(index[path], wanted[path].state, wanted[path].legal) for path in sorted(wanted))
    return TreeLayout(
        tokens,
        parents,
        depths,
        rows,
        {(parent, token): number for number, (parent, token) in enumerate(zip(parents, tokens, strict=True))},
        {row.node: number for number, row in enumerate(rows)},
    )


def _missing(evidence: Evidence, start: Node, actions: int, objective: Objective) -> list[Node]:
    """Nodes within the horizon that need a row and have none."""
    automaton = evidence.automaton
    last = automaton.actions(start.state) + actions
    needs = 1 if objective == "conditional" else 2
    out: list[Node] = []
    stack = [start]
    while stack:
        node = stack.pop()
        if not node.legal or (node is not start and automaton.actions(node.state) >= last):
            continue
        if node.logits is None and len(node.legal) >= needs:
            out.append(node)
        stack += [evidence.child(node, token) for token in node.following]
    return out
