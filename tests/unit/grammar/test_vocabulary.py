"""Vocabularies as bytes: readers, padding, stop ids, fingerprints."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sgl_compiled.errors import GrammarError, UnsupportedError
from sgl_compiled.grammar.vocabulary import Vocabulary


def hugging_face(vocabulary: dict[str, int], *, kind: str, **model: object) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], **model))
    if kind == "byte-level":
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
    elif kind == "sentencepiece":
        backend.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    elif kind == "metaspace":
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        backend.decoder = decoders.Metaspace()
    elif kind == "wordpiece":
        backend.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


def test_byte_level() -> None:
    tokenizer = hugging_face({"</s>": 0, "A": 1, "ĠA": 2, "Ċ": 3, "ł": 4, "Ã©": 5, "日": 6}, kind="byte-level")
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    assert vocabulary.token_bytes == (None, b"A", b" A", b"\n", b"\xa0", "é".encode(), "日".encode())
    assert vocabulary.stop_ids == {0}


def test_sentencepiece_with_byte_fallback() -> None:
    tokenizer = hugging_face(
        {"</s>": 0, "▁A": 1, "▁": 2, "<0x20>": 3, "<0xE9>": 4, "a▁b": 5}, kind="sentencepiece", byte_fallback=True
    )
    rows = Vocabulary.from_tokenizer(tokenizer).token_bytes
    assert rows == (None, b" A", b" ", b" ", b"\xe9", b"a b")


def test_without_byte_fallback_a_byte_piece_is_text() -> None:
    tokenizer = hugging_face({"</s>": 0, "▁A": 1, "<0x20>": 2}, kind="metaspace")
    assert Vocabulary.from_tokenizer(tokenizer).token_bytes == (None, b" A", b"<0x20>")


def test_added_tokens_write_their_text_unless_special() -> None:
    tokenizer = hugging_face({"</s>": 0, "A": 1}, kind="byte-level")
    tokenizer.add_tokens([AddedToken("<LBL 7>", lstrip=True, rstrip=True), AddedToken("é")])
    tokenizer.add_tokens([AddedToken("<|im_end|>", special=True)])
    assert Vocabulary.from_tokenizer(tokenizer).token_bytes == (None, b"A", b"<LBL 7>", "é".encode(), None)


def test_width_of_the_logits() -> None:
    tokenizer = hugging_face({"</s>": 0, "A": 1, "B": 2}, kind="byte-level")
    assert Vocabulary.from_tokenizer(tokenizer, vocab_size=5).token_bytes == (None, b"A", b"B", None, None)
    assert Vocabulary.from_tokenizer(tokenizer, vocab_size=2).token_bytes == (None, b"A")


def test_unknown_families_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="WordPiece"):
        Vocabulary.from_tokenizer(hugging_face({"</s>": 0, "##a": 1}, kind="wordpiece"))
    with pytest.raises(UnsupportedError, match="object cannot be told"):
        Vocabulary.from_tokenizer(object())


def test_stop_ids_write_nothing_and_must_exist() -> None:
    vocabulary = Vocabulary((b"a", b"b", b""), frozenset({1}))
    assert vocabulary.token_bytes == (b"a", None, None)
    with pytest.raises(GrammarError, match=r"Stop ids \[3\]"):
        Vocabulary((b"a",), frozenset({0, 3}))


def test_fingerprint_covers_bytes_order_and_stop_ids() -> None:
    base = Vocabulary((None, b"ab", b"c"), frozenset({0}))
    assert base == Vocabulary((None, b"ab", b"c"), frozenset({0}))
    assert hash(base) == hash(Vocabulary((b"x", b"ab", b"c"), frozenset({0})))
    others = [
        Vocabulary((None, b"c", b"ab"), frozenset({0})),
        Vocabulary((None, b"a", b"bc"), frozenset({0})),
        Vocabulary((None, b"ab", b"c", None), frozenset({0})),
        Vocabulary((None, b"ab", b"c"), frozenset()),
        Vocabulary((b"x", b"ab", b"c"), frozenset()),
    ]
    assert len({base, *others}) == 6


def test_sorted_tokens_keep_every_id_of_equal_bytes() -> None:
    tokens = Vocabulary((b"b", b"a", None, b"ab", b"a", b"\xff"), frozenset({2})).sorted_tokens
    assert tokens.ids.tolist() == [1, 4, 3, 0, 5]
    assert tokens.lengths.tolist() == [1, 1, 2, 1, 1]
    assert bytes(tokens.data) == b"aaabb\xff"
    assert tokens.first_byte[[0x61, 0x62, 0x63, 0xFF, 0x100]].tolist() == [0, 3, 4, 4, 5]


def test_a_vocabulary_may_be_all_special() -> None:
    assert len(Vocabulary((None, None), frozenset({1})).sorted_tokens.ids) == 0
