"""Our legal sets against those of outlines_core, llguidance and xgrammar, at every state of random walks.

SGLCOMPILED_LONG_TESTS=1 runs the long version (more than 20,000 states); the counts go to the test's output.
"""

from __future__ import annotations

import os
import random
import sys
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from sgl_compiled.errors import UnsupportedError
from sgl_compiled.grammar.legality import AnySpelling
from sgl_compiled.grammar.regex import compile_regex
from sgl_compiled.grammar.regex_backends import DIFFERENCES, check_backend
from sgl_compiled.grammar.regex_syntax import parse_regex
from sgl_compiled.grammar.vocabulary import Vocabulary

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "grammar"))
from grammar_strategies import finite_patterns, patterns  # noqa: E402
from tokenizers_available import NAMES, load  # noqa: E402
from tokenizers_masks import ENGINES, Engine, Refused, Walker  # noqa: E402

LONG = bool(os.environ.get("SGLCOMPILED_LONG_TESTS"))
# outlines_core walks the whole vocabulary at every state before it starts, hence fewer examples.
EXAMPLES = {"outlines": 120 if LONG else 6, "llguidance": 500 if LONG else 25, "xgrammar": 500 if LONG else 25}
WALKS = 4
STEPS = 12
LENIENT = {"outlines", "xgrammar"}
"""Engines that admit bytes which are not UTF-8 in negated classes and dots."""


@cache
def vocabulary(tokenizer: str) -> Vocabulary:
    return Vocabulary.from_tokenizer(load(tokenizer))


@cache
def engine(tokenizer: str, name: str) -> Engine:
    return ENGINES[name](vocabulary(tokenizer))


def is_utf8_prefix(data: bytes) -> bool:
    """Tell whether some text's UTF-8 starts so: the last, unfinished character is tried with every ending."""
    for cut in range(max(0, len(data) - 3), len(data) + 1):
        head, tail = data[:cut], data[cut:]
        if _decodes(head) and (not tail or any(_decodes(tail + ending) for ending in _ENDINGS)):
            return True
    return False


_ENDINGS = [bytes(ending) for length in (1, 2, 3) for ending in product((0x80, 0x90, 0xA0, 0xBF), repeat=length)]


