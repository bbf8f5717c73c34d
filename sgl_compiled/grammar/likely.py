"""The tree of likely spellings: what one extend evaluates under `spelling="any"`.

Every row reads the full legal set, so the tree decides how many passes an answer takes and never which answer it is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from sgl_compiled.errors import GrammarError, GrammarTooLargeError
from sgl_compiled.grammar.bounded import BoundedSpelling
from sgl_compiled.grammar.layout import ROOT, DecisionRow, Horizon, TreeLayout, legal_ids
from sgl_compiled.grammar.limits import Limits
from sgl_compiled.grammar.spellings import SpellingAutomaton
from sgl_compiled.grammar.tokens import State

__all__ = ["DEFAULT_RULE", "TreeRule", "unfold_likely"]


@dataclass(frozen=True)
class TreeRule:
    """Which spellings the tree follows beside the canonical ones.

    Attributes
    ----------
    habits : bool
        Ids that won in the same state before.
    deviations : int
        Other legal ids on a path, each followed by the canonical spelling of the remaining bytes.
    """

    habits: bool = True
    deviations: int = 1


DEFAULT_RULE = TreeRule()


@dataclass
class _Node:
    token: int
    parent: int
    state: State
    above: int
    legal: tuple[int, ...] = ()
    kept: bool = False


def unfold_likely(
    automaton: SpellingAutomaton | BoundedSpelling,
    state: State,
    horizon: Horizon,
    *,
    stop_ids: frozenset[int],
    max_positions: int,
    limits: Limits,
    rule: TreeRule = DEFAULT_RULE,
    seconds: float | None = None,
) -> TreeLayout:
    """Return the tree to evaluate from ``state`` on.

    The likely spellings are all followed. Deviations fill what ``limits.max_deviation_positions`` leaves, those nearest
    to the start first. A winner that the tree does not follow costs one more pass. Expanding states for the first time
    takes no more than ``seconds`` of this thread's time (``limits.tree_seconds``): others wait for it.

    The tree of a language cut off after so many tokens has no natural end: it holds what is nearest to the start, up
    to ``limits.max_truncated_positions``.

    Raises
    ------
    GrammarTooLargeError
        The likely spellings of a finite language alone exceed ``max_positions``, or with more than one decision
        ``limits.max_likely_positions`` or ``max_legal_ids``.
    """
    nodes: list[_Node] = []
    root = _Node(-1, ROOT, state, 0, kept=True)
    queues: list[list[int]] = [[ROOT], *([] for _ in range(rule.deviations))]
    positions = ids = 0
    deadline = time.thread_time() + (limits.tree_seconds if seconds is None else seconds)
    for cost, queue in enumerate(queues):
        wanted = limits.max_deviation_positions if cost else limits.max_likely_positions
        room = min(max_positions, limits.max_truncated_positions if automaton.truncated else wanted)
        # The queue grows while it is read: breadth first within a cost.
        for index in queue:
            node = root if index == ROOT else nodes[index]
            late = time.thread_time() > deadline
            if (cost or (automaton.truncated and index != ROOT)) and (late or positions >= room):
                break
            if late and index != ROOT:
                raise GrammarTooLargeError("the likely spellings take too long to expand; use plan='chunked'")
            if automaton.single(node.state) or not horizon(node.state, node.above):
                continue
            try:
                legal = legal_ids(automaton, node.state, stop_ids)
            except GrammarError:
                # No token continues here: an error for the walk that gets here, not for one that does not.
                if index == ROOT:
                    raise
                continue
            following = likely = automaton.step(node.state)
            decides = len(legal) > 1
            if decides:
                path = _path(nodes, index)
                # The first decision is the least that a pass can evaluate, however much is forced before it.
                most = room if ids or automaton.truncated else max_positions
                wide = ids and ids + len(legal) > limits.max_legal_ids
                if positions + len(path) > most or wide:
                    if cost == 0 and not automaton.truncated:
                        raise GrammarTooLargeError(
                            f"the likely spellings of this pass need more than {most} tree positions or "
                            f"{limits.max_legal_ids} legal ids; use plan='chunked'"
                        )
                    if automaton.truncated:
                        # The next ones would be as wide, and looking at them takes longest.
                        break
                    continue
                for step in path:
                    nodes[step].kept = True
                positions, ids = positions + len(path), ids + len(legal)
                node.legal = legal
                likely = automaton.likely(node.state) if rule.habits else automaton.canonical(node.state)
            above = node.above + decides
            for token, target in likely.items():
                queue.append(_add(nodes, token, index, target, above))
            if decides and cost < rule.deviations:
                others = [token for token in following if token not in likely]
                for token in others[: limits.max_deviation_positions]:
                    queues[cost + 1].append(_add(nodes, token, index, following[token], above))
    return _flatten(root, nodes)


def _add(nodes: list[_Node], token: int, parent: int, state: State, above: int) -> int:
    nodes.append(_Node(token, parent, state, above))
    return len(nodes) - 1


def _path(nodes: list[_Node], index: int) -> list[int]:
    """Nodes from ``index`` up that do not count yet; a kept node's ancestors are kept."""
    path: list[int] = []
    while index != ROOT and not nodes[index].kept:
        path.append(index)
        index = nodes[index].parent
    return path


def _flatten(root: _Node, nodes: list[_Node]) -> TreeLayout:
    """Write the kept nodes depth first."""
    kept: dict[int, list[int]] = {}
    for index in sorted((i for i, node in enumerate(nodes) if node.kept), key=lambda i: -nodes[i].token):
        kept.setdefault(nodes[index].parent, []).append(index)
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    rows = [DecisionRow(ROOT, root.state, root.legal)] if root.legal else []
    children: dict[tuple[int, int], int] = {}
    stack = [(index, ROOT) for index in kept.get(ROOT, ())]
    while stack:
        index, parent = stack.pop()
        node, here = nodes[index], len(tokens)
        children[(parent, node.token)] = here
        tokens.append(node.token)
        parents.append(parent)
        depths.append(0 if parent == ROOT else depths[parent] + 1)
        if node.legal:
            rows.append(DecisionRow(here, node.state, node.legal))
        stack += [(child, here) for child in kept.get(index, ())]
    row_of = {row.node: index for index, row in enumerate(rows)}
    return TreeLayout(tuple(tokens), tuple(parents), tuple(depths), tuple(rows), children, row_of)
