"""Parser of the regular-expression dialect of docs/semantics.md: pattern text to a postfix program."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from sgl_compiled.errors import GrammarTooLargeError
from sgl_compiled.grammar.limits import DEFAULT_LIMITS, Limits
from sgl_compiled.grammar.regex_chars import DIGITS, LETTERS, CharacterParser
from sgl_compiled.grammar.utf8 import ScalarRange

__all__ = ["Alternate", "Atom", "Concat", "Group", "Literal", "Op", "ParsedRegex", "Repeat", "parse_regex"]


@dataclass(frozen=True)
class Atom:
    """Push one character out of `ranges` (code points, sorted, inclusive)."""

    ranges: tuple[ScalarRange, ...]


@dataclass(frozen=True)
class Literal:
    """Push a fixed text of one or more characters, in UTF-8."""

    data: bytes


@dataclass(frozen=True)
class Concat:
    """Join the `count` topmost items; a count of 0 pushes the empty string."""

    count: int


@dataclass(frozen=True)
class Alternate:
    """Unite the `count` topmost items."""

    count: int


@dataclass(frozen=True)
class Repeat:
    """Repeat the topmost item `low` to `high` times; None means without end. Laziness matters to groups alone."""

    low: int
    high: int | None
    lazy: bool = False


@dataclass(frozen=True)
class Group:
    """Make the topmost item capturing group number `index`, counted from 0."""

    index: int


Op = Atom | Literal | Concat | Alternate | Repeat | Group


@dataclass(frozen=True)
class ParsedRegex:
    """A parsed pattern.

    Attributes
    ----------
    program
        Postfix operations that leave one item on the stack.
    python_pattern
        The same language and groups for Python's `re`, to be compiled with `re.ASCII`.
    groups
        The name of each capturing group, None without one, in order of their opening parentheses.
    features
        Constructs in use that not every engine reads alike (the keys of `regex_backends.DIFFERENCES`).
    """

    program: tuple[Op, ...]
    python_pattern: str
    groups: tuple[str | None, ...]
    features: frozenset[str]


def parse_regex(pattern: str, limits: Limits = DEFAULT_LIMITS) -> ParsedRegex:
    """Parse `pattern`.

    Raises
    ------
    GrammarError
        When the pattern is malformed.
    UnsupportedError
        When it uses a construct that is refused by name.
    GrammarTooLargeError
        When it is longer than `limits.max_pattern_chars`.
    """
    if len(pattern) > limits.max_pattern_chars:
        raise GrammarTooLargeError(
            f"The regular expression has {len(pattern)} characters, over the limit of "
            f"{limits.max_pattern_chars}; give a label list instead of an alternation, or split it."
        )
    return _Parser(pattern).parse()


_REFUSED_GROUPS = {
    "=": "lookahead (?=",
    "!": "lookahead (?!",
    "<=": "lookbehind (?<=",
    "<!": "lookbehind (?<!",
    "P=": "the backreference (?P=",
    "P>": "recursion (?P>",
    "(": "the conditional (?(",
    ">": "the atomic group (?>",
    "#": "the comment (?#",
    "|": "the branch reset (?|",
}
_MAX_REPEAT_DIGITS = 9
# Plain characters but for the last one, which a quantifier may follow.
_PLAIN_RUN = re.compile(r"[^\\^$.|?*+(){}\[\]]+(?=[^\\^$.|?*+(){}\[\]])")
# Sets that hold almost all of Unicode.
_COMPLEMENTS = frozenset({"dot", "negated class", "\\D", "\\W", "\\S"})


@dataclass
class _Frame:
    """An open group: what its finished branches and the current branch have pushed so far."""

    opened_at: int
    outer_flags: frozenset[str]
    captures: int | None = None
    branches: int = 0
    items: int = 0


@dataclass
class _Parser(CharacterParser):
    # One explicit stack instead of recursion: nesting depth is bounded by the pattern's length alone.
    program: list[Op] = field(default_factory=list)
    frames: list[_Frame] = field(default_factory=list)
    groups: list[str | None] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    python_inserts: list[int] = field(default_factory=list)
    counted_at: int = -1  # length of the program just after the latest counted repeat

    def parse(self) -> ParsedRegex:
        for char in self.pattern:
            if 0xD800 <= ord(char) <= 0xDFFF:
                self.fail("a lone surrogate cannot be spelled in UTF-8; remove it")
        if "\x00" in self.pattern:
            self.features.add("NUL")
        self.frames.append(_Frame(0, frozenset()))
        self.parse_global_flags()
        while self.position < len(self.pattern):
            self.parse_item()
        if len(self.frames) > 1:
            self.fail(
                "this group is never closed; add ')' or escape the parenthesis as '\\('", self.frames[-1].opened_at
            )
        self.close_branches(self.frames.pop())
        if "non-ASCII literal" in self.features and self.features & _COMPLEMENTS:
            self.features.add("non-ASCII beside a complement")
        return ParsedRegex(tuple(self.program), self.python_pattern(), tuple(self.groups), frozenset(self.features))

    def parse_item(self) -> None:
        at = self.position
        run = None if "i" in self.flags else _PLAIN_RUN.match(self.pattern, at)
        if run:
            if not run[0].isascii():
                self.features.add("non-ASCII literal")
            self.program.append(Literal(run[0].encode()))
            self.frames[-1].items += 1
            self.position = run.end()
            return
        char = self.take()
        frame = self.frames[-1]
        if char == "(":
            self.open_group(at)
        elif char == ")":
            if len(self.frames) == 1:
                self.fail("there is no open group; escape the parenthesis as '\\)'", at)
            self.close_branches(frame)
            self.flags = self.frames.pop().outer_flags
            if frame.captures is not None:
                self.counted_at += self.counted_at == len(self.program)
                self.program.append(Group(frame.captures))
            self.finish_item()
        elif char == "|":
            self.end_branch(frame)
            frame.branches += 1
            frame.items = 0
        elif char in "^$":
            self.check_anchor(char, at)
        elif char in "*+?":
            self.fail(f"nothing to repeat before '{char}'; put an item before it or escape it as '\\{char}'", at)
        else:
            self.program.append(Atom(self.parse_atom(char, at)))
            self.finish_item()

    def finish_item(self) -> None:
        self.frames[-1].items += 1
        bounds = self.parse_quantifier()
        if bounds is None:
            return
        if self.pattern[self.position - 1] == "}":
            if self.counted_at == len(self.program):
                self.features.add("repeat of a repeat")
            self.counted_at = len(self.program) + 1
        self.program.append(Repeat(*bounds, lazy=self.peek() == "?"))
        if self.peek() == "?":
            self.position += 1
        elif self.peek() == "+":
            self.refuse("a possessive quantifier", "drop the '+'", self.position)
        if self.peek() in ("*", "+", "?") or (self.peek() == "{" and self.braces_follow()):
            self.fail("two quantifiers in a row; group the inner one, as in (?:a*)*", self.position)

    def parse_quantifier(self) -> tuple[int, int | None] | None:
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        char = self.peek()
        if char in simple:
            self.position += 1
            return simple[char]
        if char != "{":
            return None
        at = self.position
        if not self.braces_follow():
            self.fail("'{' after an item must open a repeat such as {2} or {0,3}; escape a literal brace as '\\{'", at)
        close = self.pattern.index("}", at)
        low_text, comma, high_text = self.pattern[at + 1 : close].partition(",")
        if max(len(low_text), len(high_text)) > _MAX_REPEAT_DIGITS:
            self.fail("the repeat count has too many digits; use a smaller bound", at)
        self.position = close + 1
        if not low_text:
            self.features.add("{,n}")
        low = int(low_text or 0)
        high = (int(high_text) if high_text else None) if comma else low
        if high is not None and high < low:
            self.fail(f"the repeat {{{low},{high}}} ends below its start; write {{{high},{low}}}", at)
        return low, high

    def braces_follow(self) -> bool:
        """Tell whether a well-formed {m}, {m,}, {,n} or {m,n} starts here."""
        close = self.pattern.find("}", self.position, self.position + 64)
        low, comma, high = self.pattern[self.position + 1 : close].partition(",") if close >= 0 else ("", "", "")
        if not (low or high):
            return False
        return all(char in DIGITS for char in low + high) and (bool(low) or bool(comma))

    def close_branches(self, frame: _Frame) -> None:
        self.end_branch(frame)
        if frame.branches:
            self.program.append(Alternate(frame.branches + 1))

    def end_branch(self, frame: _Frame) -> None:
        if frame.items == 0 and self.pattern:
            self.features.add("empty branch")
        if frame.items != 1:
            self.program.append(Concat(frame.items))

    def open_group(self, at: int) -> None:
        outer = self.flags
        if self.peek() == "?":
            self.position += 1
            captures = self.parse_group_head(at)
        else:
            captures = len(self.groups)
            self.groups.append(None)
        self.frames.append(_Frame(at, outer, captures))

    def parse_group_head(self, at: int) -> int | None:
        """Read what follows '(?', and return the group's number if it captures."""
        rest = self.pattern[self.position : self.position + 2]
        for head in (rest, rest[:1]):
            if head in _REFUSED_GROUPS:
                self.refuse(_REFUSED_GROUPS[head], "spell the wanted strings out", at)
        if rest[:1] == ":":
            self.position += 1
        elif rest == "P<" or rest[:1] == "<":
            self.features.add("(?<name>" if rest[:1] == "<" else "(?P<name>")
            if rest[:1] == "<":
                self.python_inserts.append(self.position)
            self.position += len(rest) if rest == "P<" else 1
            self.groups.append(self.parse_name(at))
            return len(self.groups) - 1
        else:
            self.flags |= self.parse_flags(at)
            if self.take_or_fail(at) != ":":
                self.refuse("a flag group inside the pattern", "put it at the very start, or write (?i:...)", at)
        return None

    def parse_name(self, at: int) -> str:
        close = self.pattern.find(">", self.position)
        name = self.pattern[self.position : close] if close >= 0 else ""
        if not name or name[0] in DIGITS or any(c not in LETTERS | DIGITS | {"_"} for c in name):
            self.fail("a group name is ASCII letters, digits and '_', closed by '>', as in (?P<name>...)", at)
        if name in self.names:
            self.fail(f"the group name {name!r} is used twice; give each group its own", at)
        self.names.add(name)
        self.position = close + 1
        return name

    def parse_global_flags(self) -> None:
        if self.pattern.startswith("(?") and self.pattern[2:3] in LETTERS | {"-"}:
            close = self.pattern.find(")")
            if close > 0 and all(char in LETTERS | {"-"} for char in self.pattern[2:close]):
                self.position = 2
                self.flags = self.parse_flags(0)
                self.position += 1

    def parse_flags(self, at: int) -> frozenset[str]:
        flags = set()
        while self.peek() in LETTERS or self.peek() == "-":
            flag = self.take()
            if flag not in "is":
                self.refuse(f"the flag '{flag}' in a (?...) group", "only i (ASCII case folding) and s are known", at)
            flags.add(flag)
            self.features.add(f"flag {flag}")
        if not flags:
            self.fail("this '(?' group is not understood; known are (?:...), (?P<name>...), (?i:...), (?s:...)", at)
        return frozenset(flags)

    def check_anchor(self, char: str, at: int) -> None:
        # The match is always the whole text, so only the two outermost anchors are without effect.
        if (char == "^" and at == 0) or (char == "$" and at == len(self.pattern) - 1 and len(self.frames) == 1):
            self.features.add("anchor")
            return
        where = "at the start" if char == "^" else "at the end"
        self.refuse(
            f"the anchor '{char}' inside the pattern", f"it may stand only {where}; a literal is '\\{char}'", at
        )

    def python_pattern(self) -> str:
        pieces: list[str] = []
        start = 0
        for insert in self.python_inserts:
            pieces += [self.pattern[start:insert], "P"]
            start = insert
        return "".join(pieces) + self.pattern[start:]
