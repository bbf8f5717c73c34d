"""Our reading of tokenizers against the engines' own, token by token, and against the tokenizers' decoding."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tokenizers import decoders
from tokenizers_available import NAMES, load, qwen_ranks

from sgl_compiled.grammar.vocabulary import Vocabulary

FAST = [name for name in NAMES if name != "mistral-tekken"]
TEXTS = [
    '{"sections": ["Introduction", "Ergebnisse über Öl", "结论"]}',
    "  two  spaces\n\ttab 🙂🙈 naïve cafe\u0301",
    "<|im_end|> </s> <tool_call> 1234.5e-6 `code` \\n \u00a0 \ufffd",
]


def fast_tokenizer(name: str) -> Any:
    tokenizer = load(name)
    if name == "smollm2":
        # transformers leaves a decoder of mixed kinds on tokenizers read from GGUF, which makes llguidance and
        # xgrammar take this byte-level vocabulary for a SentencePiece one (docs/semantics.md).
        tokenizer.backend_tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.mark.parametrize("name", NAMES)
def test_tokens_write_the_encoded_text(name: str) -> None:
    tokenizer = load(name)
    rows = Vocabulary.from_tokenizer(tokenizer).token_bytes
    draw = random.Random(7)
    samples = ["".join(chr(draw.choice([draw.randrange(32, 127), draw.randrange(0xA0, 0x2000)])) for _ in range(30))]
    for text in TEXTS + samples * 20:
        options = {} if name == "mistral-tekken" else {"split_special_tokens": True}
        ids = tokenizer(text, add_special_tokens=False, **options)["input_ids"]
        written = b"".join(rows[index] or b"" for index in ids)
        # SentencePiece puts a word start before the text.
        assert written.removeprefix(b" ") == text.encode().removeprefix(b" ")


def test_gguf_decoder_does_not_change_our_reading() -> None:
    tokenizer = fast_tokenizer("smollm2")
    plain = Vocabulary.from_tokenizer(tokenizer)
    tokenizer.backend_tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Fuse(), decoders.Replace("▁", " "), decoders.ByteLevel()]
    )
    assert Vocabulary.from_tokenizer(tokenizer) == plain


def test_all_families_can_write_every_byte_of_utf8() -> None:
    for name in NAMES:
        writable = {data[0] for data in Vocabulary.from_tokenizer(load(name)).token_bytes if data and len(data) == 1}
        assert set(range(0x20, 0x7F)) | set(range(0x80, 0xC0)) <= writable, name


def test_tiktoken_encoding_and_fast_tokenizer_agree() -> None:
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe

    ranks = load_tiktoken_bpe(str(qwen_ranks()))
    special = {"<|endoftext|>": len(ranks), "<|im_start|>": len(ranks) + 1, "<|im_end|>": len(ranks) + 2}
    encoding = tiktoken.Encoding("qwen", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens=special)
    stops = frozenset({special["<|im_end|>"]})
    assert Vocabulary.from_tokenizer(encoding, stop_ids=stops) == Vocabulary.from_tokenizer(load("qwen-tiktoken"))


def test_sentencepiece_model_and_fast_tokenizer_agree() -> None:
    import mistral_common
    from transformers.tokenization_mistral_common import MistralCommonBackend

    path = f"{mistral_common.__path__[0]}/data/tokenizer.model.v1"
    model = Vocabulary.from_tokenizer(MistralCommonBackend(tokenizer_path=path))
    assert model == Vocabulary.from_tokenizer(load("mistral-sentencepiece"))


@pytest.mark.parametrize("name", FAST)
def test_llguidance_reads_the_same_bytes(name: str) -> None:
    from llguidance.hf import from_tokenizer

    tokenizer = fast_tokenizer(name)
    rows, engine = Vocabulary.from_tokenizer(tokenizer).token_bytes, from_tokenizer(tokenizer)
    for index, data in enumerate(rows):
        if data == b"\xff":  # llguidance's mark of special tokens; no UTF-8 text holds it
            continue
        assert engine.is_special_token(index) == (data is None)
        assert data is None or engine.decode_bytes([index]) == data


@pytest.mark.parametrize("name", FAST)
def test_xgrammar_reads_the_same_bytes(name: str) -> None:
    import xgrammar

    tokenizer = fast_tokenizer(name)
    rows = Vocabulary.from_tokenizer(tokenizer).token_bytes
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer)
    for data, theirs in zip(rows, info.decoded_vocab, strict=True):
        # Special tokens are text there, so a label such as <|im_start|> may be spelled by the special id.
        assert theirs == data if data is not None else theirs.startswith(b"<")


@pytest.mark.parametrize("name", FAST)
def test_outlines_reads_the_same_bytes(name: str) -> None:
    from outlines.models.transformers import TransformerTokenizer
    from outlines_core.fsm.regex import byte_symbol, reduced_vocabulary

    tokenizer = fast_tokenizer(name)
    rows = Vocabulary.from_tokenizer(tokenizer).token_bytes
    texts, empty = reduced_vocabulary.__wrapped__(TransformerTokenizer(tokenizer))
    theirs = {index: text for text, ids in texts.items() for index in ids}
    assert not empty
    for index, data in enumerate(rows):
        text = theirs.get(index)
        if data is None:
            # Only `all_special_tokens` are special there; the others can spell their own text.
            assert text is None or tokenizer.added_tokens_decoder[index].special
            continue
        assert text in {data.decode(errors="replace"), "".join(byte_symbol(byte) for byte in data)}
        assert "\ufffd" not in (text or "") or "\ufffd".encode() in data
