"""Compile an action grammar for a tokenizer: one call, cached, independent of any prompt."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from sgl_compiled.errors import GrammarError, GrammarTooLargeError
from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.automaton import ByteAutomaton
from sgl_compiled.grammar.bounded import BoundedSpelling
from sgl_compiled.grammar.canonical import EnumeratedSlots, compile_slots
from sgl_compiled.grammar.form import SlotForm
from sgl_compiled.grammar.layout import Horizon, TreeLayout, actions_ahead, unfold
from sgl_compiled.grammar.likely import DEFAULT_RULE, TreeRule, unfold_likely
from sgl_compiled.grammar.limits import DEFAULT_LIMITS, Limits
from sgl_compiled.grammar.regex import compile_regex, require_finite, require_texts
from sgl_compiled.grammar.regex_groups import GroupReader
from sgl_compiled.grammar.slot_language import SlotLanguage
from sgl_compiled.grammar.slots import SlotAutomaton
from sgl_compiled.grammar.spellings import SpellingAutomaton
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
    whole : bool
        False if ``max_tokens`` cut the text off; it has no groups then.
    """

    text: str
    labels: tuple[str, ...] = ()
    indices: tuple[int, ...] = ()
    groups: tuple[str | None, ...] = ()
    named: dict[str, str | None] | None = None
    whole: bool = True


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
        Number of answers; stops at 2**62.
    horizon : int
        Actions from start to end: the slots of a label grammar; for a regex the most decisions on a path, or 1 with
        ``spelling="any"``.
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
    _read: Callable[[State, Sequence[int]], Answer]
    _limits: Limits = DEFAULT_LIMITS

    def answer(self, state: State, tokens: Sequence[int] = ()) -> Answer:
        """Return the answer that ends at an accepting ``state``; only ``spelling="any"`` needs its ``tokens``."""
        assert self.automaton.accepts(state)
        return self._read(state, tokens)

    def unfold(
        self,
        state: State,
        horizon: Horizon,
        max_positions: int,
        rule: TreeRule = DEFAULT_RULE,
        seconds: float | None = None,
    ) -> TreeLayout:
        """Return the tree that one pass evaluates from ``state`` on.

        Raises
        ------
        GrammarTooLargeError
            It would exceed ``max_positions``.
        """
        if isinstance(self.automaton, SpellingAutomaton | BoundedSpelling):
            return unfold_likely(
                self.automaton,
                state,
                horizon,
                stop_ids=self.stop_ids,
                max_positions=max_positions,
                limits=self._limits,
                rule=rule,
                seconds=seconds,
            )
        return unfold(self.automaton, state, horizon, stop_ids=self.stop_ids, max_positions=max_positions)

    def typical(self, state: State) -> tuple[int, State]:
        """Return the middle answer's next id and the state behind it, for estimates of sizes; not at the end."""
        automaton = self.automaton
        if isinstance(automaton, SlotAutomaton | TrieAutomaton):
            following, behind = list(automaton.step(state).items()), automaton.behind(state)
        else:
            spelled = automaton.canonical(state) if isinstance(automaton, SpellingAutomaton | BoundedSpelling) else None
            following = list((spelled or automaton.step(state)).items())
            behind = [1] * len(following)
        return following[bisect_right(list(accumulate(behind)), sum(behind) // 2)]

    @property
    def grown(self) -> bool:
        """Whether walks met so many states that a fresh automaton should take over."""
        return isinstance(self.automaton, SpellingAutomaton | BoundedSpelling) and self.automaton.grown

    def learn(self, state: State, tokens: Sequence[int]) -> None:
        """Tell the grammar which tokens a walk took from ``state`` on, so that later trees follow them."""
        if isinstance(self.automaton, SpellingAutomaton | BoundedSpelling):
            self.automaton.learn(state, tokens)


def compile_grammar(
    grammar: ActionGrammar, info: TokenizerInfo, spelling: Spelling = "canonical", limits: Limits = DEFAULT_LIMITS
) -> CompiledGrammar:
    """Compile ``grammar`` for the tokenizer ``info``.

    Raises
    ------
    GrammarError
        Empty or infinite language, labels the tokenizer cannot spell.
    GrammarTooLargeError
        A documented limit is exceeded.
    """
    if spelling == "any":
        return _compile_any(grammar, info, limits)
    if grammar.max_tokens is not None:
        raise GrammarError("max_tokens needs spelling='any': a canonical answer is a whole one")
    if grammar.regex is None:
        form = grammar.form()
        slots = compile_slots(form, info, limits)
        return CompiledGrammar(
            grammar,
            slots,
            info.vocabulary.stop_ids,
            spelling,
            form.count,
            len(form),
            slots.max_tokens,
            _label_reader(grammar, slots),
        )
    language = require_finite(compile_regex(grammar.regex, limits))
    count = language.count(limits.max_strings + 1)
    if count > limits.max_strings:
        raise GrammarTooLargeError(
            f"the regex has more than {limits.max_strings} strings, too many to spell one by one; narrow it, or use "
            "spelling='any'"
        )
    if language.size() > limits.max_strings_bytes:
        raise GrammarTooLargeError(
            f"the regex's {count} strings hold {language.size()} bytes in all, too many to spell one by one (limit "
            f"{limits.max_strings_bytes}); shorten or narrow it, or use spelling='any'"
        )
    texts = [data.decode() for data in language.strings(limits.max_strings)]
    answers = info.encode_batch(texts)
    for text, ids in zip(texts, answers, strict=True):
        info.offsets(ids, text)
    automaton = TrieAutomaton(answers)
    reader = _group_reader(grammar.regex, limits)
    return CompiledGrammar(
        grammar,
        automaton,
        info.vocabulary.stop_ids,
        spelling,
        count,
        _deepest(automaton),
        automaton.max_tokens,
        lambda state, _: reader(texts[automaton.answer(state)]),
    )


def _compile_any(grammar: ActionGrammar, info: TokenizerInfo, limits: Limits) -> CompiledGrammar:
    """Compile without enumerating: the automaton is expanded as the walk goes."""
    language: SlotLanguage | ByteAutomaton
    if grammar.regex is None:
        form = grammar.form()
        slots = language = SlotLanguage(form)
        count, horizon = form.count, len(form)
        longest = form.longest
        read = _text_reader(grammar, slots)
    else:
        found = compile_regex(grammar.regex, limits)
        language = require_finite(found) if grammar.max_tokens is None else require_texts(found)
        # One byte a token is the longest way to spell an answer.
        longest = grammar.max_tokens or found.longest()
        count, horizon = found.count(2**62), 1
        read = _group_reader(grammar.regex, limits)
    vocabulary = info.vocabulary
    # Where an answer is cut off depends on how its end is spelled.
    spelled = SpellingAutomaton(language, info, spell_rest=grammar.max_tokens is None)
    automaton = spelled if grammar.max_tokens is None else BoundedSpelling(spelled, grammar.max_tokens)

    def read_tokens(state: State, tokens: Sequence[int]) -> Answer:
        data = b"".join(vocabulary.token_bytes[token] or b"" for token in tokens)
        if isinstance(automaton, BoundedSpelling) and not automaton.whole(state):
            return Answer(data.decode(errors="replace"), whole=False)
        return read(data.decode())

    compiled = CompiledGrammar(
        grammar,
        automaton,
        vocabulary.stop_ids,
        "any",
        count,
        horizon,
        longest,
        read_tokens,
        limits,
    )
    # The first tree costs the most, and this is not a thread that others wait for.
    with suppress(GrammarTooLargeError):
        compiled.unfold(
            automaton.start,
            actions_ahead(automaton, automaton.start, 1),
            limits.max_tree_positions,
            seconds=limits.compile_seconds,
        )
    return compiled


def _deepest(trie: TrieAutomaton) -> int:
    return max(trie.actions(state) for state in trie.ends())


def _slot_answer(grammar: ActionGrammar, form: SlotForm, chosen: tuple[int, ...] | None) -> Answer:
    assert chosen is not None
    labels = tuple((grammar.labels or form.slots[slot])[index] for slot, index in enumerate(chosen))
    return Answer(form.text(chosen), labels, chosen)


def _label_reader(
    grammar: ActionGrammar, slots: SlotAutomaton | EnumeratedSlots
) -> Callable[[State, Sequence[int]], Answer]:
    def read(state: State, _: Sequence[int]) -> Answer:
        return _slot_answer(grammar, slots.form, slots.chosen(state))

    return read


def _text_reader(grammar: ActionGrammar, slots: SlotLanguage) -> Callable[[str], Answer]:
    return lambda text: _slot_answer(grammar, slots.form, slots.read(text.encode()))


def _group_reader(pattern: str, limits: Limits) -> Callable[[str], Answer]:
    reader = GroupReader(pattern, limits)

    def read(text: str) -> Answer:
        groups = reader.read(text)
        assert groups is not None
        return Answer(text, groups=groups.all, named=groups.named)

    return read


class GrammarCompiler:
    """Compiles for one tokenizer and keeps the most recent results.

    Safe to call from several threads; a grammar that several ask for at once is compiled by the first of them.
    """

    def __init__(self, info: TokenizerInfo, *, limits: Limits = DEFAULT_LIMITS, capacity: int = 256) -> None:
        self.info = info
        self._limits = limits
        self._capacity = capacity
        self._cache: OrderedDict[tuple[ActionGrammar, Spelling], Future[CompiledGrammar]] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, grammar: ActionGrammar, spelling: Spelling = "canonical") -> CompiledGrammar:
        """Return the compiled grammar, from the cache if it is there; see :func:`compile_grammar`."""
        key = (grammar, spelling)
        with self._lock:
            known = self._cache.get(key)
            if known is not None and known.done() and known.result().grown:
                known = None  # walks under way keep the old one
            future = self._cache[key] = known or Future()
            self._cache.move_to_end(key)
        if known is not None:
            return known.result()
        try:
            compiled = compile_grammar(grammar, self.info, spelling, self._limits)
        except BaseException as error:
            # Those who wait fail alike; those who come later try again.
            with self._lock:
                if self._cache.get(key) is future:
                    del self._cache[key]
            future.set_exception(error)
            del future  # or the error's traceback would hold what holds the error
            raise
        future.set_result(compiled)
        with self._lock:
            while len(self._cache) > self._capacity:
                self._cache.popitem(last=False)
        return compiled
