"""Compile a slot form to its canonical spelling: ``tokenizer.encode`` of every answer, by windows around the joints.

Encoding every answer is exact but factorial. A token boundary *inside* the literal between two slots, at the same
offset whatever stands on either side, cuts an answer into independent segments: pre-tokenizers scan from left to
right and merges never cross a pre-token. Each choice is therefore encoded once a slot with one neighbour on each side.
Where no such cut exists, or where a sample of whole answers disagrees, small languages are enumerated instead.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import product

from sgl_compiled.errors import GrammarTooLargeError
from sgl_compiled.grammar.form import SlotForm
from sgl_compiled.grammar.limits import Limits
from sgl_compiled.grammar.slots import SegmentTrie, SlotAutomaton
from sgl_compiled.grammar.tokenizer import TokenizerInfo
from sgl_compiled.grammar.trie import TrieAutomaton

__all__ = ["EnumeratedSlots", "compile_slots"]

_SAMPLE = 24
_ALL_PAIRS = 2_500


class EnumeratedSlots(TrieAutomaton):
    """An enumerated slot form: a trie that still knows the choices of each answer."""

    def __init__(self, form: SlotForm, sequences: list[tuple[int, ...]], answers: Sequence[Sequence[int]]) -> None:
        super().__init__(answers)
        self.form = form
        self._sequences = sequences

    def chosen(self, state: int) -> tuple[int, ...] | None:
        """Choice indices of the answer that ends at ``state``, or ``None``."""
        return self._sequences[self.answer(state)] if self.accepts(state) else None


def compile_slots(form: SlotForm, info: TokenizerInfo, limits: Limits) -> SlotAutomaton | EnumeratedSlots:
    """Return the canonical automaton of ``form``.

    Raises
    ------
    GrammarTooLargeError
        The tokenizer cannot be factorised at the joints and the language is too large to enumerate.
    """
    automaton = _factorise(form, info)
    if automaton is not None:
        return automaton
    if form.count > limits.max_strings:
        raise GrammarTooLargeError(
            f"{form.count} answers cannot be enumerated (limit {limits.max_strings}), and this tokenizer merges tokens "
            "across the separator; use a separator such as '\", \"' or the JSON template"
        )
    sequences = list(form.sequences())
    answers = info.encode_batch([form.text(chosen) for chosen in sequences])
    for chosen, ids in zip(sequences, answers, strict=True):
        info.offsets(ids, form.text(chosen))
    return EnumeratedSlots(form, sequences, answers)


def _factorise(form: SlotForm, info: TokenizerInfo) -> SlotAutomaton | None:
    windows = _Windows(form, info)
    cuts: list[int | None] = [None]
    for joint in range(1, len(form)):
        cut = windows.cut(joint)
        if cut is None:
            return None
        cuts.append(cut)
    cuts.append(None)
    tries: list[SegmentTrie] = []
    segments: list[list[list[int]]] = []
    for slot in range(len(form)):
        pieces = [windows.segment(slot, choice, cuts[slot], cuts[slot + 1]) for choice in range(len(form.slots[slot]))]
        trie = SegmentTrie.build(pieces)
        if trie is None or (slot < len(form) - 1 and not trie.prefix_free):
            return None
        tries.append(trie)
        segments.append(pieces)
    if len(form) > 1 and not _sample_agrees(form, segments, info):
        return None
    return SlotAutomaton(form, tries)


class _Windows:
    """Each choice of each slot, encoded once between fixed neighbours."""

    def __init__(self, form: SlotForm, info: TokenizerInfo) -> None:
        self._form = form
        self._info = info
        self._encoded: dict[str, tuple[list[int], list[int]]] = {}
        self._fill([self._text(slot, c)[0] for slot in range(len(form)) for c in range(len(form.slots[slot]))])

    def _text(self, slot: int, choice: int, left: int = 0, right: int = 0) -> tuple[str, str, str]:
        """Return the window, the part before this slot's choice, and the choice itself."""
        form = self._form
        before = form.literals[slot]
        if slot > 0:
            before = form.literals[slot - 1] * (slot == 1) + form.slots[slot - 1][left] + before
        after = form.literals[slot + 1]
        if slot + 1 < len(form):
            after += form.slots[slot + 1][right] + form.literals[slot + 2] * (slot + 2 == len(form))
        here = form.slots[slot][choice]
        return before + here + after, before, here

    def _fill(self, texts: list[str]) -> None:
        missing = [text for text in dict.fromkeys(texts) if text not in self._encoded]
        for text, ids in zip(missing, self._info.encode_batch(missing), strict=True):
            self._encoded[text] = (ids, self._info.offsets(ids, text))

    def cut(self, joint: int) -> int | None:
        """Byte offset in ``literals[joint]`` that is a token boundary in every window, or ``None``."""
        size = len(self._form.literals[joint].encode())
        common = set(range(size + 1))
        for choice in range(len(self._form.slots[joint - 1])):
            window, before, here = self._text(joint - 1, choice)
            common &= self._boundaries(window, len((before + here).encode()), size)
        for choice in range(len(self._form.slots[joint])):
            window, before, _ = self._text(joint, choice)
            common &= self._boundaries(window, len(before.encode()) - size, size)
        inner = [at for at in common if 0 < at < size]
        if inner:
            return max(inner)
        # A cut that touches a choice depends on both neighbours, so every pair has to agree.
        edges = sorted(common, reverse=True)
        pairs = list(product(range(len(self._form.slots[joint - 1])), range(len(self._form.slots[joint]))))
        if not edges or len(pairs) > _ALL_PAIRS:
            return None
        self._fill([self._text(joint, right, left)[0] for left, right in pairs])
        for left, right in pairs:
            window, before, _ = self._text(joint, right, left)
            common &= self._boundaries(window, len(before.encode()) - size, size)
        return max(common, default=None)

    def _boundaries(self, window: str, start: int, size: int) -> set[int]:
        offsets = self._encoded[window][1]
        return {at - start for at in offsets if start <= at <= start + size}

    def segment(self, slot: int, choice: int, left_cut: int | None, right_cut: int | None) -> list[int]:
        """Tokens of ``choice`` in ``slot`` from the cut on its left to the cut on its right."""
        window, before, here = self._text(slot, choice)
        ids, offsets = self._encoded[window]
        first, last = 0, len(ids)
        if left_cut is not None:
            first = offsets.index(len(before.encode()) - len(self._form.literals[slot].encode()) + left_cut)
        if right_cut is not None:
            last = offsets.index(len((before + here).encode()) + right_cut)
        return ids[first:last]


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
