"""Characters of the regular-expression dialect: escapes, classes, case folding."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import NoReturn

from sgl_compiled.errors import GrammarError, UnsupportedError
from sgl_compiled.grammar.utf8 import MAX_SCALAR, ScalarRange, complement, normalise

__all__ = ["DIGITS", "LETTERS", "CharacterParser"]

LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
DIGITS = frozenset("0123456789")

_DIGIT = ((0x30, 0x39),)
_WORD = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE = ((0x09, 0x0D), (0x20, 0x20))
_CLASSES = {
    "d": _DIGIT,
    "w": _WORD,
    "s": _SPACE,
    "D": complement(_DIGIT),
    "W": complement(_WORD),
    "S": complement(_SPACE),
}
_CONTROLS = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_HEX_ALPHABET = frozenset("0123456789abcdefABCDEF")
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_REFUSED_ESCAPES = {
    "b": "the word boundary \\b",
    "B": "the word boundary \\B",
    "A": "the anchor \\A",
    "z": "the anchor \\z",
    "Z": "the anchor \\Z",
    "p": "the Unicode class \\p",
    "P": "the Unicode class \\P",
    "k": "the backreference \\k",
}
_NOT_NEWLINE = complement(((0x0A, 0x0A),))
_CASE_BIT = 0x20


@dataclass
class CharacterParser:
    """A cursor over a pattern that reads one character set at a time."""

    pattern: str
    position: int = 0
    flags: frozenset[str] = frozenset()
    features: set[str] = field(default_factory=set)

    def parse_atom(self, char: str, at: int) -> tuple[ScalarRange, ...]:
        """Read one character set outside a class, whose first character is taken."""
        if char == "[":
            return self.parse_class(at)
        if char == "\\":
            return self.one_or_class(self.parse_escape(at, in_class=False), at)
        if char == ".":
            self.features.add("dot")
            return ((0, 0xD7FF), (0xE000, MAX_SCALAR)) if "s" in self.flags else _NOT_NEWLINE
        if char == "{":
            self.features.add("literal {")
        return self.literal(ord(char), ord(char), at)

    def parse_escape(self, at: int, *, in_class: bool) -> tuple[ScalarRange, ...]:
        """Read what follows a backslash."""
        char = self.take_or_fail(at, "the pattern ends in a lone backslash; write '\\\\' for a literal one")
        if char in _CLASSES:
            self.features.add(f"\\{char}")
            return _CLASSES[char]
        if char in _CONTROLS:
            return ((_CONTROLS[char], _CONTROLS[char]),)
        if char in _HEX_DIGITS:
            if char != "x":
                self.features.add("\\u")
            return self.parse_hex(char, at)
        if char in _REFUSED_ESCAPES:
            hint = "write \\x08 for a backspace" if in_class and char == "b" else "spell the wanted strings out"
            self.refuse(_REFUSED_ESCAPES[char], hint, at)
        if char in DIGITS:
            name = "the octal escape" if in_class or char == "0" else "the backreference"
            self.refuse(f"{name} \\{char}", "write a character as \\xHH, and repeated text out in full", at)
        if char in LETTERS or ord(char) > 0x7E or ord(char) < 0x20:
            self.fail(f"the escape '\\{char}' has no meaning; only ASCII punctuation may be escaped", at)
        if char in "<>":
            self.features.add("\\<")
        return ((ord(char), ord(char)),)

    def parse_hex(self, kind: str, at: int) -> tuple[ScalarRange, ...]:
        """Read the digits of a character given by number."""
        width = _HEX_DIGITS[kind]
        digits = self.pattern[self.position : self.position + width]
        if len(digits) < width or any(char not in _HEX_ALPHABET for char in digits):
            self.fail(f"'\\{kind}' needs exactly {width} hexadecimal digits", at)
        value = int(digits, 16)
        if value > MAX_SCALAR or 0xD800 <= value <= 0xDFFF:
            self.fail(f"'\\{kind}{digits}' is not a Unicode scalar value", at)
        self.position += width
        if kind == "x" and self.peek() and self.peek() in _HEX_ALPHABET:
            self.features.add("\\xHH before a hexadecimal digit")
        return ((value, value),)

    def parse_class(self, at: int) -> tuple[ScalarRange, ...]:
        """Read a class, whose opening bracket is taken."""
        negated = self.peek() == "^"
        self.position += negated
        if self.peek() == "]":
            self.fail("a class may not start with ']'; write '\\]' for a literal one", at)
        members: list[tuple[ScalarRange, ...]] = []
        while (char := self.take_or_fail(at, "this class is never closed; add ']' or escape '[' as '\\['")) != "]":
            members.append(self.parse_class_member(char, at))
        if sum(member in (_CLASSES["D"], _CLASSES["W"], _CLASSES["S"]) for member in members) > 1:
            self.features.add("two complements in a class")
        ranges = normalise(chain.from_iterable(members))
        if not negated:
            return ranges
        self.features.add("negated class")
        if ranges and ranges[-1][1] > 0x7F:
            self.features.add("negated class of non-ASCII")
        return complement(ranges)

    def parse_class_member(self, char: str, at: int) -> tuple[ScalarRange, ...]:
        """Read one character, escaped class or range."""
        low = self.parse_class_char(char, at)
        if self.pattern.startswith("--", self.position):
            self.parse_class_char(self.take(), at)
        if self.peek() != "-" or self.pattern[self.position + 1 : self.position + 2] in ("]", ""):
            return self.one_or_class(low, at)
        self.position += 1
        high = self.parse_class_char(self.take_or_fail(at), at)
        if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1] or high[0][0] != high[0][1]:
            self.fail("a range needs single characters at both ends; escape a literal dash as '\\-'", at)
        if low[0][0] > high[0][0]:
            self.fail(f"the range {chr(low[0][0])!r}-{chr(high[0][0])!r} is reversed; swap its ends", at)
        return self.literal(low[0][0], high[0][0], at)

    def parse_class_char(self, char: str, at: int) -> tuple[ScalarRange, ...]:
        """Read one end of a range, or one escaped class."""
        if char == "\\":
            return self.parse_escape(self.position - 1, in_class=True)
        if char == "[":
            self.refuse("an unescaped '[' inside a class", "regex engines disagree on it; write '\\['", at)
        if char in "&~-|" and self.peek() == char:
            self.refuse(f"'{char}{char}' inside a class", f"regex engines disagree on it; write '\\{char}' once", at)
        return ((ord(char), ord(char)),)

    def one_or_class(self, ranges: tuple[ScalarRange, ...], at: int) -> tuple[ScalarRange, ...]:
        """Fold one escaped character; an escaped class is closed under case folding already."""
        (low, high), *more = ranges
        return ranges if more or low != high else self.literal(low, high, at)

    def literal(self, low: int, high: int, at: int) -> tuple[ScalarRange, ...]:
        """Close a range under ASCII case folding where the flag i holds."""
        if high > 0x7F:
            self.features.add("non-ASCII literal")
        if "i" not in self.flags:
            return ((low, high),)
        if high > 0x7F:
            self.refuse("a non-ASCII character under the flag i", "write both cases, as in [éÉ]", at)
        ranges = [(low, high)]
        for first, last, shift in ((0x41, 0x5A, _CASE_BIT), (0x61, 0x7A, -_CASE_BIT)):
            if max(low, first) <= min(high, last):
                ranges.append((max(low, first) + shift, min(high, last) + shift))
        return normalise(ranges)

    def peek(self) -> str:
        """Return the next character, or nothing at the end."""
        return self.pattern[self.position : self.position + 1]

    def take(self) -> str:
        """Return the next character and step over it."""
        self.position += 1
        return self.pattern[self.position - 1]

    def take_or_fail(self, at: int, message: str = "the pattern ends in the middle of a construct; complete it") -> str:
        """Take the next character, or refuse the pattern that ends here."""
        if self.position >= len(self.pattern):
            self.fail(message, at)
        return self.take()

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        """Refuse a pattern that is malformed."""
        where = "" if at is None else f" at character {at}"
        raise GrammarError(f"Bad regular expression{where}: {message}.")

    def refuse(self, construct: str, remedy: str, at: int) -> NoReturn:
        """Refuse a construct by name."""
        raise UnsupportedError(f"Regular expression, character {at}: {construct} is not supported; {remedy}.")
