"""Berkeley Function Calling Leaderboard, category "multiple": one right function of two to four."""

from __future__ import annotations

from pathlib import Path

from menus import Menu, Option
from records import DataError, field, read_jsonl

__all__ = ["ANSWERS", "SAMPLE", "load_bfcl"]

SAMPLE = Path(__file__).parent / "data" / "bfcl" / "BFCL_v4_multiple_25.jsonl"
ANSWERS = SAMPLE.with_name("possible_answer_" + SAMPLE.name)


def load_bfcl(path: Path = SAMPLE, answers: Path | None = None) -> list[Menu]:
    """Read requests with their functions.

    Parameters
    ----------
    path : path
        ``BFCL_v4_multiple.json`` or ``BFCL_v4_parallel_multiple.json``: one record a line.
    answers : path, optional
        The file of right calls; by default beside ``path``, as ``possible_answer_`` and its name.

    Raises
    ------
    DataError
        A record lacks a field, has no answer, or its answer calls a function that is not offered.
    """
    answers = answers or path.with_name("possible_answer_" + path.name)
    calls = {field(record, "id", str, where): (where, record) for where, record in read_jsonl(answers)}
    menus = []
    for where, record in read_jsonl(path):
        identifier = field(record, "id", str, where)
        if identifier not in calls:
            raise DataError(f"{where}: {answers} has no answer for {identifier}")
        functions = field(record, "function", list, where)
        options = tuple(Option(field(f, "name", str, where), field(f, "description", str, where)) for f in functions)
        right, answer = calls[identifier]
        gold = frozenset(name for call in field(answer, "ground_truth", list, right) for name in call)
        if not gold or not gold <= {option.name for option in options}:
            raise DataError(f"{right}: calls {sorted(gold)}, which are not among the functions offered")
        menus.append(Menu(identifier, _question(record, where), options, gold))
    return menus


def _question(record: object, where: str) -> str:
    turns = field(record, "question", list, where)
    if not turns or not isinstance(turns[0], list) or not turns[0]:
        raise DataError(f"{where}: the field 'question' holds no turn")
    return "\n".join(field(message, "content", str, where) for message in turns[0])
