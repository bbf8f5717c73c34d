"""Compile a slot form to its canonical spelling: ``tokenizer.encode`` of every answer, by windows around the joints.

Encoding every answer is exact but factorial. A token boundary *inside* the literal between two slots, at the same
offset whatever stands on either side, cuts an answer into independent segments: pre-tokenizers scan from left to
right and merges never cross a pre-token. Each choice is therefore encoded once a slot with one neighbour on each side.
Where no such cut exists, or where a sample of whole answers disagrees, small languages are enumerated instead.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import and_
from os.path import commonprefix

from sgl_compiled.errors import GrammarTooLargeError
from sgl_compiled.grammar.form import SlotForm, size_of
from sgl_compiled.grammar.limits import Limits
from sgl_compiled.grammar.slots import SegmentTrie, Shared, SlotAutomaton
from sgl_compiled.grammar.tokenizer import TokenizerInfo
from sgl_compiled.grammar.trie import TrieAutomaton

__all__ = ["EnumeratedSlots", "compile_slots"]

_SAMPLE = 24
_ALL_PAIRS = 2_500
# A tokenizer's own record of a token is large.
_BATCH = 4_096

_Kind = tuple[str, str, tuple[str, ...], str, str]
"""A slot's choices between the literals at its sides, and all of its window before and after them."""


class EnumeratedSlots(TrieAutomaton):
    """An enumerated slot form: a trie that still knows the choices of each answer."""

    def __init__(self, form: SlotForm, sequences: list[tuple[int, ...]], answers: Sequence[Sequence[int]]) -> None:
        super().__init__(answers)
        self.form = form
        self._sequences = sequences
        self._actions = self._filled()

    def chosen(self, state: int) -> tuple[int, ...] | None:
        """Choice indices of the answer that ends at ``state``, or ``None``."""
        return self._sequences[self.answer(state)] if self.accepts(state) else None

    def _filled(self) -> list[int]:
        """Return how many slots hold the same choice in all answers through each node."""
        shared: list[tuple[int, ...]] = [()] * len(self._children)
        for node in reversed(range(len(shared))):
            behind = [shared[child] for child in self._children[node].values()]
            if node in self._ends:
                behind.append(self._sequences[self._ends[node]])
            shared[node] = tuple(commonprefix(behind))
        return list(map(len, shared))


def compile_slots(form: SlotForm, info: TokenizerInfo, limits: Limits) -> SlotAutomaton | EnumeratedSlots:
    """Return the canonical automaton of ``form``.

    Raises
    ------
    GrammarTooLargeError
        The tokenizer cannot be factorised at the joints and the language is too large to enumerate, or the texts around
        the choices are too long.
    """
    try:
        return _factorise(form, info, limits)
    except _Inseparable as reason:
        _check_enumerable(form, limits, str(reason))
    sequences = list(form.sequences())
    answers = info.encode_batch([form.text(chosen) for chosen in sequences])
    for chosen, ids in zip(sequences, answers, strict=True):
        info.offsets(ids, form.text(chosen))
    return EnumeratedSlots(form, sequences, answers)


class _Inseparable(Exception):
    """Why the slots cannot be spelled apart."""


def _check_enumerable(form: SlotForm, limits: Limits, reason: str) -> None:
    remedy = f"{reason}; use fewer labels, a separator such as '\", \"', or the JSON template"
    if form.count > limits.max_strings:
        raise GrammarTooLargeError(
            f"{form.count} answers cannot be enumerated (limit {limits.max_strings}), and {remedy}"
        )
    if form.size > limits.max_strings_bytes:
        raise GrammarTooLargeError(
            f"answers of {form.size} bytes in all cannot be enumerated (limit {limits.max_strings_bytes}), and {remedy}"
        )


def _factorise(form: SlotForm, info: TokenizerInfo, limits: Limits) -> SlotAutomaton:
    windows = _Windows(form, info, limits)
    cuts = [None, *(windows.cut(joint) for joint in range(1, len(form))), None]
    shared = Shared()
    # Most slots of a label grammar are spelled alike, and share one trie.
    known: dict[tuple[int, int | None, int | None], tuple[list[list[int]], SegmentTrie | None]] = {}
    tries: list[SegmentTrie] = []
    segments: list[list[list[int]]] = []
    for slot, kind in enumerate(windows.kinds):
        key = kind, cuts[slot], cuts[slot + 1]
        if key not in known:
            pieces = windows.segments(slot, cuts[slot], cuts[slot + 1])
            alike = next((entry for entry in known.values() if entry[0] == pieces), None)
            known[key] = alike or (pieces, SegmentTrie.build(pieces, shared))
        pieces, trie = known[key]
        if trie is None or (slot < len(form) - 1 and not trie.prefix_free):
            raise _Inseparable("the tokens of one label begin those of another")
        tries.append(trie)
        segments.append(pieces)
    if len(form) > 1:
        windows.spend(_SAMPLE * form.longest)
        if not _sample_agrees(form, segments, info):
            raise _Inseparable("this tokenizer spells labels together otherwise than apart")
    return SlotAutomaton(form, tries)


def _kind(form: SlotForm, slot: int) -> _Kind:
    before, after = form.around(slot)
    return before, form.literals[slot], form.slots[slot], form.literals[slot + 1], after


