"""A question with options to choose from: what the flat data sets are read into."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Menu", "Option", "unique_names", "write_prompt"]


@dataclass(frozen=True)
class Option:
    """Something to choose: its name is the label, its text what the prompt says about it."""

    name: str
    text: str


@dataclass(frozen=True)
class Menu:
    """A question, its options, and the names that should be chosen."""

    id: str
    question: str
    options: tuple[Option, ...]
    gold: frozenset[str]

    @property
    def names(self) -> list[str]:
        """The labels."""
        return [option.name for option in self.options]


def unique_names(names: Iterable[str]) -> list[str]:
    """Return the names with ``(2)``, ``(3)``, ... behind repeated ones: labels must differ."""
    out: list[str] = []
    for name in names:
        candidate, number = name, 1
        while candidate in out:
            number += 1
            candidate = f"{name} ({number})"
        out.append(candidate)
    return out


def write_prompt(menu: Menu, heading: str, ask: str, words: int) -> str:
    """Return the prompt: the options with their first ``words`` words each, the question, and ``ask``."""
    lines = [f"- {option.name}: {' '.join(option.text.split()[:words])}" for option in menu.options]
    return f"{heading}:\n" + "\n".join(lines) + f"\nQuestion: {menu.question}\n{ask} "
