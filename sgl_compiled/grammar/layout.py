"""Unfold part of a token automaton into the flat tree that one extend evaluates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from sgl_compiled.errors import GrammarTooLargeError
from sgl_compiled.grammar.tokens import State, TokenAutomaton

__all__ = ["DecisionRow", "Horizon", "Keep", "TreeLayout", "actions_ahead", "decisions_ahead", "legal_ids", "unfold"]

ROOT = -1
"""Parent of a tree token that hangs on the last prompt token; also that token's own node number."""

Horizon = Callable[[State, int], bool]
"""Whether a decision at ``state``, with so many decisions above it in the tree, is to be resolved by this pass."""

Keep = Callable[[State, Mapping[int, State]], Mapping[int, State]]
"""Which children of a decision the tree follows; the others can still win and then cost one more pass."""


@dataclass(frozen=True)
class DecisionRow:
    """One row of logits that decides.

    Attributes
    ----------
    node : int
        Tree position whose output is read; -1 is the last prompt token.
    state : State
        Automaton state in which the decision is taken.
    legal : tuple of int
        Legal token ids, ascending; stop ids included where the answer may end.
    """

    node: int
    state: State
    legal: tuple[int, ...]


@dataclass(frozen=True)
class TreeLayout:
    """A tree of tokens in depth-first order: parents stand before their children, subtrees are contiguous.

    Attributes
    ----------
    tokens, parents, depths : tuple of int, length n_positions
        Token id, index of the parent (-1: the prompt) and distance from the prompt (0 for a child of the prompt, so
        that the token's position is prompt length + depth).
    rows : tuple of DecisionRow
        In the order of their nodes.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    depths: tuple[int, ...]
    rows: tuple[DecisionRow, ...]
    _children: Mapping[tuple[int, int], int] = field(repr=False, compare=False)
    _row_of: Mapping[int, int] = field(repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.tokens)

    def child(self, node: int, token: int) -> int | None:
        """Return the position of ``token`` under ``node``, or ``None`` if the tree does not follow it."""
        return self._children.get((node, token))

    def row_at(self, node: int) -> int | None:
        """Return the index of the decision row read at ``node``, or ``None``."""
        return self._row_of.get(node)

    def check_integrity(self) -> None:
        """Assert the order that attention kernels rely on."""
        assert len(self.tokens) == len(self.parents) == len(self.depths)
        for index, (parent, depth) in enumerate(zip(self.parents, self.depths, strict=True)):
            assert ROOT <= parent < index
            assert depth == (0 if parent == ROOT else self.depths[parent] + 1)
        assert all(ROOT <= row.node < len(self.tokens) and row.legal for row in self.rows)


def actions_ahead(automaton: TokenAutomaton, state: State, actions: int) -> Horizon:
    """Resolve every decision of the next ``actions`` actions: a pass of lookahead ``actions - 1``."""
    last = automaton.actions(state) + actions
    return lambda at, _: automaton.actions(at) < last


def decisions_ahead(decisions: int) -> Horizon:
    """Resolve so many decisions along every path; 1 is the chunked engine's pass, which has no width."""
    return lambda _, above: above < decisions


def unfold(
    automaton: TokenAutomaton,
    state: State,
    horizon: Horizon,
    *,
    stop_ids: frozenset[int],
    max_positions: int,
    keep: Keep | None = None,
) -> TreeLayout:
    """Lay out everything that the decisions within ``horizon`` need, and nothing else.

    Forced spans carry no row, and no token after the last decision of a path is evaluated.

    Parameters
    ----------
    automaton, state
        Where the tree starts: the state after the tokens that are already part of the prompt.
    horizon : callable
        From :func:`actions_ahead` or :func:`decisions_ahead`.
    stop_ids : frozenset of int
        Legal beside the children wherever the automaton accepts.
    max_positions : int
        Limit on the tree's size.
    keep : callable, optional
        Narrowing: the children to follow at a decision.

    Raises
    ------
    GrammarTooLargeError
        If the tree would exceed ``max_positions``.
    """
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    rows: list[DecisionRow] = []
    children: dict[tuple[int, int], int] = {}
    # Frames: (node, number of rows before it, iterator over the children left to visit, decisions above them).
    stack = [_enter(automaton, state, ROOT, 0, horizon, stop_ids, rows, keep)]
    while stack:
        node, rows_before, pending, above = stack[-1]
        step = next(pending, None)
        if step is None:
            stack.pop()
            if node >= 0 and len(rows) == rows_before:
                # Nothing below decides: the token, last in the arrays by construction, is not needed.
                del children[(parents[node], tokens[node])]
                del tokens[node:], parents[node:], depths[node:]
            continue
        token, following = step
        index = len(tokens)
        if index >= max_positions:
            raise GrammarTooLargeError(
                f"this pass needs more than {max_positions} tree positions; use fewer labels, or plan='chunked'"
            )
        children[(node, token)] = index
        tokens.append(token)
        parents.append(node)
        depths.append(0 if node == ROOT else depths[node] + 1)
        stack.append(_enter(automaton, following, index, above, horizon, stop_ids, rows, keep))
    return TreeLayout(
        tuple(tokens),
        tuple(parents),
        tuple(depths),
        tuple(rows),
        children,
        {row.node: index for index, row in enumerate(rows)},
    )


def _enter(
    automaton: TokenAutomaton,
    state: State,
    node: int,
    above: int,
    horizon: Horizon,
    stop_ids: frozenset[int],
    rows: list[DecisionRow],
    keep: Keep | None,
) -> tuple[int, int, Iterator[tuple[int, State]], int]:
    """Record the decision at ``state`` if there is one, and return its frame."""
    before = len(rows)
    if not horizon(state, above):
        return node, before, iter(()), above
    following = automaton.step(state)
    legal = legal_ids(automaton, state, stop_ids)
    if len(legal) > 1:
        rows.append(DecisionRow(node, state, legal))
        above += 1
        if keep is not None:
            following = keep(state, following)
    return node, before, iter(following.items()), above


def legal_ids(automaton: TokenAutomaton, state: State, stop_ids: frozenset[int]) -> tuple[int, ...]:
    """Legal ids at ``state`` in ascending order; an answer that is complete leaves only the stop ids."""
    following = automaton.step(state)
    if following and automaton.accepts(state):
        return tuple(sorted({*following, *stop_ids}))
    return tuple(following) if following else ()
