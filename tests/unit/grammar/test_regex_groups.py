"""Groups as Python's `re` finds them, without its exponential time."""

from __future__ import annotations

import os
import random
import re
import time

import pytest
from grammar_strategies import finite_patterns, patterns
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sgl_compiled.errors import GrammarTooLargeError
from sgl_compiled.grammar.regex import compile_regex
from sgl_compiled.grammar.regex_groups import GroupReader
from sgl_compiled.grammar.regex_syntax import parse_regex

LONG = bool(os.environ.get("SGLCOMPILED_LONG_TESTS"))

CASES = [
    ("(a)(b)?", "a"),
    ("(a|ab)(c|bcd)(d*)", "abcd"),
    ("(?P<city>Oslo|Rome) (?P<n>[0-9]{1,2})", "Rome 12"),
    ("(?:(a)|(b)|c)*", "abc"),
    ("(a|b)*", "abab"),
    ("(a*)*", "aa"),
    ("(a*)+", "aa"),
    ("(a|)*", "a"),
    ("(a|)+", "aa"),
    ("(|a)*", "aa"),
    ("(|a)+", "aa"),
    ("(a??)*", "a"),
    ("(a*?)(a*)", "aaa"),
    ("(a+?)(a{1,2}?)(a*)", "aaaaa"),
    ("(a{0,2}){2}", "aaa"),
    ("((a)|b){2,3}", "aba"),
    ("(()|a)*b", "aab"),
    ("((a?)(b?))*", "ab"),
    ("((a?)(b?)){2,}", "ab"),
    ("(x(?:(y)?z)*)*", "xzyzxz"),
    ("(é|🙂)(.)", "🙂é"),
    ("(?i:(AB))c", "abc"),
    ("()", ""),
    ("abc", "abc"),
    ("(a)|b", "b"),
]


@pytest.mark.parametrize(("pattern", "text"), CASES)
def test_groups_are_pythons(pattern: str, text: str) -> None:
    expected = re.compile(pattern, re.ASCII).fullmatch(text)
    found = GroupReader(pattern).read(text)
    assert expected is not None and found is not None
    assert found.all == expected.groups()
    assert found.named == expected.groupdict()


def test_other_spelling_of_names_and_no_match() -> None:
    reader = GroupReader(r"(?<a>x)(?P<b>\d)|\(?<c>")
    found = reader.read("x7")
    assert found is not None and found.named == {"a": "x", "b": "7"} and found.all == ("x", "7")
    assert reader.read("y") is None
    literal = reader.read("<c>")
    assert literal is not None and literal.all == (None, None)


@settings(max_examples=5_000 if LONG else 70, deadline=None, suppress_health_check=list(HealthCheck))
@given(patterns() | finite_patterns(), st.randoms(use_true_random=False))
def test_random_groups_are_pythons(pattern: str, draw: random.Random) -> None:
    automaton = compile_regex(pattern)
    if automaton.is_empty():
        return
    parsed = parse_regex(pattern)
    python, reader = re.compile(parsed.python_pattern, re.ASCII), GroupReader(pattern)
    for _ in range(5):
        state, data = 0, bytearray()
        while not (state in automaton.accepting and (not automaton.transitions[state] or draw.random() < 0.4)):
            byte = draw.choice(list(automaton.transitions[state]))
            data.append(byte)
            state = automaton.transitions[state][byte]
        text = data.decode()
        if len(text) > 24:  # keeps Python's backtracking short
            continue
        expected, found = python.fullmatch(text), reader.read(text)
        assert expected is not None and found is not None
        assert found.all == expected.groups(), (pattern, text)


@pytest.mark.parametrize("pattern", ["(?:a|a){40}c|(?:a|a){40}(b)", "(?:(?:a?){40}){2}(b)", "(?:(a|aa|aaa)+)+(b)"])
def test_no_pattern_takes_exponential_time(pattern: str) -> None:
    begun = time.monotonic()
    found = GroupReader(pattern).read("a" * 40 + "b")
    assert found is not None and found.all[-1] == "b"
    assert time.monotonic() - begun < 2.0


def test_the_search_is_bounded() -> None:
    with pytest.raises(GrammarTooLargeError, match="too long to find"):
        GroupReader("(?:a|b|ab){0,900}(c)").read("ab" * 800)


def test_deep_nesting_needs_no_recursion() -> None:
    found = GroupReader("(" * 3_000 + "A" + ")" * 3_000).read("A")
    assert found is not None and found.all == ("A",) * 3_000
