"""Compile an action grammar for a tokenizer: one call, cached, independent of any prompt."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from sgl_compiled.errors import GrammarError, GrammarTooLargeError
from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.canonical import EnumeratedSlots, compile_slots
from sgl_compiled.grammar.limits import DEFAULT_LIMITS, Limits
from sgl_compiled.grammar.regex import compile_regex, require_finite
from sgl_compiled.grammar.regex_groups import GroupReader
from sgl_compiled.grammar.slots import SlotAutomaton
from sgl_compiled.grammar.tokenizer import TokenizerInfo
from sgl_compiled.grammar.tokens import State, TokenAutomaton
from sgl_compiled.grammar.trie import TrieAutomaton

__all__ = ["Answer", "CompiledGrammar", "GrammarCompiler", "Spelling", "compile_grammar"]

Spelling = Literal["canonical", "any"]


@dataclass(frozen=True)
class Answer:
    """One string of the language.

    Attributes
    ----------
    text : str
        The whole answer, scaffold included.
    labels, indices : tuple
        Chosen labels and their places in the label list; empty for a regex.
    groups : tuple of (str or None)
        What the regex's groups match in ``text``; empty for labels.
    named : dict
        The same for named groups.
    """

    text: str
    labels: tuple[str, ...] = ()
    indices: tuple[int, ...] = ()
    groups: tuple[str | None, ...] = ()
    named: dict[str, str | None] | None = None


@dataclass(frozen=True, eq=False)
class CompiledGrammar:
    """A grammar and its token automaton for one tokenizer.

    Attributes
    ----------
    grammar : ActionGrammar
    automaton : TokenAutomaton
    stop_ids : frozenset of int
        Legal where the answer may end but need not.
    spelling : {"canonical", "any"}
    count : int
        Number of answers.
    horizon : int
        Actions from start to end: the slots of a label grammar, the most decisions on a path otherwise.
    max_tokens : int
        Tokens of the longest answer.
    """

    grammar: ActionGrammar
    automaton: TokenAutomaton
    stop_ids: frozenset[int]
    spelling: Spelling
    count: int
    horizon: int
    max_tokens: int
    _read: Callable[[State], Answer]

    def answer(self, state: State) -> Answer:
        """Return the answer that ends at an accepting ``state``."""
        assert self.automaton.accepts(state)
        return self._read(state)


def compile_grammar(
    grammar: ActionGrammar, info: TokenizerInfo, spelling: Spelling = "canonical", limits: Limits = DEFAULT_LIMITS
) -> CompiledGrammar:
    """Compile ``grammar`` for the tokenizer ``info``.

    Raises
    ------
    GrammarError
        Empty or infinite language, labels the tokenizer cannot spell, an unsupported spelling.
    GrammarTooLargeError
        A documented limit is exceeded.
    """
    if spelling != "canonical":
        raise GrammarError(f"spelling {spelling!r} is not available; use spelling='canonical'")
    if grammar.regex is None:
        form = grammar.form()
        slots = compile_slots(form, info, limits)
        horizon = len(form) if isinstance(slots, SlotAutomaton) else _deepest(slots)
        return CompiledGrammar(
            grammar,
            slots,
            info.vocabulary.stop_ids,
            spelling,
            form.count,
            horizon,
            slots.max_tokens,
            _label_reader(grammar, slots),
        )
    language = require_finite(compile_regex(grammar.regex, limits))
    count = language.count(limits.max_strings + 1)
    if count > limits.max_strings:
        raise GrammarTooLargeError(
            f"the regex has more than {limits.max_strings} strings, too many to spell one by one; narrow it, or use "
            "gen(regex=...) for this field"
        )
    texts = [data.decode() for data in language.strings(limits.max_strings)]
    answers = info.encode_batch(texts)
    for text, ids in zip(texts, answers, strict=True):
        info.offsets(ids, text)
    automaton = TrieAutomaton(answers)
    read = _regex_reader(grammar.regex, texts, automaton)
    return CompiledGrammar(
        grammar,
        automaton,
        info.vocabulary.stop_ids,
        spelling,
        count,
        _deepest(automaton),
        automaton.max_tokens,
        read,
    )


def _deepest(trie: TrieAutomaton) -> int:
    return max(trie.actions(state) for state in trie.ends())


def _label_reader(grammar: ActionGrammar, slots: SlotAutomaton | EnumeratedSlots) -> Callable[[State], Answer]:
    form = slots.form

    def read(state: State) -> Answer:
        chosen = slots.chosen(state)
        assert chosen is not None
        return Answer(form.text(chosen), tuple(grammar.labels[index] for index in chosen), chosen)

    return read


def _regex_reader(pattern: str, texts: Sequence[str], trie: TrieAutomaton) -> Callable[[State], Answer]:
    reader = GroupReader(pattern)

    def read(state: State) -> Answer:
        text = texts[trie.answer(state)]
        groups = reader.read(text)
        assert groups is not None
        return Answer(text, groups=groups.all, named=groups.named)

    return read


class GrammarCompiler:
    """Compiles for one tokenizer and keeps the most recent results.

    Safe to call from several threads; a grammar that two requests ask for at once is compiled twice at worst.
    """

    def __init__(self, info: TokenizerInfo, *, limits: Limits = DEFAULT_LIMITS, capacity: int = 256) -> None:
        self.info = info
        self._limits = limits
        self._capacity = capacity
        self._cache: OrderedDict[tuple[ActionGrammar, Spelling], CompiledGrammar] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, grammar: ActionGrammar, spelling: Spelling = "canonical") -> CompiledGrammar:
        """Return the compiled grammar, from the cache if it is there; see :func:`compile_grammar`."""
        key = (grammar, spelling)
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        compiled = compile_grammar(grammar, self.info, spelling, self._limits)
        with self._lock:
            self._cache[key] = compiled
            while len(self._cache) > self._capacity:
                self._cache.popitem(last=False)
        return compiled
