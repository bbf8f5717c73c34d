"""The byte language of a slot form, determinised as a walk needs it and never unrolled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import comb, perm
from typing import NamedTuple

from sgl_compiled.grammar.form import SlotForm
from sgl_compiled.grammar.slots import masks_below

__all__ = ["SlotLanguage"]


class _Place(NamedTuple):
    """One reading of a text's end: inside literal `len(chosen)`, or inside the choice of slot `len(chosen)`."""

    chosen: tuple[int, ...]  # choice indices so far, or what the constraint remembers of them
    in_choice: bool
    at: int  # offset in the literal, or node of the slot's trie


class SlotLanguage:
    """Deterministic automaton over bytes with states numbered in the order they are met; state 0 is the start.

    One choice may be a prefix of another, or run into the next literal: a state is a set of places.
    States are shared by all orders in which the same choices were taken, and exist only once reached, so the
    116,280 answers of 4 labels out of 20 cost no more than the walk through one of them.
    """

    def __init__(self, form: SlotForm) -> None:
        self.form = form
        self._literals = [literal.encode() for literal in form.literals]
        tries = {choices: _ChoiceTrie(choices) for choices in set(form.slots)}
        self._tries = [tries[choices] for choices in form.slots]
        self._places: list[frozenset[_Place]] = []
        self._numbers: dict[frozenset[_Place], int] = {}
        self._rows: dict[int, dict[int, int]] = {}
        self._allowed: dict[tuple[int, ...], int] = {}
        self._number(self._closed([_Place((), False, 0)], remember=self._remembered))

    def row(self, state: int) -> Mapping[int, int]:
        """Next state for each byte that some answer continues with, in byte order."""
        row = self._rows.get(state)
        if row is None:
            row = {}
            for byte, places in sorted(self._moves(self._places[state]).items()):
                row[byte] = self._number(self._closed(places, remember=self._remembered))
            self._rows[state] = row
        return row

    def accepts(self, state: int) -> bool:
        """Tell whether an answer ends here."""
        return any(self._ends(place) for place in self._places[state])

    def is_finite(self) -> bool:
        """Slot forms are finite."""
        return True

    def is_empty(self) -> bool:
        """Tell whether there is no answer at all."""
        return self.form.count == 0

    def count_from(self, state: int, limit: int) -> int:
        """Count the answers that continue from `state`, stopping at `limit`; an ambiguous answer counts twice."""
        return min(limit, sum(self._count(place) for place in self._places[state]))

    def slots_filled(self, state: int) -> int:
        """Return how many slots are filled for sure: a choice that may still grow does not count."""
        return min(len(place.chosen) for place in self._places[state])

    def read(self, data: bytes) -> tuple[int, ...] | None:
        """Return the choice indices of a whole answer, None for any other text."""
        places: Iterable[_Place] = self._closed([_Place((), False, 0)], remember=lambda chosen: chosen)
        for byte in data:
            places = self._closed(self._moves(places).get(byte, ()), remember=lambda chosen: chosen)
        return next((place.chosen for place in sorted(places) if self._ends(place)), None)

    def _number(self, places: frozenset[_Place]) -> int:
        number = self._numbers.setdefault(places, len(self._places))
        if number == len(self._places):
            self._places.append(places)
        return number

    def _moves(self, places: Iterable[_Place]) -> dict[int, list[_Place]]:
        moves: dict[int, list[_Place]] = {}
        for chosen, in_choice, at in places:
            if in_choice:
                allowed, trie = self._allowed_after(chosen), self._tries[len(chosen)]
                for byte, node in trie.children[at].items():
                    if trie.below[node] & allowed:
                        moves.setdefault(byte, []).append(_Place(chosen, True, node))
            else:
                literal = self._literals[len(chosen)]
                if at < len(literal):
                    moves.setdefault(literal[at], []).append(_Place(chosen, False, at + 1))
        return moves

    def _closed(
        self, places: Iterable[_Place], *, remember: Callable[[tuple[int, ...]], tuple[int, ...]]
    ) -> frozenset[_Place]:
        """Add the places reached without a byte: from a literal's end into the slot, from a choice's end out of it."""
        found: set[_Place] = set()
        pending = list(places)
        while pending:
            place = pending.pop()
            if place in found:
                continue
            found.add(place)
            slot = len(place.chosen)
            if place.in_choice:
                end = self._tries[slot].ends.get(place.at)
                if end is not None and self._allowed_after(place.chosen) >> end & 1:
                    pending.append(_Place(remember((*place.chosen, end)), False, 0))
            elif place.at == len(self._literals[slot]) and slot < len(self._tries):
                pending.append(_Place(place.chosen, True, 0))
        return frozenset(found)

    def _remembered(self, chosen: tuple[int, ...]) -> tuple[int, ...]:
        """Reduce choices to what later slots depend on, so that states are shared."""
        if self.form.constraint == "distinct":
            return tuple(sorted(chosen))
        return (0 if self.form.constraint == "free" else chosen[-1],) * len(chosen)

    def _ends(self, place: _Place) -> bool:
        slot = len(place.chosen)
        return slot == len(self._tries) and place.at == len(self._literals[slot])

    def _allowed_after(self, chosen: tuple[int, ...]) -> int:
        mask = self._allowed.get(chosen)
        if mask is None:
            mask = self._allowed[chosen] = self.form.allowed(chosen)
        return mask

    def _count(self, place: _Place) -> int:
        """Answers that go on from one place, its epsilon successors not included (they are places of their own)."""
        slot, size = len(place.chosen), len(self._tries)
        if not place.in_choice:
            ended = place.at == len(self._literals[slot])
            return int(slot == size) if ended else self._sequences(place.chosen, -1)
        trie = self._tries[slot]
        below = trie.below[place.at]
        if place.at in trie.ends:
            below &= ~(1 << trie.ends[place.at])
        return self._sequences(place.chosen, below)

    def _sequences(self, chosen: tuple[int, ...], within: int) -> int:
        """Count the ways to fill the slots from `len(chosen)` on, the first of them with a choice in a bit mask."""
        slot, slots = len(chosen), len(self._tries)
        if slot == slots:
            return 1
        first = self._allowed_after(chosen) & within
        later = slots - slot - 1
        size = len(self.form.slots[slot])
        if self.form.constraint == "distinct":
            return first.bit_count() * perm(size - slot - 1, later)
        if self.form.constraint == "free":
            total = first.bit_count()
            for choices in self.form.slots[slot + 1 :]:
                total *= len(choices)
            return total
        total = 0
        while first:
            index = first.bit_length() - 1
            first &= ~(1 << index)
            left = size - index - (self.form.constraint == "increasing")
            total += comb(left, later) if self.form.constraint == "increasing" else comb(left + later - 1, later)
        return total


class _ChoiceTrie:
    """Byte trie of one slot's choices; `below[node]` is a bit mask of the choices that pass through the node."""

    def __init__(self, choices: tuple[str, ...]) -> None:
        self.children: list[dict[int, int]] = [{}]
        self.ends: dict[int, int] = {}
        for index, choice in enumerate(choices):
            node = 0
            for byte in choice.encode():
                child = self.children[node].setdefault(byte, len(self.children))
                if child == len(self.children):
                    self.children.append({})
                node = child
            self.ends[node] = index
        assert len(self.ends) == len(choices), "a choice is named twice"
        self.below = masks_below(self.children, self.ends, {})