class _Windows:
    """Each choice of each slot, encoded once between fixed neighbours."""

    def __init__(self, form: SlotForm, info: TokenizerInfo, limits: Limits) -> None:
        self._form = form
        self._info = info
        self._limit = self._left = limits.max_window_bytes
        # Ids and byte offsets; arrays, since they are many.
        self._encoded: dict[str, tuple[array[int], array[int]]] = {}
        self._cuts: dict[tuple[int, int], int] = {}
        kinds: dict[_Kind, int] = {}
        self.kinds = [kinds.setdefault(_kind(form, slot), len(kinds)) for slot in range(len(form))]
        for before, _, choices, _, after in kinds:
            self.spend(len(choices) * (size_of(before) + size_of(after)) + sum(map(size_of, choices)))
        first = map(self.kinds.index, range(len(kinds)))
        self._fill(self._text(slot, choice)[0] for slot in first for choice in range(len(form.slots[slot])))

    def spend(self, size: int) -> None:
        """Count the bytes of texts that are yet to be built.

        Raises
        ------
        GrammarTooLargeError
            All texts together exceed the limit.
        """
        self._left -= size
        if self._left < 0:
            raise GrammarTooLargeError(
                f"the labels with the texts and labels beside them hold more than {self._limit} bytes in all; "
                "shorten the texts between the labels, or give fewer or shorter labels"
            )

    def _text(self, slot: int, choice: int, left: int = 0) -> tuple[str, str, str]:
        """Return the window, the part before this slot's choice, and the choice itself."""
        before, after = self._form.around(slot, left)
        here = self._form.slots[slot][choice]
        return before + here + after, before, here

    def _fill(self, texts: Iterable[str]) -> None:
        missing = [text for text in dict.fromkeys(texts) if text not in self._encoded]
        for start in range(0, len(missing), _BATCH):
            batch = missing[start : start + _BATCH]
            for text, ids in zip(batch, self._info.encode_batch(batch), strict=True):
                self._encoded[text] = array("I", ids), array("I", self._info.offsets(ids, text))

    def cut(self, joint: int) -> int:
        """Byte offset in ``literals[joint]`` that is a token boundary in every window."""
        key = self.kinds[joint - 1], self.kinds[joint]
        if key not in self._cuts:
            self._cuts[key] = self._find_cut(joint)
        return self._cuts[key]

    def _find_cut(self, joint: int) -> int:
        lefts, separator, rights = self._form.slots[joint - 1], self._form.literals[joint], self._form.slots[joint]
        size = size_of(separator)
        common = reduce(and_, (self._boundaries_after(joint - 1, left, size) for left in range(len(lefts))))
        common = reduce(and_, (self._boundaries_before(joint, right, size) for right in range(len(rights))), common)
        inner = [at for at in common if 0 < at < size]
        if inner:
            return max(inner)
        # A cut that touches a choice depends on both neighbours, so every pair has to agree.
        count = len(lefts) * len(rights)
        if common and count > _ALL_PAIRS:
            raise _Inseparable(
                f"{count} pairs of labels around the separator {separator!r} are too many to compare ({_ALL_PAIRS})"
            )
        if common:
            before, after = self._form.around(joint)
            longest = max(map(size_of, lefts)) + max(map(size_of, rights))
            self.spend(count * (size_of(before) + size_of(after) + longest))
            pairs = [(left, right) for left in range(len(lefts)) for right in range(len(rights))]
            self._fill(self._text(joint, right, left)[0] for left, right in pairs)
            common = reduce(and_, (self._boundaries_before(joint, right, size, left) for left, right in pairs), common)
        if not common:
            raise _Inseparable(f"this tokenizer merges tokens across the separator {separator!r}")
        return max(common)

    def _boundaries_after(self, slot: int, choice: int, size: int) -> set[int]:
        window, before, here = self._text(slot, choice)
        return self._boundaries(window, size_of(before + here), size)

    def _boundaries_before(self, slot: int, choice: int, size: int, left: int = 0) -> set[int]:
        window, before, _ = self._text(slot, choice, left)
        return self._boundaries(window, size_of(before) - size, size)

    def _boundaries(self, window: str, start: int, size: int) -> set[int]:
        offsets = self._encoded[window][1]
        return {at - start for at in offsets if start <= at <= start + size}

    def segments(self, slot: int, left_cut: int | None, right_cut: int | None) -> list[list[int]]:
        """Tokens of each choice of ``slot`` from the cut on its left to the cut on its right."""
        return [self._segment(slot, choice, left_cut, right_cut) for choice in range(len(self._form.slots[slot]))]

    def _segment(self, slot: int, choice: int, left_cut: int | None, right_cut: int | None) -> list[int]:
        window, before, here = self._text(slot, choice)
        ids, offsets = self._encoded[window]
        first, last = 0, len(ids)
        if left_cut is not None:
            first = offsets.index(size_of(before) - size_of(self._form.literals[slot]) + left_cut)
        if right_cut is not None:
            last = offsets.index(size_of(before + here) + right_cut)
        return ids[first:last].tolist()


def _sample_agrees(form: SlotForm, segments: list[list[list[int]]], info: TokenizerInfo) -> bool:
    """Compare the joined segments with whole-answer encoding on a fixed random sample."""
    rng = random.Random(0)
    sample = [_random_sequence(form, rng.choice) for _ in range(_SAMPLE)]
    whole = info.encode_batch([form.text(chosen) for chosen in sample])
    return all(
        [token for slot, index in enumerate(chosen) for token in segments[slot][index]] == ids
        for chosen, ids in zip(sample, whole, strict=True)
    )


def _random_sequence(form: SlotForm, choose: Callable[[Sequence[int]], int]) -> tuple[int, ...]:
    chosen: tuple[int, ...] = ()
    while len(chosen) < len(form):
        mask = form.allowed(chosen)
        chosen = (*chosen, choose([i for i in range(len(form.slots[len(chosen)])) if mask >> i & 1]))
    return chosen
