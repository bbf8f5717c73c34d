"""QASPER papers as trees of sections."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from records import DataError, read_json

__all__ = ["SAMPLE", "Paper", "Question", "Section", "load_papers"]

SAMPLE = Path(__file__).parent / "data" / "qasper" / "qasper_train_first10.json"
SEPARATOR = " ::: "


@dataclass
class Section:
    """One section: its own paragraphs and its subsections."""

    name: str
    paragraphs: list[str] = field(default_factory=list)
    children: list[Section] = field(default_factory=list)

    def child(self, name: str) -> Section:
        """Return the subsection ``name``, made if it is new."""
        for section in self.children:
            if section.name == name:
                return section
        section = Section(name)
        self.children.append(section)
        return section

    def text(self) -> str:
        """Return the section's own text and that of everything below it."""
        return "\n".join([*self.paragraphs, *(section.text() for section in self.children)])

    def walk(self) -> Iterator[Section]:
        """Yield this section and everything below it."""
        yield self
        for section in self.children:
            yield from section.walk()


@dataclass(frozen=True)
class Question:
    """A question and, for each annotator, the paragraphs that answer it."""

    id: str
    text: str
    evidence: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Paper:
    """A paper: its tree of sections and the questions about it."""

    id: str
    title: str
    root: Section
    questions: tuple[Question, ...]


def load_papers(path: Path = SAMPLE) -> list[Paper]:
    """Read papers from a file in QASPER's official layout.

    Raises
    ------
    DataError
        The file is not JSON, or a record lacks a field; the message names the paper and the field.
    """
    data = read_json(path)
    if not isinstance(data, dict):
        raise DataError(f"{path}: expected an object with one entry a paper, as in qasper-train-v0.3.json")
    return [_paper(key, record) for key, record in data.items()]


def _paper(key: str, record: Any) -> Paper:
    try:
        root = Section(record["title"])
        for part in record["full_text"]:
            node = root
            # A name such as "Method ::: Loss" is a path; unnamed levels are layout noise of the source.
            for name in (part["section_name"] or "").split(SEPARATOR):
                if name.strip(" :"):
                    node = node.child(name.strip())
            node.paragraphs += [text for text in part["paragraphs"] if text.strip()]
        questions = tuple(_question(item) for item in record["qas"])
    except KeyError as error:
        raise DataError(f"paper {key}: the field {error} is missing") from error
    except (AttributeError, TypeError) as error:
        raise DataError(f"paper {key}: a field is of the wrong type: {error}") from error
    return Paper(key, record["title"], root, questions)


def _question(item: Any) -> Question:
    groups = [
        tuple(text for text in answer["answer"]["evidence"] if text and not text.startswith("FLOAT SELECTED"))
        for answer in item["answers"]
    ]
    return Question(item["question_id"], item["question"], tuple(group for group in groups if group))
