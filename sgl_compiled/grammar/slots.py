"""Canonical spelling of a slot form, slot by slot, without unrolling the sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sgl_compiled.grammar.form import SlotForm

__all__ = ["SegmentTrie", "Shared", "SlotAutomaton", "SlotState", "masks_below"]

_MOST_PREFIXES = 65_536  # whose allowed choices are remembered; a server meets new ones forever

SlotState = tuple[tuple[int, ...], int]
"""Choice indices taken so far, and the node inside the current slot's segment trie."""


class Shared:
    """What the tries of one form have in common, kept once for all slots."""

    def __init__(self) -> None:
        self.places: dict[tuple[int, int], int] = {}
        self.masks: dict[int, int] = {}


@dataclass(frozen=True)
class SegmentTrie:
    """Trie over the token segments of one slot's choices.

    ``below[node]`` is a bit mask of the choices whose segment passes through ``node``. ``places[node]`` numbers the
    tokens on the way to a decision, without the scaffold that every choice shares; tries built with the same ``Shared``
    number the same tokens alike.
    """

    children: tuple[Mapping[int, int], ...]
    below: tuple[int, ...]
    ends: Mapping[int, int] = field(repr=False)
    depth: int
    places: tuple[int, ...] = field(repr=False)

    @classmethod
    def build(cls, segments: Sequence[Sequence[int]], shared: Shared | None = None) -> SegmentTrie | None:
        """Return the trie, or ``None`` if two choices share one segment."""
        children: list[dict[int, int]] = [{}]
        ends: dict[int, int] = {}
        for index, ids in enumerate(segments):
            node = 0
            for token in ids:
                following = children[node].get(token)
                if following is None:
                    following = children[node][token] = len(children)
                    children.append({})
                node = following
            if node in ends:
                return None
            ends[node] = index
        shared = shared or Shared()
        return cls(
            tuple(dict(sorted(kids.items())) if len(kids) > 1 else kids for kids in children),
            masks_below(children, ends, shared.masks),
            ends,
            max(map(len, segments)),
            _places(children, ends, shared.places),
        )

    @property
    def prefix_free(self) -> bool:
        """Whether no segment is a proper prefix of another (and none is empty)."""
        return all(not self.children[node] for node in self.ends)


# Nodes are numbered in the order in which they were reached: a child's number is larger than its parent's.
def masks_below(
    children: Sequence[Mapping[int, int]], ends: Mapping[int, int], known: dict[int, int]
) -> tuple[int, ...]:
    """Return for each node of a trie the bit mask of the choices that pass through it; `known` holds masks to share.

    Nodes between which nothing branches share one in any case, since it is as wide as the list of choices.
    """
    below = [0] * len(children)
    for node in reversed(range(len(children))):
        kids = children[node]
        if len(kids) == 1 and node not in ends:
            (child,) = kids.values()
            below[node] = below[child]
        else:
            mask = 1 << ends[node] if node in ends else 0
            for child in kids.values():
                mask |= below[child]
            below[node] = known.setdefault(mask, mask)
    return tuple(below)


def _places(
    children: Sequence[Mapping[int, int]], ends: Mapping[int, int], known: dict[tuple[int, int], int]
) -> tuple[int, ...]:
    """Return the places; nodes past the last decision, which are most of all, have none."""
    decides = [len(kids) + (node in ends) > 1 for node, kids in enumerate(children)]
    for node in reversed(range(len(children))):
        decides[node] = decides[node] or any(decides[child] for child in children[node].values())
    places = [0] * len(children)
    for node, kids in enumerate(children):
        for token, child in kids.items():
            if decides[child] and (places[node] or len(kids) > 1):
                places[child] = known.setdefault((places[node], token), len(known) + 1)
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

    def place(self, state: SlotState) -> tuple[int, int]:
        """Return the slot of a decision, and a number for the tokens before it in the label: the same in every slot."""
        chosen, node = state
        return len(chosen), self._tries[len(chosen)].places[node] if len(chosen) < len(self._tries) else 0

    def actions(self, state: SlotState) -> int:
        """Return the number of slots already filled."""
        return len(state[0])

    def _allowed_here(self, chosen: tuple[int, ...]) -> int:
        mask = self._allowed.get(chosen)
        if mask is None:
            if len(self._allowed) >= _MOST_PREFIXES:
                self._allowed.clear()
            mask = self._allowed[chosen] = self.form.allowed(chosen)
        return mask
