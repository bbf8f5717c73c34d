"""Byte automata against plain sets of strings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_compiled.errors import GrammarError, GrammarTooLargeError
from sgl_compiled.grammar.automaton import ByteAutomaton
from sgl_compiled.grammar.regex import compile_regex

languages = st.sets(st.binary(max_size=4) | st.text("ab", max_size=6).map(str.encode), max_size=12)


@given(languages)
def test_from_strings_is_exactly_the_set(strings: set[bytes]) -> None:
    automaton = ByteAutomaton.from_strings(strings)
    assert list(automaton.strings(100)) == sorted(strings)
    assert automaton.count(10**9) == len(strings)
    assert automaton.is_empty() == (not strings)
    assert automaton.is_finite()


@given(languages, st.binary(max_size=5))
def test_matches_and_walk(strings: set[bytes], probe: bytes) -> None:
    automaton = ByteAutomaton.from_strings(strings)
    assert automaton.matches(probe) == (probe in strings)
    is_prefix = any(string.startswith(probe) for string in strings)
    assert (automaton.walk(0, probe) is not None) == (is_prefix or probe == b"")


@given(languages)
def test_from_strings_is_minimal(strings: set[bytes]) -> None:
    """No two states have the same residual language."""
    automaton = ByteAutomaton.from_strings(strings)
    residuals = [frozenset(automaton._strings_from(state)) for state in range(len(automaton.transitions))]
    assert len(set(residuals)) == len(residuals)


def test_empty_language_differs_from_empty_string() -> None:
    nothing, empty = ByteAutomaton.from_strings([]), ByteAutomaton.from_strings([b""])
    assert nothing.is_empty() and nothing.count(5) == 0 and list(nothing.strings(0)) == []
    assert not empty.is_empty() and empty.count(5) == 1 and list(empty.strings(1)) == [b""]


def test_trimming_drops_dead_and_unreachable_states() -> None:
    automaton = ByteAutomaton.trimmed([{98: 2, 97: 1}, {}, {97: 2}, {97: 1}], [1])
    assert automaton.transitions == ({97: 1}, {})
    assert automaton.accepting == {1}


def test_count_saturates_without_listing() -> None:
    automaton = compile_regex("[a-z]{0,60}")
    assert automaton.count(10**30) == 2**62
    assert automaton.count(1000) == 1000
    with pytest.raises(GrammarTooLargeError, match="more than 1000 strings"):
        automaton.strings(1000)


def test_infinite_language_is_never_listed() -> None:
    automaton = compile_regex("a*")
    assert not automaton.is_finite()
    assert automaton.count(7) == automaton.count_from(0, 7) == 7
    with pytest.raises(GrammarError, match="infinite"):
        automaton.strings(10**6)


def test_long_strings_need_no_recursion() -> None:
    data = b"x" * 20_000
    automaton = ByteAutomaton.from_strings([data, data + b"y"])
    assert list(automaton.strings(2)) == [data, data + b"y"]
