"""Canonical spelling of an enumerated language: a trie over whole encoded answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sgl_compiled.errors import GrammarError

__all__ = ["TrieAutomaton"]


class TrieAutomaton:
    """Token automaton whose states are the nodes of an explicit trie.

    Parameters
    ----------
    answers : sequence of token id sequences
        One a string of the language, in the language's order.
    """

    start = 0

    def __init__(self, answers: Sequence[Sequence[int]]) -> None:
        children: list[dict[int, int]] = [{}]
        ends: dict[int, int] = {}
        for index, ids in enumerate(answers):
            node = 0
            for token in ids:
                following = children[node].get(token)
                if following is None:
                    following = children[node][token] = len(children)
                    children.append({})
                node = following
            if node in ends:
                raise GrammarError("the tokenizer spells two different answers with the same tokens; use other labels")
            ends[node] = index
        self._children = [dict(sorted(kids.items())) if len(kids) > 1 else kids for kids in children]
        self._ends = ends
        self.max_tokens = max(map(len, answers))
        self._actions = [0] * len(children)
        for node, kids in enumerate(self._children):
            branching = len(kids) + (node in ends) > 1
            for child in kids.values():
                self._actions[child] = self._actions[node] + branching
        self._answers = [int(node in ends) for node in range(len(children))]
        for node in reversed(range(len(children))):
            # A child's number is larger than its parent's.
            self._answers[node] += sum(self._answers[child] for child in self._children[node].values())

    def step(self, state: int) -> Mapping[int, int]:
        """See :class:`~sgl_compiled.grammar.tokens.TokenAutomaton`."""
        return self._children[state]

    def behind(self, state: int) -> list[int]:
        """Return how many answers lie behind each id of :meth:`step`."""
        return [self._answers[child] for child in self._children[state].values()]

    def accepts(self, state: int) -> bool:
        """See :class:`~sgl_compiled.grammar.tokens.TokenAutomaton`."""
        return state in self._ends

    def actions(self, state: int) -> int:
        """See :class:`~sgl_compiled.grammar.tokens.TokenAutomaton`; an answer without slots has decisions instead."""
        return self._actions[state]

    def ends(self) -> Iterable[int]:
        """Return the accepting states."""
        return self._ends

    def answer(self, state: int) -> int:
        """Index of the answer that ends at an accepting state."""
        return self._ends[state]
