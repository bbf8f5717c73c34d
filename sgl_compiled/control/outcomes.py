"""From automaton states to the labels they fix: what turns token paths into choices and sets."""

from __future__ import annotations

from collections.abc import Mapping
from math import comb, perm, prod
from typing import NamedTuple

from sgl_compiled.grammar.compile import CompiledGrammar
from sgl_compiled.grammar.form import SlotForm
from sgl_compiled.grammar.slots import SlotAutomaton
from sgl_compiled.grammar.tokens import State, TokenAutomaton
from sgl_compiled.grammar.trie import TrieAutomaton

__all__ = ["Filled", "Outcomes"]


class Filled(NamedTuple):
    """Labels that every answer through a state has, in slot order, and what the next slot may still take."""

    labels: tuple[int, ...]
    among: frozenset[int] | None  # None: whatever the grammar's constraint leaves


class Outcomes:
    """The choices behind a token automaton.

    An answer without slots (a regex) counts as one slot whose labels are the answers.

    Attributes
    ----------
    n_slots, n_labels : int
    labelled : bool
        The grammar has slots.
    distinct : bool
        No label can come twice.
    any_order : bool
        Every arrangement of the labels is an answer.
    states : int
        Decision states of the whole tree, at slot level: prefixes that leave a slot two or more labels.
    """

    def __init__(self, automaton: TokenAutomaton) -> None:
        form: SlotForm | None = getattr(automaton, "form", None)
        self._slots = automaton if isinstance(automaton, SlotAutomaton) else None
        self._automaton = automaton
        self._filled: dict[State, Filled] = {}
        self.labelled = form is not None
        self.n_slots = len(form) if form is not None else 1
        if self._slots is None:
            assert isinstance(automaton, TrieAutomaton), "only slot and trie automata know their answers"
            self._trie = automaton
            self._filled = _summaries(automaton, {end: self.labels(end) for end in automaton.ends()})
        if form is not None:
            self.n_labels = max(map(len, form.slots))
            self.distinct = form.constraint in ("distinct", "increasing")
            self.any_order = form.constraint in ("distinct", "free")
        else:
            self.n_labels, self.distinct, self.any_order = len(list(self._trie.ends())), True, True
        self.states = _slot_states(form) if self._slots is not None and form else self._branching()

    @classmethod
    def of(cls, compiled: CompiledGrammar) -> Outcomes:
        """Return the choices of a compiled grammar."""
        return cls(compiled.automaton)

    def labels(self, end: State) -> tuple[int, ...]:
        """Labels of the answer that ends at an accepting state, in slot order."""
        chosen = getattr(self._automaton, "chosen", None)
        found: tuple[int, ...] | None = (self._trie.answer(end),) if chosen is None else chosen(end)
        assert found is not None
        return found

    def filled(self, state: State) -> Filled:
        """Labels fixed at ``state``, which need not be an end."""
        known = self._filled.get(state)
        if known is None:
            assert self._slots is not None
            chosen, node = state
            among = self._next(state) if node else None
            if among is not None and len(among) == 1:
                chosen, among = (*chosen, *among), None
            known = self._filled[state] = Filled(chosen, among)
        return known

    def decision_state(self, state: State) -> State:
        """Which of the states that :attr:`states` counts a decision at ``state`` belongs to."""
        return state if self._slots is None else state[0]

    def _next(self, state: State) -> frozenset[int]:
        """Labels that the slot under way can still become."""
        assert self._slots is not None
        slot, out, stack = len(state[0]), set[int](), [state]
        while stack:
            here = stack.pop()
            done = self._slots.chosen(here) if self._slots.accepts(here) else here[0]
            if done is not None and len(done) > slot:
                out.add(done[slot])
            if len(here[0]) == slot:
                stack += self._slots.step(here).values()
        return frozenset(out)

    def _branching(self) -> int:
        step, accepts = self._trie.step, self._trie.accepts
        return sum(len(step(state)) + accepts(state) > 1 for state in self._filled)


def _summaries(automaton: TrieAutomaton, ends: Mapping[State, tuple[int, ...]]) -> dict[State, Filled]:
    """Return what all answers below each node share."""
    below: dict[State, tuple[tuple[int, ...], frozenset[int]]] = {}
    order: list[int] = [automaton.start]
    for node in order:
        order += automaton.step(node).values()
    for node in reversed(order):
        parts = [below[child] for child in automaton.step(node).values()]
        if node in ends:
            parts.append((ends[node], frozenset()))
        if len(parts) == 1:
            below[node] = parts[0]
            continue
        # What the first and the last in order share, all between them share.
        low, high = min(labels for labels, _ in parts), max(labels for labels, _ in parts)
        pairs = enumerate(zip(low, high, strict=False))
        size = next((i for i, (a, b) in pairs if a != b), min(len(low), len(high)))
        following = set[int]()
        for labels, more in parts:
            following.update(more if len(labels) == size else labels[size : size + 1])
        below[node] = low[:size], frozenset(following)
    return {node: Filled(labels, following or None) for node, (labels, following) in below.items()}


def _slot_states(form: SlotForm) -> int:
    n, k = len(form), len(form.slots[0])
    if form.constraint == "distinct":
        return sum(perm(k, i) for i in range(n) if k - i > 1)
    if form.constraint == "increasing":
        return sum(comb(k - n + i - 1, i) for i in range(n)) if k > n else 0
    if form.constraint == "nondecreasing":
        return sum(comb(k - 2 + i, i) for i in range(n)) if k > 1 else 0
    return sum(prod(map(len, form.slots[:i])) for i in range(n) if len(form.slots[i]) > 1)
