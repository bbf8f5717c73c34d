"""AllEvidence@B: is the evidence inside the first B tokens of what was chosen?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import SequenceMatcher

from papers import Section

__all__ = ["BUDGETS", "COVERED", "all_evidence", "coverage", "pack"]

BUDGETS = (512, 1024, 2048)
COVERED = 0.8


def pack(chosen: Sequence[Section], budget: int, cut: Callable[[str, int], tuple[str, int]]) -> list[str]:
    """Return the chosen sections' own paragraphs, in the order of choice, up to ``budget`` tokens.

    Parameters
    ----------
    chosen : sequence of Section
        A section whose children were offered later brings its own paragraphs only.
    budget : int
        Tokens; the paragraph that goes over is cut.
    cut : callable
        ``cut(text, tokens)`` returns the text's first tokens as text, and how many tokens these are.
    """
    packed: list[str] = []
    for section in chosen:
        for paragraph in section.paragraphs:
            if budget <= 0:
                return packed
            text, used = cut(paragraph, budget)
            packed.append(text)
            budget -= used
    return packed


def coverage(span: str, packed: Sequence[str]) -> float:
    """Return the share of the span's words that stand in one run in one packed paragraph (the best of them)."""
    words = span.split()
    if not words:
        return 1.0
    best = 0.0
    for text in packed:
        match = SequenceMatcher(None, words, text.split(), autojunk=False).find_longest_match()
        best = max(best, match.size / len(words))
    return best


def all_evidence(groups: Sequence[Sequence[str]], packed: Sequence[str]) -> bool:
    """Return whether some annotator's spans are all covered to at least 80 %."""
    return any(all(coverage(span, packed) >= COVERED for span in group) for group in groups)
