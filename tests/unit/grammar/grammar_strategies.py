"""Random regular expressions of the dialect."""

from __future__ import annotations

from hypothesis import strategies as st

__all__ = ["finite_patterns", "noise", "patterns"]

_LITERALS = [
    "a",
    "b",
    "c",
    "A",
    "Z",
    "0",
    "7",
    " ",
    '"',
    ",",
    r"\.",
    r"\\",
    r"\n",
    "é",
    "ß",
    "🙂",
    "日",
    r"\x42",
    r"\u00ea",
]
_CLASSES = [
    "[ab]",
    "[a-f]",
    "[^a-z]",
    r"[\d,]",
    "[A-Za-z_]",
    r"\d",
    r"\w",
    r"\s",
    "[é-ü]",
    "[🙂-🙅]",
    ".",
    r"[^\n]",
    r"\D",
    r"\S",
    "[^é-ü]",
    r"[\Dé]",
    r"[\D\S]",
    r"[^\Wß]",
]
_ASCII_CLASSES = ["[ab]", "[a-c]", "[0-2]", r"[\d]", "[,.]", "[éê]", "[🙂🙁]"]
_BOUNDED = ["?", "{2}", "{0,2}", "{1,3}", "{,1}", "??"]
_UNBOUNDED = ["*", "+", "{2,}", "*?"]
_HEADS = ["(", "(?:", "(?i:"]


def _build(atoms: list[str], quantifiers: list[str]) -> st.SearchStrategy[str]:
    def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        group = st.tuples(st.sampled_from(_HEADS), inner, st.just(")")).map("".join).map(_fold_ascii_only)
        return st.one_of(
            st.lists(inner, min_size=1, max_size=4).map("".join),
            st.lists(inner, min_size=2, max_size=3).map("|".join).map("({})".format),
            group,
            st.tuples(group, st.sampled_from(quantifiers)).map("".join),
            st.tuples(st.sampled_from(atoms), st.sampled_from(quantifiers)).map("".join),
        )

    return st.recursive(st.sampled_from(atoms), grow, max_leaves=8)


def _fold_ascii_only(group: str) -> str:
    return group if group.isascii() and "\\u" not in group else group.replace("(?i:", "(?:")


def patterns() -> st.SearchStrategy[str]:
    """Valid patterns, infinite languages included."""
    return _build(_LITERALS + _CLASSES, _BOUNDED + _UNBOUNDED)


def finite_patterns() -> st.SearchStrategy[str]:
    """Valid patterns of finite languages, mostly small."""
    return _build(_LITERALS + _ASCII_CLASSES, _BOUNDED)


def noise() -> st.SearchStrategy[str]:
    """Strings that look like patterns and mostly are none."""
    pieces = st.sampled_from(
        [
            *"()[]{}|*+?^$.\\-,:<>=!#&~abP019isu \x00\n\ud800é🙂",
            "(?",
            "(?P<n>",
            "{2,3}",
            "[^",
            "\\x",
            "\\u00",
            "{0,999}",
        ]
    )
    return st.lists(pieces | st.characters(), max_size=24).map("".join)
