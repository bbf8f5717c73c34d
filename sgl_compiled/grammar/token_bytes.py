"""Readers that tell the bytes of every token id, one a family of tokenizers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from sgl_compiled.errors import UnsupportedError

__all__ = ["read_token_bytes"]

TokenBytes = list[bytes | None]

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_START = "\u2581"


def read_token_bytes(tokenizer: Any) -> TokenBytes:
    """Return what each id of a tokenizer writes, None for special, unused and empty ids.

    Raises
    ------
    UnsupportedError
        When the tokenizer is of no known family.
    """
    for candidate in _wrapped(tokenizer):
        for attribute, reader in _READERS:
            if hasattr(candidate, attribute):
                return reader(candidate)
    raise UnsupportedError(
        f"The bytes of the tokens of {type(tokenizer).__name__} cannot be told; use a Hugging Face fast tokenizer, "
        "a tiktoken encoding or a mistral_common tokenizer."
    )


def _wrapped(tokenizer: Any) -> Iterator[Any]:
    """Yield the tokenizer and what it wraps; transformers wraps mistral_common, which wraps the model, for one."""
    for _ in range(4):
        yield tokenizer
        inner = getattr(tokenizer, "instruct_tokenizer", None) or getattr(tokenizer, "tokenizer", None)
        if inner is None:
            return
        tokenizer = inner


def _read_hugging_face(tokenizer: Any) -> TokenBytes:
    write = _piece_writer(tokenizer.backend_tokenizer, type(tokenizer).__name__)
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    added: dict[int, Any] = tokenizer.added_tokens_decoder
    rows: TokenBytes = [None] * (max([*vocabulary.values(), *added], default=-1) + 1)
    for piece, index in vocabulary.items():
        rows[index] = write(piece) or None
    special = set(tokenizer.all_special_ids)
    for index, token in added.items():
        # Added tokens are literal text, outside the model's own alphabet of pieces.
        rows[index] = None if token.special else token.content.encode() or None
    for index in special:
        rows[index] = None
    return rows


def _piece_writer(backend: Any, name: str) -> Callable[[str], bytes]:
    """Choose how a piece is turned into bytes from the pipeline that the tokenizer decodes with."""
    kinds = _component_types(backend.decoder) | _component_types(backend.pre_tokenizer)
    if "ByteLevel" in kinds:
        return _byte_level_piece
    if kinds & {"ByteFallback", "Metaspace", "Replace"} and "WordPiece" not in kinds:
        return _sentencepiece_with_bytes if "ByteFallback" in kinds else _sentencepiece
    raise UnsupportedError(
        f"{name} decodes its tokens with {sorted(kinds) or 'nothing'}, so the bytes of one token are not defined; "
        "use a byte-level or SentencePiece tokenizer."
    )


def _component_types(component: Any) -> set[str]:
    """Type names in one part of a `tokenizers` pipeline, sequences unfolded."""
    if component is None:
        return set()
    pending: list[dict[str, Any]] = [json.loads(component.__getstate__())]
    kinds: set[str] = set()
    while pending:
        part = pending.pop()
        kinds.add(part["type"])
        pending += part.get("decoders", []) + part.get("pretokenizers", [])
    return kinds


def _byte_level_piece(piece: str) -> bytes:
    table = _byte_alphabet()
    try:
        return bytes([table[char] for char in piece])
    except KeyError:
        # The byte-level decoder passes a piece with foreign characters through as text.
        return piece.encode()


@cache
def _byte_alphabet() -> dict[str, int]:
    """Characters that stand for bytes: printable Latin-1 for itself, the others in order from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


def _sentencepiece(piece: str) -> bytes:
    return piece.replace(_WORD_START, " ").encode()


def _sentencepiece_with_bytes(piece: str) -> bytes:
    match = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else _sentencepiece(piece)


def _read_tiktoken(encoding: Any) -> TokenBytes:
    special = {encoding.encode_single_token(text) for text in encoding.special_tokens_set}
    rows: TokenBytes = [None] * encoding.n_vocab
    for index in range(encoding.n_vocab):
        if index not in special:
            try:
                rows[index] = encoding.decode_single_token_bytes(index) or None
            except KeyError:  # a hole in the numbering
                rows[index] = None
    return rows


def _read_tekken(tokenizer: Any) -> TokenBytes:
    return [tokenizer.id_to_byte_piece(index) or None for index in range(tokenizer.n_words)]


def _read_mistral_sentencepiece(tokenizer: Any) -> TokenBytes:
    rows: TokenBytes = []
    for index in range(tokenizer.n_words):
        silent = tokenizer.is_special(index) or index == tokenizer.unk_id
        rows.append(None if silent else _sentencepiece_with_bytes(tokenizer.id_to_piece(index)) or None)
    return rows


# The first attribute that an object has names its family; the order matters where one has several.
_READERS: tuple[tuple[str, Callable[[Any], TokenBytes]], ...] = (
    ("backend_tokenizer", _read_hugging_face),
    ("decode_single_token_bytes", _read_tiktoken),
    ("id_to_byte_piece", _read_tekken),
    ("id_to_piece", _read_mistral_sentencepiece),
)
