"""What the evaluation writes: one line a question and arm, in a file that survives a kill."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter

from bench.common import Environment, append
from sgl_compiled.errors import SglCompiledError

__all__ = ["Key", "Question", "ResultsError", "Round", "Run", "Store", "read"]

Key = tuple[str, str, str, str]
"""Data set, nesting, question, arm."""


class ResultsError(SglCompiledError):
    """A results file is broken, or belongs to another evaluation."""


class Run(BaseModel):
    """One start of the evaluation; its questions name it."""

    kind: Literal["run"] = "run"
    run: str
    settings: dict[str, Any] = Field(description="What must not change between the runs of one file.")
    environment: Environment


class Round(BaseModel):
    """One choice."""

    options: list[str]
    k: int
    picks: list[int] | None = Field(description="Indices into options, best first; null after a protocol error.")
    text: str
    token_ids: list[int] | None = None
    error: str | None = None
    ms: float
    output_tokens: int
    passes: int
    positions: int
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    min_margin: float | None = None


class Question(BaseModel):
    """One question, answered by one arm."""

    kind: Literal["question"] = "question"
    run: str
    dataset: str
    nesting: str
    question: str
    cluster: str
    arm: str
    status: Literal["ok", "error", "skipped"]
    detail: str | None = None
    load_average: float
    rounds: list[Round] = []
    quality: dict[str, bool] = {}

    @property
    def key(self) -> Key:
        """What this record answers."""
        return self.dataset, self.nesting, self.question, self.arm


_LINE: TypeAdapter[Run | Question] = TypeAdapter(Annotated[Run | Question, Field(discriminator="kind")])


def read(path: Path) -> list[tuple[int, Run | Question]]:
    """Return line numbers and records; an unfinished last line is left out.

    Raises
    ------
    ResultsError
        A finished line is not a record.
    """
    if not path.exists():
        return []
    out = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            out.append((number, _LINE.validate_json(line)))
        except ValueError as error:
            raise ResultsError(f"{path}, line {number}: not a record of this evaluation; move the file away") from error
    return out


class Store:
    """Appends records, and knows what is there already.

    Parameters
    ----------
    path : path
        A line that a kill cut short is removed first.
    run : Run
        Written before the first new record.

    Raises
    ------
    ResultsError
        The file was begun with other settings.
    """

    def __init__(self, path: Path, run: Run) -> None:
        self.path = path
        self._run: Run | None = run
        if path.exists():
            whole = path.read_bytes()
            os.truncate(path, whole.rfind(b"\n") + 1)
        records = [record for _, record in read(path)]
        for record in records:
            if isinstance(record, Run) and record.settings != run.settings:
                raise ResultsError(
                    f"{path} was begun with {record.settings}, not {run.settings}; write to another file with --out"
                )
        self.done = {record.key for record in records if isinstance(record, Question)}

    def add(self, record: Question) -> None:
        """Append one record."""
        assert record.key not in self.done
        if self._run is not None:
            append(self.path, self._run)
            self._run = None
        append(self.path, record)
        self.done.add(record.key)
