"""The full legal set of `spelling="any"`: every id whose bytes keep the text a prefix of the language."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sgl_compiled.errors import GrammarError
from sgl_compiled.grammar.automaton import ByteLanguage
from sgl_compiled.grammar.vocabulary import Vocabulary

__all__ = ["AnySpelling", "LegalSet"]

# Legal sets kept, counted in ids (8 bytes each): wide states of a 150,000-token vocabulary must not pile up.
_CACHED_IDS = 4_000_000


class LegalSet(NamedTuple):
    """Legal next ids of one state, stop ids not included."""

    ids: NDArray[np.int32]  # [n] ascending token ids
    targets: NDArray[np.int32]  # [n] automaton state after each id


class _Steps(Mapping[int, int]):
    """A legal set as a mapping; as dictionaries the wide ones would take 100 bytes an id."""

    def __init__(self, found: LegalSet) -> None:
        self._found = found

    def __getitem__(self, token: int) -> int:
        at = int(np.searchsorted(self._found.ids, token))
        if at == len(self._found.ids) or self._found.ids[at] != token:
            raise KeyError(token)
        return int(self._found.targets[at])

    def __iter__(self) -> Iterator[int]:
        return iter(self._found.ids.tolist())

    def __len__(self) -> int:
        return len(self._found.ids)


class AnySpelling:
    """Token automaton of all spellings of a byte language, expanded lazily; its states are the automaton's.

    Parameters
    ----------
    language
        Expanded as far as the walk goes; it may be infinite, but not empty.
    vocabulary
        The tokens.
    """

    start = 0

    def __init__(self, language: ByteLanguage, vocabulary: Vocabulary) -> None:
        assert not language.is_empty()
        self.language = language
        self.vocabulary = vocabulary
        self._table = _Table(language)
        self._cache: OrderedDict[int, LegalSet] = OrderedDict()
        self._cached_ids = 0

    @property
    def states_met(self) -> int:
        """States of the language for which a row of the table is held."""
        return len(self._table.rows)

    def legal(self, state: int) -> LegalSet:
        """Return the legal ids of a state and where each leads (`accepts` tells whether the stop ids are legal too).

        Raises
        ------
        GrammarError
            When neither a token nor a stop id is legal: the vocabulary cannot spell the rest of the text.
        """
        found = self._cache.get(state)
        if found is not None:
            self._cache.move_to_end(state)
            return found
        found = _legal_set(self._table, self.vocabulary, state)
        if not len(found.ids) and not self.accepts(state):
            raise GrammarError(
                "The tokenizer has no token for the next byte of the grammar "
                f"({', '.join(f'0x{byte:02X}' for byte in self.language.row(state))}); use other labels."
            )
        self._cache[state] = found
        self._cached_ids += len(found.ids)
        while self._cached_ids > _CACHED_IDS and len(self._cache) > 1:
            self._cached_ids -= len(self._cache.popitem(last=False)[1].ids)
        return found

    def legal_ids(self, state: int) -> NDArray[np.int32]:
        """Return all legal ids of a state in ascending order, stop ids included where an answer may end."""
        ids = self.legal(state).ids
        if not self.accepts(state):
            return ids
        return np.sort(np.concatenate([ids, np.array(sorted(self.vocabulary.stop_ids), np.int32)]))

    def step(self, state: int) -> Mapping[int, int]:
        """Return the legal next ids (without stop ids) and where each leads, in ascending id order."""
        return _Steps(self.legal(state))

    def advance(self, state: int, token: int) -> int | None:
        """Return the state after one id, None when it is not legal (stop ids lead nowhere)."""
        data = self.vocabulary.token_bytes[token] if 0 <= token < len(self.vocabulary) else None
        return None if data is None else self.walk(state, data)

    def walk(self, state: int, data: bytes) -> int | None:
        """Follow bytes from a state; None as soon as no string of the language has that prefix."""
        for byte in data:
            target = self.language.row(state).get(byte)
            if target is None:
                return None
            state = target
        return state

    def accepts(self, state: int) -> bool:
        """Tell whether an answer may end here, so that the stop ids are legal."""
        return self.language.accepts(state)

    def actions(self, state: int) -> int:
        """Return how many slots are filled for sure; 0 everywhere in a language without slots."""
        return self.language.slots_filled(state)

    def remaining_is_single(self, state: int) -> bytes | None:
        """Return the rest of the text where exactly one is left (b"" at a final end), else None."""
        if self.language.count_from(state, 2) != 1:
            return None
        rest = bytearray()
        while row := self.language.row(state):
            ((byte, state),) = row.items()
            rest.append(byte)
        return bytes(rest)


class _Table:
    """Rows of the language as an array of shape [states met, 256], -1 where a byte does not continue."""

    def __init__(self, language: ByteLanguage) -> None:
        self.language = language
        self.rows = np.full((16, 256), -1, np.int32)
        self.filled = np.zeros(16, np.bool_)

    def at(self, state: int) -> NDArray[np.int32]:
        """Return one row."""
        self.fill(np.array([state], np.int32))
        row: NDArray[np.int32] = self.rows[state]
        return row

    def fill(self, states: NDArray[np.int32]) -> None:
        """Ask the language for the rows of these states that are not here yet."""
        top = int(states.max(initial=0)) + 1
        if top > len(self.rows):
            grow = max(top, 2 * len(self.rows)) - len(self.rows)
            self.rows = np.concatenate([self.rows, np.full((grow, 256), -1, np.int32)])
            self.filled = np.concatenate([self.filled, np.zeros(grow, np.bool_)])
        for state in set(states[~self.filled[states]].tolist()):
            row = self.language.row(state)
            self.rows[state, list(row)] = list(row.values())
            self.filled[state] = True


def _legal_set(table: _Table, vocabulary: Vocabulary, state: int) -> LegalSet:
    tokens = vocabulary.sorted_tokens
    # All candidate tokens walk the automaton side by side, one byte a round; most die in the first rounds.
    starts, ends = tokens.first_byte[:-1], tokens.first_byte[1:]
    row = table.at(state)
    bytes_here = np.flatnonzero((row >= 0) & (ends > starts))
    alive = _ranges(starts[bytes_here], ends[bytes_here])
    states = np.repeat(row[bytes_here], ends[bytes_here] - starts[bytes_here])
    found: list[tuple[NDArray[np.int64], NDArray[np.int32]]] = []
    depth = 1
    while len(alive):
        ended = tokens.lengths[alive] == depth
        found.append((alive[ended], states[ended]))
        alive, states = alive[~ended], states[~ended]
        table.fill(states)
        states = table.rows[states, tokens.data[tokens.offsets[alive] + depth]]
        living = states >= 0
        alive, states = alive[living], states[living]
        depth += 1
    if not found:
        return LegalSet(np.zeros(0, np.int32), np.zeros(0, np.int32))
    ids = tokens.ids[np.concatenate([rows for rows, _ in found])]
    targets = np.concatenate([ends for _, ends in found])
    order = np.argsort(ids)
    return LegalSet(ids[order], targets[order])


def _ranges(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Concatenate the integer ranges starts[i]..ends[i] - 1, none of them empty."""
    if not len(starts):
        return np.zeros(0, np.int64)
    return np.concatenate([np.arange(start, end) for start, end in zip(starts, ends, strict=True)])
