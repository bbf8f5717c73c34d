"""`spelling="any"` as a token automaton: every spelling is legal, the likely ones are known."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from sgl_compiled.grammar.automaton import ByteLanguage
from sgl_compiled.grammar.legality import AnySpelling
from sgl_compiled.grammar.tokenizer import TokenizerInfo

__all__ = ["SpellingAutomaton"]

_WINDOW_BYTES = 24
_BRANCHING_BYTES = 12
_MAX_WINDOWS = 1_024
_REST_BYTES = 64
_HABITS = 4
_MOST_STATES = 65_536  # of about a kilobyte each


class SpellingAutomaton:
    """Token automaton of all spellings of a byte language; states are the language's, expanded as the walk goes.

    Where a single text is left nothing is decided any more: the automaton then follows the tokenizer's own spelling of
    the rest, a function of the state alone, so that every process continues with the same ids.

    Parameters
    ----------
    language
        Not empty.
    info
        The tokenizer.
    spell_rest
        Whether the tokenizer spells a single text that is left; otherwise the model does, token by token.
    """

    start = 0
    truncated = False

    def __init__(self, language: ByteLanguage, info: TokenizerInfo, *, spell_rest: bool = True) -> None:
        self._spell_rest = spell_rest
        self.spelling = AnySpelling(language, info.vocabulary)
        self._language = language
        self._info = info
        self._single: dict[int, Mapping[int, int] | None] = {}
        self._canonical: dict[int, dict[int, int]] = {}
        self._habits: dict[int, dict[int, int]] = {}
        # States are numbered as they are met, by whichever thread plans or walks.
        self._lock = threading.RLock()

    def step(self, state: int) -> Mapping[int, int]:
        """See :class:`~sgl_compiled.grammar.tokens.TokenAutomaton`."""
        with self._lock:
            if state not in self._single:
                self._single[state] = self._rest(state)
            rest = self._single[state]
            return self.spelling.step(state) if rest is None else rest

    @property
    def grown(self) -> bool:
        """Whether so many states were met that a fresh automaton should take over; none can be forgotten by itself."""
        return self.spelling.states_met > _MOST_STATES

    def accepts(self, state: int) -> bool:
        """See :class:`~sgl_compiled.grammar.tokens.TokenAutomaton`."""
        return self.spelling.accepts(state)

    def actions(self, state: int) -> int:
        """Return the slots filled for sure; a regular expression is one action, not resolved before its end."""
        return self.spelling.actions(state)

    def single(self, state: int) -> bool:
        """Tell whether one text is left, so that nothing is decided from here on."""
        with self._lock:
            return self._spell_rest and self._language.count_from(state, 2) == 1

    def canonical(self, state: int) -> Mapping[int, int]:
        """Return the legal ids with which the tokenizer itself spells some rest of the text, and where each leads."""
        with self._lock:
            known = self._canonical.get(state)
            if known is None:
                known = {}
                for token in self._first_tokens(self._windows(state)):
                    target = None if token is None else self.spelling.advance(state, token)
                    if token is not None and target is not None:
                        known[token] = target
                self._canonical[state] = known
            return known

    def likely(self, state: int) -> Mapping[int, int]:
        """Return those that won here before although they are not canonical, and the canonical ids."""
        return {**self._habits.get(state, {}), **self.canonical(state)}

    def learn(self, state: int, tokens: Sequence[int]) -> None:
        """Remember where decided tokens left the canonical spelling: a model spells alike the next time."""
        for token in tokens:
            following = self.step(state)
            if len(following) > 1 and token not in self.canonical(state):
                habits = self._habits.setdefault(state, {})
                habits.pop(token, None)
                habits[token] = following[token]
                if len(habits) > _HABITS:
                    del habits[next(iter(habits))]
            state = following[token]

    def _rest(self, state: int) -> Mapping[int, int] | None:
        """Return the one way on where a single text is left (none at its end), and None elsewhere."""
        if not self.single(state):
            return None
        window, at = bytearray(), state
        while len(window) < _REST_BYTES and (row := self._language.row(at)):
            ((byte, at),) = row.items()
            window.append(byte)
        if not window:
            return {}
        (token,) = self._first_tokens([bytes(window)])
        target = None if token is None else self.spelling.advance(state, token)
        # A vocabulary that cannot spell the rest is reported by the legal set.
        return self.spelling.step(state) if token is None or target is None else {token: target}

    def _windows(self, state: int) -> list[bytes]:
        """Return beginnings of the texts that may follow, long enough to tell their first tokens."""
        slot = self._language.slots_filled(state)
        closed: list[bytes] = []
        layer = [(b"", state)]
        for size in range(_WINDOW_BYTES):
            longer: list[tuple[bytes, int]] = []
            for data, at in layer:
                row = self._language.row(at)
                # What comes after the next choice, or far behind, multiplies the windows and not the first tokens.
                branches = len(row) > 1 and (size >= _BRANCHING_BYTES or self._language.slots_filled(at) > slot)
                if data and (branches or self._language.accepts(at)):
                    closed.append(data)
                if not branches:
                    longer += [(data + bytes((byte,)), target) for byte, target in row.items()]
            if len(longer) + len(closed) > _MAX_WINDOWS:
                break
            layer = longer
        return list(dict.fromkeys([*closed, *(data for data, _ in layer if data)]))

    def _first_tokens(self, windows: Sequence[bytes]) -> list[int | None]:
        """Return the id with which the tokenizer starts each of these texts, None where it has no way to."""
        texts = [_decodable(window) for window in windows]
        vocabulary = self._info.vocabulary
        out: list[int | None] = []
        for window, ids in zip(windows, self._info.encode_batch(texts), strict=True):
            piece = vocabulary.token_bytes[ids[0]] if ids and ids[0] < len(vocabulary) else None
            # A tokenizer that writes a space of its own before every text, or one that normalises, does not
            # tell how a text goes on.
            out.append(ids[0] if piece and window.startswith(piece) else self._fewest(window))
        return out

    def _fewest(self, data: bytes) -> int | None:
        """Return the first id of the spelling in the fewest tokens that gets furthest."""
        lowest, longest = self._info.vocabulary.lowest_ids, self._info.vocabulary.longest_token
        best: dict[int, tuple[int, int | None]] = {0: (0, None)}  # offset: tokens so far, the first of them
        for start in range(len(data)):
            if start not in best:
                continue
            count, first = best[start]
            for end in range(start + 1, min(start + longest, len(data)) + 1):
                token = lowest.get(data[start:end])
                if token is not None and (end not in best or best[end][0] > count + 1):
                    best[end] = (count + 1, token if first is None else first)
        return best[max(best)][1]


def _decodable(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode()