def _decodes(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def walk(pattern: str, words: Vocabulary, walker: Walker, *, lenient: bool, draw: random.Random) -> int:
    """Compare every state of one random walk; returns how many."""
    spelling = AnySpelling(compile_regex(pattern), words)
    state, text = 0, b""
    for count in range(1, STEPS + 1):
        ours, theirs = set(spelling.legal_ids(state).tolist()), walker.legal()
        assert not ours - theirs, (pattern, text, [words.token_bytes[index] for index in ours - theirs])
        extra = {
            index for index in theirs - ours if not lenient or is_utf8_prefix(text + (words.token_bytes[index] or b""))
        }
        assert not extra, (pattern, text, [words.token_bytes[index] for index in extra])
        ids = spelling.legal(state).ids
        if not len(ids):
            return count
        token = int(draw.choice(ids))
        walker.accept(token)
        text += words.token_bytes[token] or b""
        state = spelling.legal(state).targets[ids == token].item()
    return STEPS


@pytest.mark.parametrize("tokenizer", NAMES)
@pytest.mark.parametrize("name", ENGINES)
def test_legal_sets_are_equal_on_random_walks(tokenizer: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, masks = vocabulary(tokenizer), engine(tokenizer, name)
    states = 0

    @settings(max_examples=EXAMPLES[name], deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @seed(20_000)
    @given(patterns() | finite_patterns(), st.randoms(use_true_random=False))
    def compare(pattern: str, draw: random.Random) -> None:
        nonlocal states
        if compile_regex(pattern).is_empty():
            return
        try:
            check_backend(pattern, name)
        except UnsupportedError:
            return
        lenient = name in LENIENT and not {"dot", "negated class", "\\D", "\\W", "\\S"}.isdisjoint(
            parse_regex(pattern).features
        )
        for _ in range(WALKS):
            states += walk(pattern, words, masks.start(pattern), lenient=lenient, draw=draw)

    compare()
    assert states > EXAMPLES[name]
    with capsys.disabled():
        print(f"\n{tokenizer} / {name}: {states} states equal")


PROBES = {
    "anchor": ["^A$"],
    "(?<name>": ["(?<n>A)"],
    "(?P<name>": ["(?P<n>A)"],
    "\\u": ["\\u00e9", "\\U0001F642"],
    "\\d": ["\\d"],
    "\\D": ["\\D"],
    "\\w": ["\\w"],
    "\\W": ["\\W"],
    "\\s": ["\\s"],
    "\\S": ["\\S"],
    "flag i": ["(?i)skA", "(?i:[^k])"],
    "flag s": ["(?s)."],
    "{,n}": ["A{,2}"],
    "literal {": ["{A}"],
    "\\<": ["\\<\\>"],
    "dot": ["."],
    "negated class": ["[^a]"],
    "empty branch": ["A|", "(|A)B"],
    "NUL": ["\0A"],
    "\\xHH before a hexadecimal digit": [r"\x41B"],
    "negated class of non-ASCII": ["[^é-ü]"],
    "two complements in a class": ["[\\x00\\D\\S]"],
    "repeat of a repeat": ["(A{2}){0,2}", "(?:A{2,}){2}"],
    "non-ASCII literal": ["é", "[é-ü]"],
    "non-ASCII beside a complement": ["é|[^a]", "é[^a]é"],
}
TEXTS = [
    *("", "A", "B", "AA", "AAA", "5", "٣", "é", "a", "ſkA", "skA", "SKa", "K", "k", "\u212a", "\n", "\r", " "),
    *("\u00a0", "\u2003", "\v", "\x85", "{A}", "<>", "AB", "\0A", "🙂", "-", "_", "^A$", "A{,2}", "u00e9"),
    *("éé", "ééé", "AAAA"),
    *map(chr, range(128)),
]


@cache
def bytes_engine(name: str) -> Engine:
    return ENGINES[name](Vocabulary((*(bytes([byte]) for byte in range(256)), None), frozenset({256})))


def accepts(walker: Walker, text: str) -> bool:
    for byte in text.encode():
        if byte not in walker.legal():
            return False
        walker.accept(byte)
    return 256 in walker.legal()


@pytest.mark.parametrize("construct", PROBES)
@pytest.mark.parametrize("name", ENGINES)
def test_the_table_of_differences_is_what_the_engines_do(name: str, construct: str) -> None:
    if (name, construct) == ("xgrammar", "NUL"):
        pytest.skip("a NUL in a pattern ends the process with a segmentation fault")
    listed = construct in DIFFERENCES[name]
    for pattern in PROBES[construct]:
        assert construct in parse_regex(pattern).features
        automaton = compile_regex(pattern)
        try:
            agrees = all(
                accepts(bytes_engine(name).start(pattern), text) == automaton.matches(text.encode()) for text in TEXTS
            )
        except Refused:
            agrees = False
        assert agrees != listed, (pattern, name)
        if listed:
            with pytest.raises(UnsupportedError, match="reads this regular expression otherwise"):
                check_backend(pattern, name)


def test_every_row_of_the_table_is_probed() -> None:
    assert {construct for rows in DIFFERENCES.values() for construct in rows} <= set(PROBES)


@pytest.mark.parametrize(
    ("name", "pattern", "text", "extra"),
    [
        ("outlines", "[^a]", b"", b"\xc0"),
        ("outlines", "[^a]", b"", b"\xf5"),
        ("outlines", "[^a]", b"\xed", b"\xa0"),  # a surrogate
        ("xgrammar", "[^a]", b"", b"\xc0"),
        ("xgrammar", "[^a]", b"", b"\xf5"),
    ],
)
def test_documented_leniency_about_bytes(name: str, pattern: str, text: bytes, extra: bytes) -> None:
    walker = bytes_engine(name).start(pattern)
    for byte in text:
        walker.accept(byte)
    assert extra[0] in walker.legal()
    assert compile_regex(pattern).walk(0, text + extra) is None


def test_llguidance_allows_one_token_where_the_text_is_forced() -> None:
    """The stock llguidance backend's mask is narrower than the legal set there (docs/semantics.md)."""
    words = Vocabulary((b"A", b"AB", b"B", *(bytes([byte]) for byte in range(256)), None), frozenset({259}))
    masks = ENGINES["llguidance"](words)
    assert masks.start("AB(C|D)").legal() == set(AnySpelling(compile_regex("AB(C|D)"), words).legal_ids(0).tolist())
    masks.forcing = True  # type: ignore[attr-defined]
    assert len(masks.start("AB(C|D)").legal()) == 1
