"""Random patterns: the same language as Python's `re`, and an answer or a named error for any string."""

from __future__ import annotations

import os
import random
import re
import time

import pytest
from grammar_strategies import finite_patterns, noise, patterns
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sgl_compiled.errors import SglCompiledError
from sgl_compiled.grammar.automaton import ByteAutomaton
from sgl_compiled.grammar.limits import DEFAULT_LIMITS, Limits
from sgl_compiled.grammar.regex import compile_regex
from sgl_compiled.grammar.regex_syntax import parse_regex

LONG = bool(os.environ.get("SGLCOMPILED_LONG_TESTS"))
SMALL_LIMITS = Limits(max_automaton_states=2_000, max_repeat_states=5_000, compile_seconds=1.0)


def sample_string(automaton: ByteAutomaton, draw: random.Random, stop: float = 0.3) -> bytes:
    """Walk the automaton at random until it accepts (and a coin says stop)."""
    state, out = 0, bytearray()
    while True:
        row = automaton.transitions[state]
        if state in automaton.accepting and (not row or draw.random() < stop or len(out) > 60):
            return bytes(out)
        byte = draw.choice(list(row))
        out.append(byte)
        state = row[byte]


def mutated(text: str, draw: random.Random) -> str:
    at = draw.randrange(len(text) + 1)
    other = draw.choice('abcAZ079 ,.\\\n"éß🙂日x')
    return draw.choice([text[:at] + other + text[at:], text[:at] + text[at + 1 :], text[:at] + other + text[at + 1 :]])


@settings(max_examples=5_000 if LONG else 50, deadline=None, suppress_health_check=list(HealthCheck))
@given(patterns() | finite_patterns(), st.randoms(use_true_random=False))
def test_language_equals_python_fullmatch(pattern: str, draw: random.Random) -> None:
    automaton = compile_regex(pattern)
    python = re.compile(parse_regex(pattern).python_pattern, re.ASCII)
    if automaton.is_empty():
        return
    for _ in range(8):
        text = sample_string(automaton, draw).decode()
        if len(text) > 24:  # keeps Python's backtracking short
            continue
        assert python.fullmatch(text), (pattern, text)
        for _ in range(3):
            text = mutated(text, draw)
            assert automaton.matches(text.encode()) == bool(python.fullmatch(text)), (pattern, text)


@settings(max_examples=70, deadline=None, suppress_health_check=list(HealthCheck))
@given(finite_patterns())
def test_finite_languages_are_finite_and_listed_once(pattern: str) -> None:
    automaton = compile_regex(pattern)
    assert automaton.is_finite()
    count = automaton.count(3_001)
    if count <= 3_000:
        listed = list(automaton.strings(3_000))
        assert len(listed) == count and listed == sorted(set(listed))


@settings(max_examples=20_000 if LONG else 80, deadline=None, suppress_health_check=list(HealthCheck))
@given(noise())
def test_any_string_gives_an_automaton_or_a_named_error(pattern: str) -> None:
    begun = time.monotonic()
    try:
        automaton = compile_regex(pattern, SMALL_LIMITS)
        assert len(automaton.transitions) <= SMALL_LIMITS.max_automaton_states
    except SglCompiledError as error:
        assert len(str(error)) > 20
    assert time.monotonic() - begun < SMALL_LIMITS.compile_seconds + 1.0


@pytest.mark.parametrize("pattern", ["(a{0,120}){0,80}", "(.?){90}", "((a|b)?){200}", "(x*)*y|" * 500 + "z"])
def test_heavy_patterns_stay_within_the_limits(pattern: str) -> None:
    begun = time.monotonic()
    try:
        automaton = compile_regex(pattern)
        assert len(automaton.transitions) <= DEFAULT_LIMITS.max_automaton_states
    except SglCompiledError:
        pass
    assert time.monotonic() - begun < DEFAULT_LIMITS.compile_seconds + 1.0
