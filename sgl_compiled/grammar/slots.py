"""Canonical spelling of a slot form, slot by slot, without unrolling the sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sgl_compiled.grammar.form import SlotForm

__all__ = ["SegmentTrie", "SlotAutomaton", "SlotState"]

SlotState = tuple[tuple[int, ...], int]
"""Choice indices taken so far, and the node inside the current slot's segment trie."""


@dataclass(frozen=True)
class SegmentTrie:
    """Trie over the token segments of one slot's choices.

    ``below[node]`` is a bit mask of the choices whose segment passes through ``node``.
    """

    children: tuple[Mapping[int, int], ...]
    below: tuple[int, ...]
    ends: Mapping[int, int] = field(repr=False)
    depth: int
    places: tuple[tuple[int, ...], ...] = field(repr=False)

    @classmethod
    def build(cls, segments: Sequence[Sequence[int]]) -> SegmentTrie | None:
        """Return the trie, or ``None`` if two choices share one segment."""
        children: list[dict[int, int]] = [{}]
        below = [0]
        ends: dict[int, int] = {}
        for index, ids in enumerate(segments):
            node = 0
            below[0] |= 1 << index
            for token in ids:
                following = children[node].get(token)
                if following is None:
                    following = children[node][token] = len(children)
                    children.append({})
                    below.append(0)
                node = following
                below[node] |= 1 << index
            if node in ends:
                return None
            ends[node] = index
        depth = max(map(len, segments))
        return cls(tuple(dict(sorted(kids.items())) for kids in children), tuple(below), ends, depth, _places(children))

    @property
    def prefix_free(self) -> bool:
        """Whether no segment is a proper prefix of another (and none is empty)."""
        return all(not self.children[node] for node in self.ends)


def _places(children: Sequence[Mapping[int, int]]) -> tuple[tuple[int, ...], ...]:
    """Tokens on the way to each node, without the scaffold that every choice shares."""
    places: list[tuple[int, ...]] = [()] * len(children)
    for node, kids in enumerate(children):
        for token, child in kids.items():
            # Nodes are numbered in the order in which they were reached, so a parent's place is known.
            places[child] = () if not places[node] and len(kids) == 1 else (*places[node], token)
    return tuple(places)


class SlotAutomaton:
    """Token automaton of a factorised slot form; its states know which choices were taken."""

    def __init__(self, form: SlotForm, tries: Sequence[SegmentTrie]) -> None:
        assert len(tries) == len(form)
        assert all(trie.prefix_free for trie in tries[:-1])
        self.form = form
        self._tries = tuple(tries)
        self._allowed: dict[tuple[int, ...], int] = {}
        self.max_tokens = sum(trie.depth for trie in self._tries)

    start: SlotState = ((), 0)

    def step(self, state: SlotState) -> Mapping[int, SlotState]:
        """See :class:`~sgl_compiled.grammar.tokens.TokenAutomaton`."""
        chosen, node = state
        if len(chosen) == len(self._tries):
            return {}
        trie = self._tries[len(chosen)]
        allowed = self._allowed_here(chosen)
        out: dict[int, SlotState] = {}
        for token, child in trie.children[node].items():
            if trie.below[child] & allowed:
                # A segment that nothing continues resolves the action at once.
                end = trie.ends.get(child)
                done = end is not None and not trie.children[child]
                out[token] = ((*chosen, end), 0) if done and end is not None else (chosen, child)
        return out

    def accepts(self, state: SlotState) -> bool:
        """See :class:`~sgl_compiled.grammar.tokens.TokenAutomaton`."""
        return self.chosen(state) is not None

    def chosen(self, state: SlotState) -> tuple[int, ...] | None:
        """Choice indices of the answer that ends at ``state``, or ``None``."""
        chosen, node = state
        slots = len(self._tries)
        if len(chosen) == slots:
            return chosen
        if len(chosen) == slots - 1:
            end = self._tries[-1].ends.get(node)
            if end is not None and self._allowed_here(chosen) >> end & 1:
                return (*chosen, end)
        return None

    def behind(self, state: SlotState) -> list[int]:
        """Return how many choices of the slot lie behind each id of :meth:`step`."""
        chosen, node = state
        if len(chosen) == len(self._tries):
            return []
        trie, allowed = self._tries[len(chosen)], self._allowed_here(chosen)
        counts = ((trie.below[child] & allowed).bit_count() for child in trie.children[node].values())
        return [count for count in counts if count]

    def place(self, state: SlotState) -> tuple[int, tuple[int, ...]]:
        """Return the slot, and the tokens of the label begun in it."""
        chosen, node = state
        return len(chosen), self._tries[len(chosen)].places[node] if len(chosen) < len(self._tries) else ()

    def actions(self, state: SlotState) -> int:
        """Return the number of slots already filled."""
        return len(state[0])

    def _allowed_here(self, chosen: tuple[int, ...]) -> int:
        mask = self._allowed.get(chosen)
        if mask is None:
            mask = self._allowed[chosen] = self.form.allowed(chosen)
        return mask
