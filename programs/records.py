"""Reading data files: whatever is broken is named with its file, record and field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from sgl_compiled.errors import SglCompiledError

__all__ = ["DataError", "field", "read_json", "read_jsonl"]

T = TypeVar("T")


class DataError(SglCompiledError):
    """A data file is missing, is not what its name says, or holds a broken record."""


def _text(path: Path) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; see the README in its folder under programs/data") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a UTF-8 text file ({error.reason} at byte {error.start})") from error
    if text.startswith("version https://git-lfs"):
        raise DataError(f"{path}: a Git LFS pointer, not the data; fetch it with 'git lfs pull'")
    return text


def read_json(path: Path) -> Any:
    """Return the parsed file.

    Raises
    ------
    DataError
        It is missing, or not JSON.
    """
    try:
        return json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from error


def read_jsonl(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ``(where, record)`` for each line; ``where`` is ``file, line n``.

    Raises
    ------
    DataError
        The file is missing, or a line is not a JSON object.
    """
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{where}: not JSON: {error.msg}; expected one record a line") from error
        if not isinstance(record, dict):
            raise DataError(f"{where}: expected an object, found {type(record).__name__}")
        yield where, record


def field(record: Any, name: str, kind: type[T], where: str) -> T:
    """Return ``record[name]``, which must be of type ``kind``.

    Raises
    ------
    DataError
        The field is missing or of another type.
    """
    if not isinstance(record, dict) or name not in record:
        raise DataError(f"{where}: the field {name!r} is missing")
    value = record[name]
    if not isinstance(value, kind):
        raise DataError(f"{where}: the field {name!r} should be {kind.__name__}, not {type(value).__name__}")
    return value
