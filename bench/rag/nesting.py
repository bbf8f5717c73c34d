"""False nesting: a tree whose text is the same, byte for byte, under a wrong structure."""

from __future__ import annotations

import random
from collections.abc import Iterator

from papers import Section

__all__ = ["document_text", "false_nesting"]


def false_nesting(root: Section, seed: str, share: float = 0.5) -> Section:
    """Return a copy in which some sections hang below the sibling before them.

    Parameters
    ----------
    root : Section
        Left as it is.
    seed : str
        Equal seeds give equal corruptions.
    share : float
        Chance of each section that has a sibling before it to be moved.

    Notes
    -----
    A moved section becomes the last child of its elder sibling, so a walk in document order meets the same names and
    paragraphs in the same order: only the levels change.
    """
    rng = random.Random(seed)

    def copy(section: Section) -> Section:
        children: list[Section] = []
        for child in map(copy, section.children):
            if children and rng.random() < share:
                children[-1].children.append(child)
            else:
                children.append(child)
        return Section(section.name, list(section.paragraphs), children)

    return copy(root)


def document_text(root: Section) -> str:
    """Return names and paragraphs in document order."""

    def parts(section: Section) -> Iterator[str]:
        yield section.name
        yield from section.paragraphs

    return "\n".join(part for section in root.walk() for part in parts(section))
