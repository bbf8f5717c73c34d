"""Where SGLang's grammar backends read a pattern otherwise than the dialect, or refuse it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sgl_compiled.errors import UnsupportedError
from sgl_compiled.grammar.regex_syntax import parse_regex

__all__ = ["DIFFERENCES", "check_backend"]

_UNICODE = "matches characters of all scripts there and ASCII alone here; write the characters out, as in [0-9]"

# Construct (see ParsedRegex.features) to what the backend does with it. Observed on outlines_core 0.1.26 with
# interegular, llguidance 0.7.30 and xgrammar 0.2.1; the oracle tests hold every row, and every absent row, to it.
DIFFERENCES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "outlines": {
            "anchor": "is refused there; drop '^' and '$', the match is always the whole text",
            "(?<name>": "is refused there; write (?P<name>...)",
            "\\u": "is refused there; write the character itself",
            "two complements in a class": "is read as their intersection there; write the union as alternatives",
            "non-ASCII beside a complement": (
                "(a dot, a negated class) loses the spelling of that character by byte tokens there; "
                "replace the complement by the wanted characters"
            ),
        },
        "llguidance": {
            **{f"\\{name}": _UNICODE for name in "dDwWsS"},
            "flag i": "folds 'k' and 's' to non-ASCII letters there; write both cases out, as in [kK]",
            "{,n}": "is refused there; write {0,n}",
            "literal {": "is refused there; write '\\{'",
            "\\<": "is refused there; write '<' without the backslash",
        },
        "xgrammar": {
            "dot": "matches a newline there; write [^\\n] or (?s:.)'s meaning as [\\x00-\\U0010FFFF]",
            "\\s": "matches U+00A0 there; write [ \\t\\n\\r\\f\\v]",
            "\\S": "does not match '[' there; write [^ \\t\\n\\r\\f\\v]",
            "flag i": "is refused there; write both cases out, as in [kK]",
            "flag s": "is refused there",
            "(?P<name>": "is refused there; write (?<name>...)",
            "empty branch": "is refused there; write the other branches as an optional group, as in (?:A|B)?",
            "{,n}": "is refused there; write {0,n}",
            "\\xHH before a hexadecimal digit": "reads on through the digit there; write the character itself",
            "negated class of non-ASCII": "matches those characters all the same there; list the wanted characters",
            "repeat of a repeat": "multiplies the bounds there, as (a{2}){0,2} to a{0,4}; write one repeat",
            "literal {": "is refused there; write '\\{'",
            "NUL": "ends the server process there; write \\x00",
        },
    }
)


def check_backend(pattern: str, backend: str) -> None:
    """Refuse a pattern that `backend` reads otherwise, so that both decode the same language.

    A backend without an entry in `DIFFERENCES` is not checked. What remains are byte sequences that are not
    UTF-8, which outlines and xgrammar admit where a negated class or a dot stands (docs/semantics.md).

    Raises
    ------
    UnsupportedError
        Names the construct, what the backend does, and the remedy.
    GrammarError
        When the pattern does not parse, or is too long (see `parse_regex`).
    """
    features = parse_regex(pattern).features
    for construct, behaviour in DIFFERENCES.get(backend, {}).items():
        if construct in features:
            raise UnsupportedError(
                f"The grammar backend {backend!r} reads this regular expression otherwise: {construct} {behaviour}."
            )
