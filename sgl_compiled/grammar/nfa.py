"""Thompson construction of a postfix program over UTF-8 bytes, and its determinisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sgl_compiled.errors import GrammarTooLargeError
from sgl_compiled.grammar.automaton import ByteAutomaton
from sgl_compiled.grammar.limits import Deadline, Limits
from sgl_compiled.grammar.regex_syntax import Alternate, Atom, Concat, Group, Literal, Op, Repeat
from sgl_compiled.grammar.utf8 import MAX_SCALAR, ScalarRange, byte_sequences

__all__ = ["Fragment", "Nfa", "NfaBuilder", "build_nfa", "determinise"]

# Longer literals are not joined with their neighbours, or deep nesting would copy them over and over.
_MAX_SHARED_LITERAL = 4_096
_EDGES_A_CHECK = 512

ByteEdge = tuple[int, int, int]
"""Lowest byte, highest byte, target state."""


@dataclass
class Nfa:
    """States by number, each with byte edges, epsilon edges, both, or (if final) neither."""

    edges: list[tuple[ByteEdge, ...]] = field(default_factory=list)
    epsilons: list[tuple[int, ...]] = field(default_factory=list)
    start: int = 0
    final: int = 0


@dataclass(frozen=True)
class Fragment:
    """States first..end-1, entered at `entry`, left at `exit`, which has no outgoing edge yet."""

    first: int
    end: int
    entry: int
    exit: int
    literal: bytes | None = None  # the fragment's one string, where it has but one and that is short


def build_nfa(program: Sequence[Op], limits: Limits, deadline: Deadline) -> Nfa:
    """Run a postfix program.

    Raises
    ------
    GrammarTooLargeError
        When it passes `limits.max_nfa_states` or `limits.max_repeat_states`, checked before a repeat is copied, or
        the deadline.
    """
    return NfaBuilder(limits, deadline).build(program)


class NfaBuilder:
    """Runs a postfix program on a stack of fragments."""

    # Operands of a postfix operator lie next to each other, so every fragment is a contiguous slice
    # of the state list, and a copy for a repeat is that slice shifted.
    def __init__(self, limits: Limits, deadline: Deadline) -> None:
        self.nfa = Nfa()
        self.stack: list[Fragment] = []
        self.limits = limits
        self.deadline = deadline
        self.atom_edges: dict[tuple[ScalarRange, ...], tuple[tuple[ByteEdge, ...], ...]] = {}

    def build(self, program: Sequence[Op]) -> Nfa:
        """Run the whole program."""
        for op in program:
            self.apply(op)
        (whole,) = self.stack
        self.nfa.start, self.nfa.final = whole.entry, whole.exit
        return self.nfa

    def apply(self, op: Op) -> None:
        """Run one operation."""
        self.deadline.check()
        if isinstance(op, Atom):
            self.stack.append(self.atom(op.ranges))
        elif isinstance(op, Literal):
            self.stack.append(self.literal(op.data))
        elif isinstance(op, Concat):
            self.stack.append(self.concat(self.pop(op.count)))
        elif isinstance(op, Alternate):
            self.stack.append(self.alternate(self.pop(op.count)))
        elif isinstance(op, Repeat):
            self.stack.append(self.repeat(self.stack.pop(), op))
        else:
            self.stack.append(self.group(self.stack.pop(), op))

    def pop(self, count: int) -> list[Fragment]:
        """Take the topmost fragments off the stack, in order."""
        parts = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return parts

    def reserve(self, count: int) -> int:
        """Check the size limit, then add `count` states; returns the first one's number."""
        first = len(self.nfa.edges)
        if first + count > self.limits.max_nfa_states:
            raise GrammarTooLargeError(
                f"The regular expression is too large (more than {self.limits.max_nfa_states} automaton states); "
                "shorten it or lower the bounds of its repeats."
            )
        self.nfa.edges.extend([()] * count)
        self.nfa.epsilons.extend([()] * count)
        return first

    def atom(self, ranges: tuple[ScalarRange, ...]) -> Fragment:
        """Add one character out of a set."""
        template = self.atom_edges.get(ranges)
        if template is None:
            template = self.atom_edges[ranges] = _atom_template(ranges)
        first = self.reserve(len(template))
        for offset, edges in enumerate(template):
            self.nfa.edges[first + offset] = tuple((low, high, first + target) for low, high, target in edges)
        ((low, high), *more) = ranges or ((0, MAX_SCALAR),)
        literal = chr(low).encode() if low == high and not more else None
        return Fragment(first, first + len(template), first, first + 1, literal)

    def literal(self, data: bytes) -> Fragment:
        """Add a chain of bytes."""
        first = self.reserve(len(data) + 1)
        for state, byte in enumerate(data, first):
            self.nfa.edges[state] = ((byte, byte, state + 1),)
        last = first + len(data)
        return Fragment(first, last + 1, first, last, data if len(data) <= _MAX_SHARED_LITERAL else None)

    def concat(self, parts: list[Fragment]) -> Fragment:
        """Lead each fragment into the next; none at all make the empty string."""
        if not parts:
            state = self.reserve(1)
            return Fragment(state, state + 1, state, state, b"")
        for left, right in zip(parts, parts[1:], strict=False):
            self.nfa.epsilons[left.exit] = (right.entry,)
        literals = [part.literal for part in parts if part.literal is not None]
        joined = b"".join(literals) if len(literals) == len(parts) else None
        if joined is not None and len(joined) > _MAX_SHARED_LITERAL:
            joined = None
        return Fragment(parts[0].first, parts[-1].end, parts[0].entry, parts[-1].exit, joined)

    def alternate(self, parts: list[Fragment]) -> Fragment:
        """Enter all fragments at once, in order of preference."""
        literals = [part.literal for part in parts if part.literal is not None]
        merged = self.literals(literals, parts[0].first) if len(literals) == len(parts) else None
        if merged is not None:
            return merged
        entry = self.reserve(2)
        self.nfa.epsilons[entry] = tuple(part.entry for part in parts)
        for part in parts:
            self.nfa.epsilons[part.exit] = (entry + 1,)
        return Fragment(parts[0].first, entry + 2, entry, entry + 1)

    def literals(self, literals: list[bytes], first: int) -> Fragment | None:
        """Replace alternatives that are all literal, such as a label list, by their minimal automaton."""
        del self.nfa.edges[first:], self.nfa.epsilons[first:]
        automaton = ByteAutomaton.from_strings(literals)
        self.reserve(len(automaton.transitions) + 1)
        out = first + len(automaton.transitions)
        for state, row in enumerate(automaton.transitions, first):
            self.nfa.edges[state] = tuple((byte, byte, first + target) for byte, target in row.items())
        for state in automaton.accepting:
            self.nfa.epsilons[first + state] = (out,)
        return Fragment(first, out + 1, first, out)

    def group(self, part: Fragment, op: Group) -> Fragment:
        """Leave the part as it is: a language has no groups (see `regex_groups` for those who want them)."""
        return part

    def repeat(self, part: Fragment, op: Repeat) -> Fragment:
        """Copy the fragment as often as it may stand, with a way out after each optional copy."""
        if op.high == 0:
            state = self.reserve(1)
            return Fragment(part.first, state + 1, state, state)
        copies = max(op.low, 1) if op.high is None else op.high
        parts = [part, *self.copy(part, copies - 1)]
        entry = self.reserve(2)
        out = entry + 1
        joint = entry
        for index, copy in enumerate(parts):
            self.nfa.epsilons[joint] = (copy.entry, out) if index >= op.low else (copy.entry,)
            joint = copy.exit
        self.nfa.epsilons[joint] = (out,) if op.high is not None else (parts[-1].entry, out)
        return Fragment(part.first, entry + 2, entry, out)

    def copy(self, part: Fragment, copies: int) -> list[Fragment]:
        """Copy a fragment, once its size has been checked."""
        size = part.end - part.first
        if size * copies > self.limits.max_repeat_states:
            raise GrammarTooLargeError(
                f"A bounded repeat unrolls to {size * copies} automaton states, over the limit of "
                f"{self.limits.max_repeat_states}; lower its bound or those inside it."
            )
        start = self.reserve(size * copies)
        result = []
        for base in range(start, start + size * copies, size):
            shift = base - part.first
            for state in range(part.first, part.end):
                edges, epsilons = self.nfa.edges[state], self.nfa.epsilons[state]
                self.nfa.edges[state + shift] = tuple((low, high, target + shift) for low, high, target in edges)
                self.nfa.epsilons[state + shift] = tuple(target + shift for target in epsilons)
            result.append(Fragment(base, base + size, part.entry + shift, part.exit + shift))
        return result


