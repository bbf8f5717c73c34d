"""The regular-expression dialect: accepted languages, refusals, limits."""

from __future__ import annotations

import dataclasses
import re
import time

import pytest

from sgl_compiled.errors import GrammarError, GrammarTooLargeError, UnsupportedError
from sgl_compiled.grammar.limits import DEFAULT_LIMITS
from sgl_compiled.grammar.regex import compile_regex, require_finite
from sgl_compiled.grammar.regex_syntax import parse_regex

LANGUAGES = [
    ("", [""]),
    ("()", [""]),
    ("(|)+", [""]),
    ("a||b", ["", "a", "b"]),
    ("A{0}", [""]),
    ("A{0,0}B", ["B"]),
    ("(A|A|AB?)", ["A", "AB"]),
    ("A{,2}", ["", "A", "AA"]),
    ("A{2}", ["AA"]),
    ("(?:A{2}){1,2}", ["AA", "AAAA"]),
    ("A?B??C{1,2}?", ["ABC", "ABCC", "AC", "ACC", "BC", "BCC", "C", "CC"]),
    ("^A$", ["A"]),
    ("^(A|B)$", ["A", "B"]),
    ("^A|B$", ["A", "B"]),
    ("-[1-5]|[0-5]", [*"012345", *(f"-{n}" for n in range(1, 6))]),
    ("9[5-9]|10[0-5]", [str(n) for n in range(95, 106)]),
    (r"\d", list("0123456789")),
    (r"[\s]", list(" \t\n\r\f\v")),
    (r"\a\f\n\r\t\v", ["\a\f\n\r\t\v"]),
    (r"\x41\u00e9\U0001F642", ["Aé🙂"]),
    (r"\.\*\[\]\(\)\{\}\|\^\$\\\+\?\-\/", [".*[](){}|^$\\+?-/"]),
    (r"[\].^$*(|]", list("].^$*(|")),
    ("[A-]", ["-", "A"]),
    ("[-A]", ["-", "A"]),
    ("[a-c-e]", list("-abce")),
    ("[é-ë]", list("éêë")),
    ("[🙂🙈]", ["🙂", "🙈"]),
    ('{"k": (1|2)}', ['{"k": 1}', '{"k": 2}']),
    ("a}]", ["a}]"]),
    ("(?P<x>A)(?<y>B)", ["AB"]),
    ("(?i:yes)|no", [*("".join(t) for t in ["yes", "yeS", "yEs", "yES", "Yes", "YeS", "YEs", "YES"]), "no"]),
    ("(?i)[x-y]", list("XYxy")),
    ("(?i)s", ["S", "s"]),  # ASCII folding: no U+017F
    ("\x00A|B", ["\x00A", "B"]),
    (r"\x00A|B", ["\x00A", "B"]),
    ("cafe\u0301|caf\u00e9", ["cafe\u0301", "caf\u00e9"]),  # never normalised
]

SIZES = [
    ("(?i)yes|no", 12),
    ("(A|B|C){3}", 27),
    (r"\w", 63),
    (r"[\d\-]{2}", 121),
    (".", 0x110000 - 0x800 - 1),
    ("(?s).", 0x110000 - 0x800),
    ("(?s:.)|.", 0x110000 - 0x800),
    ("[^a]", 0x110000 - 0x800 - 1),
    (r"(?i)[^a\W]", 61),
    ("(?i)[^a]", 0x110000 - 0x800 - 2),
    (r"[^\W\d]", 53),
    (r"[\D\S]", 0x110000 - 0x800),
    (r"\S", 0x110000 - 0x800 - 6),
    (r"[\x00-\U0010FFFF]", 0x110000 - 0x800),
]

REFUSED_BY_NAME = [
    ("(?=A)[AB]", "lookahead"),
    ("(?!10$)1[0-9]", "lookahead"),
    ("(?<=x)A", "lookbehind"),
    ("(?<!x)A", "lookbehind"),
    (r"(A|B)\1", "backreference"),
    (r"(?P<n>A)(?P=n)", "backreference"),
    (r"\k<x>", "backreference"),
    (r"\bA\b", "word boundary"),
    (r"A\B", "word boundary"),
    (r"\AA\Z", r"anchor \\A"),
    (r"\p{Lu}", "Unicode class"),
    ("(?i)é", "non-ASCII"),
    ("(?i)[a-é]", "non-ASCII"),
    (r"(?i:\u00e9)", "non-ASCII"),
    (r"\0", "octal"),
    (r"[\1]", "octal"),
    (r"[\b]", r"\\x08"),
    ("(^A)", "anchor"),
    ("A$|B", "anchor"),
    ("A^B", "anchor"),
    ("(?m)A", "flag 'm'"),
    ("(?x) A", "flag 'x'"),
    ("(?-i:A)", "flag '-'"),
    ("A(?i)B", "flag group inside"),
    ("(?#x)A", "comment"),
    ("(?>A)", "atomic"),
    ("(?(1)A)", "conditional"),
    ("(?|A)", "branch reset"),
    ("A++", "possessive"),
    ("[[a]", r"'\['"),
    ("[[:alpha:]]", r"'\['"),
    ("[a&&b]", "&&"),
    ("[a--b]", "--"),
    ("[+--]", "--"),
    ("[a~~b]", "~~"),
]

