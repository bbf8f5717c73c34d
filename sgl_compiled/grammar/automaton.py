"""Trimmed deterministic automata over bytes: the form every language takes before tokens come in."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from sgl_compiled.errors import GrammarError, GrammarTooLargeError

__all__ = ["ByteAutomaton", "ByteLanguage"]


class ByteLanguage(Protocol):
    """A deterministic automaton over bytes, possibly expanded as it is asked; state 0 is the start.

    Every state leads to acceptance.
    """

    def row(self, state: int) -> Mapping[int, int]:
        """Return the next state for each byte that continues, in byte order."""
        ...

    def accepts(self, state: int) -> bool:
        """Tell whether a string of the language ends at `state`."""
        ...

    def is_empty(self) -> bool:
        """Tell whether the language holds no string at all."""
        ...

    def count_from(self, state: int, limit: int) -> int:
        """Count the strings that lead from `state` to acceptance, stopping at `limit`."""
        ...

    def slots_filled(self, state: int) -> int:
        """Return how many slots of an action are filled for sure at `state`."""
        ...


@dataclass(frozen=True, eq=False)
class ByteAutomaton:
    """A deterministic automaton over bytes whose states all lead to acceptance.

    The start state is 0. Only the empty language has a state that cannot accept: its lone start state.
    Automata are compared by identity; build them through `from_strings`, `trimmed` or `compile_regex`.

    Attributes
    ----------
    transitions
        One mapping a state, from byte (0..255) to the next state, in byte order.
    accepting
        States at which a string of the language ends.
    """

    transitions: tuple[Mapping[int, int], ...]
    accepting: frozenset[int]

    @classmethod
    def trimmed(cls, transitions: Sequence[Mapping[int, int]], accepting: Iterable[int]) -> ByteAutomaton:
        """Drop states that are unreachable or cannot accept, and number the rest breadth first in byte order."""
        live = _co_reachable(transitions, accepting)
        if 0 not in live:
            return cls(({},), frozenset())
        number = {0: 0}
        order = [0]
        rows: list[dict[int, int]] = []
        for state in order:
            row: dict[int, int] = {}
            for byte, target in sorted(transitions[state].items()):
                if target not in live:
                    continue
                if target not in number:
                    number[target] = len(order)
                    order.append(target)
                row[byte] = number[target]
            rows.append(row)
        return cls(tuple(rows), frozenset(number[state] for state in accepting if state in number))

    @classmethod
    def from_strings(cls, strings: Iterable[bytes]) -> ByteAutomaton:
        """Build the minimal automaton of a finite set of byte strings (duplicates count once)."""
        # Sorted input lets each finished suffix be merged at once (Daciuk et al. 2000), so a large
        # label list never exists as an unmerged trie.
        rows: list[dict[int, int]] = [{}]
        ends: set[int] = set()
        register: dict[tuple[bool, tuple[tuple[int, int], ...]], int] = {}
        path = [0]
        previous = b""

        def merge_below(depth: int) -> None:
            while len(path) > depth + 1:
                state = path.pop()
                key = (state in ends, tuple(rows[state].items()))
                rows[path[-1]][previous[len(path) - 1]] = register.setdefault(key, state)

        for string in sorted(strings):
            shared = _common_prefix(previous, string)
            merge_below(shared)
            for byte in string[shared:]:
                rows.append({})
                rows[path[-1]][byte] = len(rows) - 1
                path.append(len(rows) - 1)
            ends.add(path[-1])
            previous = string
        merge_below(0)
        return cls.trimmed(rows, ends)

    def row(self, state: int) -> Mapping[int, int]:
        """Return the transitions of one state."""
        return self.transitions[state]

    def accepts(self, state: int) -> bool:
        """Tell whether a string of the language ends at `state`."""
        return state in self.accepting

    def is_empty(self) -> bool:
        """Tell whether the language holds no string at all (the empty string is a string)."""
        return not self.accepting

    def is_finite(self) -> bool:
        """Tell whether the language is finite: every state leads to acceptance, so any cycle makes it infinite."""
        return self._counts is not None

    def count(self, limit: int) -> int:
        """Count the strings of the language, stopping at `limit` (also returned for an infinite language)."""
        return self.count_from(0, limit)

    def count_from(self, state: int, limit: int) -> int:
        """Count the strings that lead from `state` to acceptance, stopping at `limit`."""
        return limit if self._counts is None else min(limit, self._counts[state])

    def slots_filled(self, state: int) -> int:
        """Return 0: a plain language has no slots."""
        return 0

    def strings(self, limit: int) -> Iterator[bytes]:
        """List the language in byte order.

        Raises
        ------
        GrammarError
            When the language is infinite.
        GrammarTooLargeError
            When it holds more than `limit` strings; nothing is listed then.
        """
        if not self.is_finite():
            raise GrammarError("The language is infinite and cannot be listed; bound its repeats, as in {0,8}.")
        if self.count(limit + 1) > limit:
            raise GrammarTooLargeError(
                f"The language holds more than {limit} strings; shorten the label list or the repeats."
            )
        return self._strings_from(0)

    def matches(self, data: bytes) -> bool:
        """Tell whether `data` is a string of the language."""
        return self.walk(0, data) in self.accepting

    def walk(self, state: int, data: bytes) -> int | None:
        """Follow `data` from `state`; None as soon as no string of the language has that prefix."""
        for byte in data:
            target = self.transitions[state].get(byte)
            if target is None:
                return None
            state = target
        return state

    def _strings_from(self, start: int) -> Iterator[bytes]:
        prefix = bytearray()
        if start in self.accepting:
            yield b""
        stack = [iter(self.transitions[start].items())]
        while stack:
            step = next(stack[-1], None)
            if step is None:
                stack.pop()
                if prefix:
                    prefix.pop()
                continue
            byte, state = step
            prefix.append(byte)
            if state in self.accepting:
                yield bytes(prefix)
            stack.append(iter(self.transitions[state].items()))

    def longest(self) -> int:
        """Bytes of the longest string of a finite language that is not empty."""
        assert self._order is not None
        lengths = [0] * len(self.transitions)
        for state in reversed(self._order):
            lengths[state] = max((1 + lengths[target] for target in self.transitions[state].values()), default=0)
        return lengths[0]

    def size(self) -> int:
        """Bytes of all strings of a finite language together; exact where `count` is."""
        assert self._order is not None and self._counts is not None
        sizes = [0] * len(self.transitions)
        for state in reversed(self._order):
            sizes[state] = sum(self._counts[target] + sizes[target] for target in self.transitions[state].values())
        return sizes[0]

    @cached_property
    def _order(self) -> list[int] | None:
        """States in topological order, or None when there is a cycle."""
        incoming = [0] * len(self.transitions)
        for row in self.transitions:
            for target in row.values():
                incoming[target] += 1
        order = [state for state, degree in enumerate(incoming) if degree == 0]
        for state in order:
            for target in self.transitions[state].values():
                incoming[target] -= 1
                if incoming[target] == 0:
                    order.append(target)
        return order if len(order) == len(self.transitions) else None

    @cached_property
    def _counts(self) -> tuple[int, ...] | None:
        """Number of strings from each state, or None when there is a cycle."""
        if self._order is None:
            return None
        counts = [0] * len(self.transitions)
        for state in reversed(self._order):
            total = int(state in self.accepting) + sum(counts[t] for t in self.transitions[state].values())
            counts[state] = min(total, _COUNT_CEILING)
        return tuple(counts)


# Counts saturate here so that a language of astronomic size costs no big-integer arithmetic.
_COUNT_CEILING = 2**62


def _co_reachable(transitions: Sequence[Mapping[int, int]], accepting: Iterable[int]) -> set[int]:
    backward: list[list[int]] = [[] for _ in transitions]
    for state, row in enumerate(transitions):
        for target in row.values():
            backward[target].append(state)
    live = set(accepting)
    queue = deque(live)
    while queue:
        for state in backward[queue.popleft()]:
            if state not in live:
                live.add(state)
                queue.append(state)
    return live


def _common_prefix(a: bytes, b: bytes) -> int:
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return min(len(a), len(b))