def _atom_template(ranges: tuple[ScalarRange, ...]) -> tuple[tuple[ByteEdge, ...], ...]:
    """Edges of one character's states relative to the first: 0 is the entry, 1 the exit, the rest lie between.

    States are shared by the byte sequences' common heads and tails, so a negated class costs about ten.
    """
    rows: list[list[ByteEdge]] = [[], []]
    tails: dict[tuple[tuple[int, int], ...], int] = {(): 1}
    for scalar_range in ranges:
        for sequence in byte_sequences(scalar_range):
            for start in range(len(sequence) - 1, 0, -1):
                tail = sequence[start:]
                if tail not in tails:
                    tails[tail] = len(rows)
                    rows.append([(*tail[0], tails[tail[1:]])])
            rows[0].append((*sequence[0], tails[sequence[1:]]))
    return tuple(tuple(row) for row in rows)


def determinise(nfa: Nfa, limits: Limits, deadline: Deadline) -> ByteAutomaton:
    """Build the trimmed deterministic automaton by subset construction.

    Raises
    ------
    GrammarTooLargeError
        When it has more than `limits.max_automaton_states` states, or takes too long.
    """
    number: dict[tuple[frozenset[int], bool], int] = {}
    subsets: list[frozenset[int]] = []
    accepting: list[int] = []
    by_targets: dict[frozenset[int], int] = {}

    def state_of(targets: frozenset[int]) -> int:
        known = by_targets.get(targets)
        if known is not None:
            return known
        deadline.check()
        key = _closure(nfa, targets)
        state = number.setdefault(key, len(subsets))
        if state == len(subsets):
            if state >= limits.max_automaton_states:
                raise GrammarTooLargeError(
                    f"The regular expression needs more than {limits.max_automaton_states} states; "
                    "lower the bounds of its repeats or split it."
                )
            subsets.append(key[0])
            if key[1]:
                accepting.append(state)
        by_targets[targets] = state
        return state

    rows: list[dict[int, int]] = []
    state_of(frozenset({nfa.start}))
    for subset in subsets:
        rows.append(_row(nfa, subset, state_of, deadline))
    return ByteAutomaton.trimmed(rows, accepting)


