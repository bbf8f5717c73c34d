"""The vocabulary as bytes: what each token id writes, and which ids end an answer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sgl_compiled.errors import GrammarError
from sgl_compiled.grammar.token_bytes import read_token_bytes

__all__ = ["SortedTokens", "Vocabulary"]


class SortedTokens(NamedTuple):
    """All tokens that write something, sorted by bytes and then by id, as flat arrays of n tokens."""

    ids: NDArray[np.int32]  # [n] token ids
    lengths: NDArray[np.int32]  # [n] in bytes, at least 1
    offsets: NDArray[np.int64]  # [n] where each token starts in `data`
    data: NDArray[np.uint8]  # the tokens' bytes, one after the other
    first_byte: NDArray[np.int64]  # [257] tokens that start with byte b are first_byte[b]..first_byte[b + 1] - 1


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Bytes and stop ids of one tokenizer, as wide as the model's logits.

    Vocabularies are equal when their fingerprints are.

    Parameters
    ----------
    token_bytes
        What each id writes. None, or no bytes, for ids that can never be chosen inside an answer: special,
        reserved, padding and empty ones. Several ids may write the same bytes.
    stop_ids
        Ids that end an answer, the set that serial decoding honours. They write nothing, whatever
        `token_bytes` says.

    Raises
    ------
    GrammarError
        When a stop id lies outside the vocabulary.
    """

    token_bytes: tuple[bytes | None, ...] = field(repr=False)
    stop_ids: frozenset[int]
    fingerprint: str = field(init=False)  # filled in __post_init__, from everything that legality depends on

    def __post_init__(self) -> None:  # noqa: D105
        stops = frozenset(self.stop_ids)
        outside = sorted(stop for stop in stops if not 0 <= stop < len(self.token_bytes))
        if outside:
            raise GrammarError(
                f"Stop ids {outside} lie outside the vocabulary of {len(self.token_bytes)} ids; "
                "give the stop ids of this model, or its vocab_size."
            )
        rows = tuple(None if not data or index in stops else data for index, data in enumerate(self.token_bytes))
        object.__setattr__(self, "token_bytes", rows)
        object.__setattr__(self, "stop_ids", stops)
        object.__setattr__(self, "fingerprint", _fingerprint(rows, stops))

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, vocab_size: int | None = None, stop_ids: Iterable[int] = ()) -> Vocabulary:
        """Read a tokenizer.

        Parameters
        ----------
        tokenizer
            A Hugging Face fast tokenizer (byte-level BPE, or SentencePiece with or without byte fallback), a
            tiktoken encoding, a mistral_common tokenizer, or an object that wraps one of these.
        vocab_size
            Width of the model's logits. Ids beyond the tokenizer's own (padding) write nothing, and ids
            beyond this width do not exist. By default as wide as the tokenizer.
        stop_ids
            All ids at which serial decoding stops; the tokenizer's own end token alone when empty.

        Raises
        ------
        UnsupportedError
            When the bytes of its tokens cannot be told (WordPiece, for one).
        """
        rows = read_token_bytes(tokenizer)
        width = len(rows) if vocab_size is None else vocab_size
        rows = rows[:width] + [None] * (width - len(rows))
        stops = frozenset(stop_ids)
        if not stops and getattr(tokenizer, "eos_token_id", None) is not None:
            stops = frozenset({tokenizer.eos_token_id})
        return cls(tuple(rows), stops)

    def __len__(self) -> int:
        """Return the number of ids, special and padding ones included."""
        return len(self.token_bytes)

    def __eq__(self, other: object) -> bool:
        """Compare by fingerprint."""
        return isinstance(other, Vocabulary) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        """Hash the fingerprint."""
        return hash(self.fingerprint)

    @cached_property
    def sorted_tokens(self) -> SortedTokens:
        """The tokens in byte order, built on first use."""
        writing = [index for index, data in enumerate(self.token_bytes) if data is not None]
        order = sorted(writing, key=lambda index: self.token_bytes[index] or b"")
        pieces = [self.token_bytes[index] or b"" for index in order]
        lengths = np.fromiter(map(len, pieces), np.int32, len(pieces))
        ends = np.cumsum(lengths, dtype=np.int64)
        data = np.frombuffer(b"".join(pieces), np.uint8)
        offsets = ends - lengths
        first_byte = np.searchsorted(data[offsets], np.arange(257)) if pieces else np.zeros(257, np.int64)
        return SortedTokens(np.array(order, np.int32), lengths, offsets, data, first_byte)

    @cached_property
    def lowest_ids(self) -> dict[bytes, int]:
        """For the bytes of each token the lowest id that writes them."""
        out: dict[bytes, int] = {}
        for index, data in enumerate(self.token_bytes):
            if data is not None:
                out.setdefault(data, index)
        return out

    @cached_property
    def longest_token(self) -> int:
        """Bytes of the longest token."""
        return max(map(len, self.lowest_ids), default=0)


def _fingerprint(rows: tuple[bytes | None, ...], stops: frozenset[int]) -> str:
    lengths = np.fromiter((-1 if data is None else len(data) for data in rows), np.int64, len(rows))
    digest = hashlib.sha256(lengths.tobytes())
    digest.update(b"".join(data for data in rows if data is not None))
    digest.update(np.array(sorted(stops), np.int64).tobytes())
    return digest.hexdigest()
