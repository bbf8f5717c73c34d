"""MuSiQue: questions with 20 paragraphs, two to four of which support the answer."""

from __future__ import annotations

from pathlib import Path

from menus import Menu, Option, unique_names
from records import DataError, field, read_jsonl

__all__ = ["SAMPLE", "load_musique"]

SAMPLE = Path(__file__).parent / "data" / "musique" / "musique_train_100.jsonl"


def load_musique(path: Path = SAMPLE) -> list[Menu]:
    """Read questions from a file in MuSiQue's layout, one record a line (``musique_ans_v1.0_dev.jsonl``).

    A repeated title gets a number, since the titles are the labels.

    Raises
    ------
    DataError
        A record lacks a field or marks no paragraph as supporting; the message names its line.
    """
    menus = []
    for where, record in read_jsonl(path):
        paragraphs = field(record, "paragraphs", list, where)
        parts = [f"{where}, paragraph {index}" for index in range(len(paragraphs))]
        titles = unique_names(field(p, "title", str, part) for p, part in zip(paragraphs, parts, strict=True))
        texts = [field(p, "paragraph_text", str, part) for p, part in zip(paragraphs, parts, strict=True)]
        marks = [field(p, "is_supporting", bool, part) for p, part in zip(paragraphs, parts, strict=True)]
        gold = frozenset(title for title, mark in zip(titles, marks, strict=True) if mark)
        if not gold:
            raise DataError(f"{where}: no paragraph is marked as supporting; the unanswerable split cannot be scored")
        options = tuple(Option(title, text) for title, text in zip(titles, texts, strict=True))
        menus.append(Menu(field(record, "id", str, where), field(record, "question", str, where), options, gold))
    return menus