def _row(
    nfa: Nfa, subset: frozenset[int], state_of: Callable[[frozenset[int]], int], deadline: Deadline
) -> dict[int, int]:
    edges = [edge for state in subset for edge in nfa.edges[state]]
    cuts = sorted({low for low, _, _ in edges} | {high + 1 for _, high, _ in edges})
    index = {cut: position for position, cut in enumerate(cuts)}
    targets: list[set[int]] = [set() for _ in cuts]
    for count, (low, high, target) in enumerate(edges):
        if count % _EDGES_A_CHECK == 0:
            deadline.check()
        for position in range(index[low], index[high + 1]):
            targets[position].add(target)
    row: dict[int, int] = {}
    for position, group in enumerate(targets):
        if group:
            state = state_of(frozenset(group))
            for byte in range(cuts[position], cuts[position + 1]):
                row[byte] = state
    return row


def _closure(nfa: Nfa, states: frozenset[int]) -> tuple[frozenset[int], bool]:
    """States with byte edges reachable over epsilon edges, and whether the final state is."""
    seen = set(states)
    pending = list(states)
    important = []
    while pending:
        state = pending.pop()
        if nfa.edges[state]:
            important.append(state)
        for target in nfa.epsilons[state]:
            if target not in seen:
                seen.add(target)
                pending.append(target)
    return frozenset(important), nfa.final in seen
