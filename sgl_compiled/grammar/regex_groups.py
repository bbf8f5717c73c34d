"""What the groups of a pattern capture in a chosen text: Python's answer, in linear time.

A backtracking engine may take exponential time on a pattern that a client wrote, even where it has two strings. Without
backreferences a search that failed once from a place fails there always, so places are visited once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from sgl_compiled.errors import GrammarTooLargeError
from sgl_compiled.grammar.limits import DEFAULT_LIMITS, Deadline, Limits
from sgl_compiled.grammar.nfa import Fragment, Nfa, NfaBuilder
from sgl_compiled.grammar.regex_syntax import Group, Repeat, parse_regex

__all__ = ["GroupReader", "Groups"]

_MAX_PLACES = 300_000
# Groups and loops take states that the language does without.
_STATES_PER_STATE = 4

_Chain: TypeAlias = "tuple[int, int, _Chain] | None"
"""Marks set so far: the latest with its offset, and those before it."""


@dataclass(frozen=True)
class Groups:
    """The captures of one match; None for a group that took no part.

    Attributes
    ----------
    all
        By number, from the first opening parenthesis on.
    named
        By name.
    """

    all: tuple[str | None, ...]
    named: dict[str, str | None]


class GroupReader:
    """Reads the groups of one pattern.

    Parameters
    ----------
    pattern
        Of the dialect of docs/semantics.md.
    limits
        As for `compile_regex`, whose errors this raises.
    """

    def __init__(self, pattern: str, limits: Limits = DEFAULT_LIMITS) -> None:
        parsed = parse_regex(pattern, limits)
        self._names = parsed.groups
        self._builder = _OrderedBuilder(limits)
        self._nfa = self._builder.build(parsed.program) if parsed.groups else None

    def read(self, text: str) -> Groups | None:
        """Return what the groups capture when the pattern matches the whole of `text`, None when it does not.

        A pattern without groups captures nothing, whatever the text: none is searched.

        Raises
        ------
        GrammarTooLargeError
            When the search visits too many places (pattern size times text length).
        """
        if self._nfa is None:
            return Groups((), {})
        data = text.encode()
        marks = _search(self._nfa, self._builder, data)
        if marks is None:
            return None
        spans = [marks.get(2 * index, -1) for index in range(len(self._names))]
        values = tuple(
            None if start < 0 else data[start : marks[2 * index + 1]].decode() for index, start in enumerate(spans)
        )
        return Groups(values, {name: value for name, value in zip(self._names, values, strict=True) if name})


class _OrderedBuilder(NfaBuilder):
    """Keeps what a language forgets: the order of preference among epsilon edges, captures, and loops."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(
            replace(
                limits,
                max_nfa_states=_STATES_PER_STATE * limits.max_nfa_states,
                max_repeat_states=_STATES_PER_STATE * limits.max_repeat_states,
            ),
            Deadline(limits),
        )
        self.marks: dict[int, int] = {}  # state to the mark it sets: twice the group's index, plus 1 at its end
        self.begins: dict[int, int] = {}  # state to the loop of which it begins an optional round
        self.guards: dict[int, int] = {}  # state to the loop whose round, if it took nothing, was the last one
        self.loops = 0

    def literals(self, literals: list[bytes], first: int) -> Fragment | None:
        """Merge nothing: which alternative comes first decides what later groups are left with."""
        return None

    def group(self, part: Fragment, op: Group) -> Fragment:
        """Set a mark on either side."""
        entry = self.reserve(2)
        self.nfa.epsilons[entry] = (part.entry,)
        self.nfa.epsilons[part.exit] = (entry + 1,)
        self.marks[entry], self.marks[entry + 1] = 2 * op.index, 2 * op.index + 1
        return Fragment(part.first, entry + 2, entry, entry + 1)

    def repeat(self, part: Fragment, op: Repeat) -> Fragment:
        """Unroll as the language does, with the order of preference and the check for empty rounds."""
        if op.high == 0:
            return super().repeat(part, op)
        loop, self.loops = self.loops, self.loops + 1
        copies = max(op.low, 1) if op.high is None else op.high
        if op.high is None:
            copies += op.low > 0  # the endless round is an optional one, apart from those that must be
        parts = [part, *self.copy(part, copies - 1)]
        entry = self.reserve(2 + copies)
        out = entry + 1
        joint = entry
        for index, copy in enumerate(parts):
            optional = index >= op.low
            begin = entry + 2 + index
            self.nfa.epsilons[begin] = (copy.entry,)
            if optional:
                self.begins[begin] = loop
            self.choose(joint, begin, out if optional else None, op)
            if index > op.low:
                self.guards[joint] = loop
            joint = copy.exit
        if op.high is None:
            self.choose(joint, begin, out, op)
            self.guards[joint] = loop
        else:
            self.nfa.epsilons[joint] = (out,)
        return Fragment(part.first, entry + 2 + copies, entry, out)

    def choose(self, joint: int, begin: int, out: int | None, op: Repeat) -> None:
        """Prefer another round, or the way out where the repeat is lazy."""
        if out is None:
            self.nfa.epsilons[joint] = (begin,)
        else:
            self.nfa.epsilons[joint] = (out, begin) if op.lazy else (begin, out)

    def copy(self, part: Fragment, copies: int) -> list[Fragment]:
        """Copy captures and loops along."""
        result = super().copy(part, copies)
        if not result:
            return result
        for table in (self.marks, self.begins, self.guards):
            inside = [(state, table[state]) for state in range(part.first, part.end) if state in table]
            for fragment in result:
                shift = fragment.first - part.first
                table.update((state + shift, value) for state, value in inside)
        return result


def _search(nfa: Nfa, builder: _OrderedBuilder, data: bytes) -> dict[int, int] | None:
    """Find the match that backtracking would find first; returns byte offsets by mark."""
    # A place is a state, an offset, and a bit for each loop whose present round has taken something (all, past a byte).
    everything = -1
    pending: list[tuple[int, int, int, _Chain]] = [(nfa.start, 0, everything, None)]
    visited: set[tuple[int, int, int]] = set()
    while pending:
        state, at, moved, chain = pending.pop()
        place = (state, at, moved)
        if place in visited:
            continue
        if len(visited) >= _MAX_PLACES:
            raise GrammarTooLargeError(
                "The groups of this text take too long to find; simplify the regular expression."
            )
        visited.add(place)
        if state in builder.marks:
            chain = (builder.marks[state], at, chain)
        if state == nfa.final and at == len(data):
            return dict(reversed([*_links(chain)]))
        if state in builder.begins:
            moved &= ~(1 << builder.begins[state])
        if nfa.edges[state]:
            if at < len(data):
                byte = data[at]
                pending += [
                    (target, at + 1, everything, chain) for low, high, target in nfa.edges[state] if low <= byte <= high
                ]
            continue
        ways = nfa.epsilons[state]
        if state in builder.guards and not moved >> builder.guards[state] & 1:
            ways = tuple(way for way in ways if way not in builder.begins)
        pending += [(way, at, moved, chain) for way in reversed(ways)]
    return None


def _links(chain: _Chain) -> Iterator[tuple[int, int]]:
    """Yield the marks with their offsets, the latest first."""
    while chain is not None:
        mark, at, chain = chain
        yield mark, at
