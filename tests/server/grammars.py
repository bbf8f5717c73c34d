"""Twelve kinds of choice, and prompts of several lengths."""

from __future__ import annotations

import random
from typing import Any

LETTERS = [chr(65 + i) for i in range(20)]
NUMBERS = [str(i) for i in range(1, 21)]
SECTIONS = [
    "Introduction",
    "Related Work",
    "Method",
    "Method ::: Loss Functions",
    "Method ::: Training",
    "Results",
    "Results and Discussion",
    "Conclusion",
]
TOOLS = ["search", "search_web", "search_mail", "calendar", "calc", "weather"]
WORDS = [
    "the",
    "model",
    "reads",
    "a",
    "long",
    "paper",
    "and",
    "picks",
    "what",
    "answers",
    "question",
    "about",
    "data",
    "method",
    "loss",
]

GRAMMARS: dict[str, dict[str, Any]] = {
    "letter": {"labels": LETTERS, "k": 1},
    "letters-2": {"labels": LETTERS, "k": 2},
    "letters-3": {"labels": LETTERS[:8], "k": 3},
    "letters-raw": {"labels": LETTERS, "k": 2, "template": "raw"},
    "numbers-2": {"labels": NUMBERS, "k": 2},
    "numbers-3-raw": {"labels": NUMBERS, "k": 3, "template": "raw"},
    "sections": {"labels": SECTIONS, "k": 2},
    "sections-raw": {"labels": SECTIONS, "k": 1, "template": "raw"},
    "sections-list": {"labels": SECTIONS, "k": 3, "order": "list"},
    "tools-repeat": {"labels": TOOLS, "k": 2, "distinct": False},
    "tail": {"labels": NUMBERS, "k": 3, "template": {"separator": '", "', "suffix": '"]', "escape": "json"}},
    "regex": {"regex": r"(yes|no|maybe)( \((?P<why>low|high) confidence\))?"},
}


def prompts(count: int, seed: int, *, words: tuple[int, int] = (5, 60)) -> list[str]:
    """Prompts of random length; every other one shares its beginning with the one before."""
    rng = random.Random(seed)
    out: list[str] = []
    for index in range(count):
        text = " ".join(rng.choices(WORDS, k=rng.randint(*words)))
        if index % 2 and out:
            text = out[-1] + " " + text
        out.append(f"{text}\nAnswer: ")
    return out
