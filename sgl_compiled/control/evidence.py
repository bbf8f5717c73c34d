"""What one or several passes have evaluated of an answer tree, merged: the structure every number is read from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from sgl_compiled.control.node import Node, Path
from sgl_compiled.control.walk import Row, forced
from sgl_compiled.errors import NumericalError
from sgl_compiled.grammar.layout import ROOT, TreeLayout, legal_ids
from sgl_compiled.grammar.tokens import State, TokenAutomaton

__all__ = ["Evidence"]


class Evidence:
    """The evaluated part of one prompt's answer tree.

    Nodes are keyed by token path, since logits depend on every token before them. The root stands behind the answer's
    forced opening, which all answers share; no number below counts it.

    Parameters
    ----------
    automaton : TokenAutomaton
    stop_ids : frozenset of int
    """

    def __init__(self, automaton: TokenAutomaton, stop_ids: frozenset[int]) -> None:
        self.automaton = automaton
        self.stop_ids = stop_ids
        opening, state = forced(automaton, automaton.start)
        self.root = self._new(opening, state)
        self.rows = 0

    def _new(self, path: Path, state: State) -> Node:
        return Node(path, state, legal_ids(self.automaton, state, self.stop_ids), self.automaton.step(state))

    def child(self, node: Node, token: int) -> Node:
        """Return the node behind ``token``, evaluated or not."""
        if token not in node.children:
            node.children[token] = self._new((*node.path, token), node.following[token])
        return node.children[token]

    def node(self, path: Path) -> Node:
        """Return the node at ``path``, evaluated or not."""
        assert path[: len(self.root.path)] == self.root.path
        node = self.root
        for token in path[len(node.path) :]:
            node = self.child(node, token)
        return node

    def nodes(self) -> Iterator[Node]:
        """Every node met so far, parents first."""
        stack = [self.root]
        while stack:
            node = stack.pop()
            yield node
            stack += reversed(node.children.values())

    def greedy(self) -> tuple[list[Node], bool]:
        """Nodes on the reference policy's path, and whether it is evaluated to the end of an answer."""
        node = self.root
        path = [node]
        while node.legal:
            if node.policy is None:
                return path, False
            # On raw logits: subtracting a constant must not create or break ties.
            token = node.legal[0 if node.logits is None else int(node.logits.argmax())]
            if token not in node.following:
                break
            node = self.child(node, token)
            path.append(node)
        return path, True

    def absorb(self, layout: TreeLayout, rows: Sequence[Row], path: Path | None = None) -> int:
        """Add a pass; return how many of its rows are new.

        A row that is known already keeps its first value, so that nothing read from it earlier changes.

        Parameters
        ----------
        layout : TreeLayout
        rows : sequence of Row
            One for each of ``layout.rows``.
        path : tuple of int, optional
            Answer tokens that stood in the pass's prompt; by default the forced opening.

        Raises
        ------
        NumericalError
            A row holds NaN or no finite legal logit.
        """
        paths: dict[int, Path] = {ROOT: self.root.path if path is None else path}
        for index, (token, parent) in enumerate(zip(layout.tokens, layout.parents, strict=True)):
            paths[index] = (*paths[parent], token)
        before = self.rows
        for place, row in zip(layout.rows, rows, strict=True):
            node = self.node(paths[place.node])
            assert node.legal == place.legal and len(row.logits) == len(node.legal)
            if not np.isfinite(row.logits.max()) or np.isnan(row.lse):
                raise NumericalError("a decision row holds NaN or no finite legal logit; check the model and dtype")
            if node.logits is None:
                node.logits, node.lse = np.asarray(row.logits, dtype=np.float64), float(row.lse)
                self.rows += 1
        return self.rows - before
