"""Random finite grammars, each as a request of ours and as the regex that stock decoding is given."""

from __future__ import annotations

import json
import random
import re
from itertools import combinations, permutations, product
from typing import Any, NamedTuple

__all__ = ["RandomGrammar", "random_grammars"]

_WORDS = [
    *(
        "Introduction",
        "Related Work",
        "Method",
        "Results",
        "Results and Discussion",
        "Conclusion",
        "search",
        "search_web",
    ),
    *("calendar", "red", "redder", "green", "café", "naïve", "日本", "🙂", "v1.5", "C++", "a|b", "(x)", "yes", "no"),
    *("100", "10", "1", "New York", " indented", "trailing ", "x", "xx", "Oui", "Non", "[0-9]", "^top$", "under_score"),
    *("A", "AB"),
]
_ATOMS = [
    "a",
    "b",
    "the",
    "model",
    " ",
    "-",
    "[ab]",
    "[a-d]",
    r"\d",
    "[0-9]{2}",
    "é",
    "(?:yes|no)",
    "(red|green|blue)",
    r"\.",
    "X",
]
_ENDS = ["", "?", "{2}", "{0,2}", "{1,3}", "??"]


class RandomGrammar(NamedTuple):
    """One language in both forms."""

    request: dict[str, Any]
    regex: str


def random_grammars(count: int, seed: int) -> list[RandomGrammar]:
    """Return label lists (two in five) and regular expressions, both small enough for stock decoding."""
    rng = random.Random(seed)
    return [_labels(rng) if index % 5 < 2 else _regex(rng) for index in range(count)]


def _labels(rng: random.Random) -> RandomGrammar:
    labels = rng.sample(_WORDS, rng.randint(2, 8))
    k = rng.randint(1, min(3, len(labels)))
    distinct, order = rng.random() < 0.8, rng.choice(["any", "list"])
    sequences = permutations(range(len(labels)), k) if distinct else product(range(len(labels)), repeat=k)
    if order == "list":
        sequences = combinations(range(len(labels)), k) if distinct else _nondecreasing(len(labels), k)
    answers = [json.dumps([labels[index] for index in chosen], ensure_ascii=False) for chosen in sequences]
    request = {"labels": labels, "k": k, "distinct": distinct, "order": order}
    return RandomGrammar(request, "(" + "|".join(map(re.escape, answers)) + ")")


def _nondecreasing(size: int, k: int) -> list[tuple[int, ...]]:
    return [chosen for chosen in product(range(size), repeat=k) if list(chosen) == sorted(chosen)]


def _regex(rng: random.Random) -> RandomGrammar:
    def sequence(depth: int) -> str:
        return "".join(piece(depth) for _ in range(rng.randint(1, 4)))

    def piece(depth: int) -> str:
        if depth and rng.random() < 0.3:
            branches = "|".join(sequence(depth - 1) for _ in range(rng.randint(2, 3)))
            return f"({branches}){rng.choice(['', '', '?'])}"
        atom = rng.choice(_ATOMS)
        single = len(atom) == 1 or atom.startswith(("[", "(", "\\"))
        return atom + (rng.choice(_ENDS) if single and not atom.endswith("}") and rng.random() < 0.5 else "")

    pattern = sequence(2)
    return RandomGrammar({"regex": pattern}, pattern)