MALFORMED = [
    ("[", "never closed"),
    ("(", "never closed"),
    (")", "no open group"),
    ("*a", "nothing to repeat"),
    ("|*", "nothing to repeat"),
    ("(*a)", "nothing to repeat"),
    ("a**", "two quantifiers"),
    ("a{2}{3}", "two quantifiers"),
    ("a{2,1}", "ends below its start"),
    ("a{", "must open a repeat"),
    ("a{x}", "must open a repeat"),
    ("a{,}", "must open a repeat"),
    ("a{1", "must open a repeat"),
    ("a{ 1 }", "must open a repeat"),
    ("a{9999999999}", "too many digits"),
    ("(?P<n", "group name"),
    ("(?P<1n>A)", "group name"),
    ("(?P<é>A)", "group name"),
    ("(?P<>A)", "group name"),
    ("(?<n>a)(?<n>b)", "used twice"),
    ("(?", "middle of a construct|not understood"),
    ("(?i", "middle of a construct"),
    ("(?)", "not understood"),
    ("[z-a]", "reversed"),
    (r"[a-\d]", "single characters"),
    (r"[\d-z]", "single characters"),
    ("[]a]", r"may not start with '\]'"),
    ("[^]", r"may not start with '\]'"),
    ("\\", "lone backslash"),
    ("[a\\", "lone backslash"),
    (r"\q", "no meaning"),
    (r"\é", "no meaning"),
    (r"\x4", "hexadecimal"),
    (r"\u{e9}", "hexadecimal"),
    (r"\ud800", "not a Unicode scalar"),
    (r"\U00110000", "not a Unicode scalar"),
    ("\ud800", "surrogate"),
]


@pytest.mark.parametrize(("pattern", "strings"), LANGUAGES)
def test_language(pattern: str, strings: list[str]) -> None:
    assert [data.decode() for data in compile_regex(pattern).strings(200)] == sorted(strings, key=str.encode)


@pytest.mark.parametrize(("pattern", "size"), SIZES)
def test_language_size(pattern: str, size: int) -> None:
    assert compile_regex(pattern).count(10**9) == size


@pytest.mark.parametrize(("pattern", "name"), REFUSED_BY_NAME)
def test_refused_by_name(pattern: str, name: str) -> None:
    with pytest.raises(UnsupportedError, match=name):
        compile_regex(pattern)


@pytest.mark.parametrize(("pattern", "message"), MALFORMED)
def test_malformed(pattern: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message) as caught:
        compile_regex(pattern)
    assert not isinstance(caught.value, UnsupportedError)


@pytest.mark.parametrize("pattern", [".*", "[A-Z]+", "(A|B)*", '"[^"]*"', "A{2,}", "(A|)+"])
def test_infinite_languages_are_refused_at_once(pattern: str) -> None:
    begun = time.monotonic()
    with pytest.raises(GrammarError, match="infinitely many"):
        require_finite(compile_regex(pattern))
    assert time.monotonic() - begun < 0.2


@pytest.mark.parametrize("pattern", [r"[^\x00-\U0010FFFF]", r"A[^\s\S]"])
def test_empty_languages_are_refused(pattern: str) -> None:
    automaton = compile_regex(pattern)
    assert automaton.is_empty()
    with pytest.raises(GrammarError, match="no text at all"):
        require_finite(automaton)


@pytest.mark.parametrize("pattern", ["[a-z]{0,12}", "[AB]{1,20}"])
def test_large_languages_are_counted_not_unrolled(pattern: str) -> None:
    with pytest.raises(GrammarTooLargeError, match="more than 4096"):
        require_finite(compile_regex(pattern)).strings(4096)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(?:(?:a{0,50}){0,50}){0,50}", "bounded repeat unrolls"),
        ("((((a{1,99}){1,99}){1,99}){1,99}){1,99}", "bounded repeat unrolls"),
        ("a{999999999}", "bounded repeat unrolls"),
        ("(a|b)*a(a|b){20}", "states"),
        ("A" * 600_000, "characters"),
        ("A" * 20_000, "states"),
    ],
)
def test_size_limits(pattern: str, message: str) -> None:
    limits = dataclasses.replace(DEFAULT_LIMITS, max_automaton_states=5_000, compile_seconds=60.0)
    begun = time.monotonic()
    with pytest.raises(GrammarTooLargeError, match=message):
        compile_regex(pattern, limits)
    assert time.monotonic() - begun < 10.0


def test_time_limit() -> None:
    limits = dataclasses.replace(DEFAULT_LIMITS, compile_seconds=0.0)
    with pytest.raises(GrammarTooLargeError, match="did not compile within"):
        compile_regex("(a|b)*a(a|b){9}", limits)


def test_deep_nesting_needs_no_recursion() -> None:
    assert list(compile_regex("(" * 10_000 + "A" + ")" * 10_000).strings(1)) == [b"A"]
    nested = "(?:" * 2_000 + "A" + "|B)" * 2_000
    assert list(compile_regex(nested).strings(2)) == [b"A", b"B"]
    with pytest.raises(GrammarError, match="never closed"):
        compile_regex("(" * 100_000)


def test_large_alternation_is_a_legitimate_finite_set() -> None:
    limits = dataclasses.replace(DEFAULT_LIMITS, compile_seconds=60.0)
    automaton = compile_regex("|".join(f"L{n}" for n in range(20_000)), limits)
    assert automaton.count(10**6) == 20_000


def test_python_pattern_has_the_same_groups() -> None:
    parsed = parse_regex(r"(?P<a>x)|\(?<b>|(?<c>\d)")
    assert parsed.groups == ("a", "c")
    found = re.compile(parsed.python_pattern, re.ASCII).fullmatch("7")
    assert found is not None and found.groupdict() == {"a": None, "c": "7"}
