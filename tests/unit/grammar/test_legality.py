"""The full legal set against its definition, on toy vocabularies."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_compiled.errors import GrammarError
from sgl_compiled.grammar import legality
from sgl_compiled.grammar.automaton import ByteAutomaton
from sgl_compiled.grammar.legality import AnySpelling
from sgl_compiled.grammar.regex import compile_regex
from sgl_compiled.grammar.vocabulary import Vocabulary

BYTES = [bytes([byte]) for byte in range(256)]


def legal_by_definition(strings: set[bytes], vocabulary: Vocabulary, text: bytes) -> list[int]:
    """Ids whose bytes keep the text a prefix of a string, and the stop ids if the text is one."""
    legal = [
        index
        for index, data in enumerate(vocabulary.token_bytes)
        if data is not None and any(string.startswith(text + data) for string in strings)
    ]
    return sorted(legal + (list(vocabulary.stop_ids) if text in strings else []))


@settings(max_examples=20, deadline=None)
@given(
    st.sets(st.text("abé", max_size=5).map(str.encode), min_size=1, max_size=8),
    st.lists(st.none() | st.binary(max_size=1) | st.text("abé", min_size=1, max_size=4).map(str.encode), max_size=20),
    st.sets(st.integers(0, 19), max_size=3),
)
def test_legal_set_is_the_definition_at_every_prefix(
    strings: set[bytes], pieces: list[bytes | None], stops: set[int]
) -> None:
    vocabulary = Vocabulary((*pieces, *BYTES), frozenset(stops))
    spelling = AnySpelling(ByteAutomaton.from_strings(strings), vocabulary)
    for text in {string[:end] for string in strings for end in range(len(string) + 1)}:
        state = spelling.walk(0, text)
        assert state is not None
        assert spelling.legal_ids(state).tolist() == legal_by_definition(strings, vocabulary, text)
        assert spelling.accepts(state) == (text in strings)
        rest = {string[len(text) :] for string in strings if string.startswith(text)}
        assert spelling.remaining_is_single(state) == (rest.pop() if len(rest) == 1 else None)
        for token, target in spelling.step(state).items():
            assert spelling.advance(state, token) == target
            assert spelling.walk(0, text + (vocabulary.token_bytes[token] or b"")) == target


def test_equal_bytes_are_separate_children() -> None:
    vocabulary = Vocabulary((None, b"a", b" ", b" ", b" b"), frozenset({0}))
    spelling = AnySpelling(compile_regex("a b"), vocabulary)
    after_a = spelling.step(0)[1]
    assert list(spelling.step(after_a)) == [2, 3, 4]


def test_special_empty_reserved_and_padding_ids_are_never_legal() -> None:
    vocabulary = Vocabulary((None, b"1", b"2", None, b"", None), frozenset({0}))
    spelling = AnySpelling(compile_regex("1|2"), vocabulary)
    assert spelling.legal_ids(0).tolist() == [1, 2]
    assert spelling.legal_ids(spelling.step(0)[1]).tolist() == [0]
    assert [spelling.advance(0, token) for token in (0, 3, 4, 5, 6, -1)] == [None] * 6


def test_stop_ids_compete_exactly_where_the_text_may_end() -> None:
    vocabulary = Vocabulary((None, b"A", b"B", b"AB", None), frozenset({0, 4}))
    spelling = AnySpelling(compile_regex("AB?"), vocabulary)
    assert spelling.legal_ids(0).tolist() == [1, 3]
    assert spelling.legal_ids(spelling.step(0)[1]).tolist() == [0, 2, 4]
    assert spelling.legal_ids(spelling.step(0)[3]).tolist() == [0, 4]


def test_replacement_characters_are_compared_as_bytes() -> None:
    vocabulary = Vocabulary(
        (None, b"ok", b"?", b"\xe5", b"\xef", b"\xbf", b"\xbd", b"\xe5?", "\ufffd".encode()), frozenset({0})
    )
    language = ByteAutomaton.from_strings(["\ufffd".encode(), "\ufffd?".encode(), b"ok"])
    assert AnySpelling(language, vocabulary).legal_ids(0).tolist() == [1, 4, 8]


def test_a_text_that_cannot_be_spelled_is_an_error_not_a_silent_end() -> None:
    spelling = AnySpelling(compile_regex("ax|b"), Vocabulary((None, b"a", b"b"), frozenset({0})))
    with pytest.raises(GrammarError, match="0x78"):
        spelling.legal(spelling.step(0)[1])


def test_infinite_languages_are_served() -> None:
    spelling = AnySpelling(compile_regex("a*"), Vocabulary((None, b"a", b"aa"), frozenset({0})))
    assert spelling.legal_ids(0).tolist() == [0, 1, 2]
    assert spelling.remaining_is_single(0) is None


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legality, "_CACHED_IDS", 600)
    spelling = AnySpelling(compile_regex("[\\x00-\\x7f]{10}"), Vocabulary((*BYTES, None), frozenset({256})))
    first = [spelling.legal_ids(state).tolist() for state in range(11)]
    assert len(spelling._cache) <= 5
    assert [spelling.legal_ids(state).tolist() for state in range(11)] == first
    assert spelling._cached_ids == sum(len(found.ids) for found in spelling._cache.values())
