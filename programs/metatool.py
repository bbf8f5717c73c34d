"""MetaTool: queries that need two tools, out of 10 listed ones or out of a whole catalogue."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from menus import Menu, Option
from records import DataError, field, read_json

__all__ = ["CATALOGUES", "FOLDER", "LISTED", "QUERIES", "load_catalogue", "load_listed"]

FOLDER = Path(__file__).parent / "data" / "metatool"
LISTED = FOLDER / "Task2-Subtask4_25.json"
QUERIES = FOLDER / "multi_tool_query_golden.json"
CATALOGUES = {47: FOLDER / "big_tool_des.json", 199: FOLDER / "plugin_des.json"}

_LINE = re.compile(r"^\d+\. tool name: (.+?), tool description: (.*)$", re.MULTILINE)


def load_listed(path: Path = LISTED) -> list[Menu]:
    """Read ``Task2-Subtask4.json``: each record's prompt lists the tools to choose from.

    Raises
    ------
    DataError
        A record lacks a field, its prompt lists no tools, or not the right ones.
    """
    menus = []
    for where, record in _records(path):
        lines = _LINE.findall(field(record, "action_prompt", str, where))
        if not lines:
            raise DataError(f"{where}: the prompt lists no tools ('1. tool name: ..., tool description: ...')")
        # Some descriptions are Python lists of one string.
        options = tuple(Option(name, text.strip("[]'\" ")) for name, text in lines)
        menus.append(_menu(where, record, options))
    return menus


def load_catalogue(tools: Path = CATALOGUES[47], queries: Path = QUERIES) -> list[Menu]:
    """Read queries, each with every tool of a catalogue to choose from.

    Parameters
    ----------
    tools : path
        An object ``{name: description}``, such as ``big_tool_des.json``.
    queries : path
        A list of ``{"query": ..., "tool": [...]}``, such as ``multi_tool_query_golden.json``.

    Raises
    ------
    DataError
        A record lacks a field, or names a tool that the catalogue does not have.
    """
    catalogue = read_json(tools)
    if not isinstance(catalogue, dict) or not catalogue:
        raise DataError(f"{tools}: expected an object of tool names and descriptions")
    options = tuple(Option(name, field(catalogue, name, str, str(tools)).strip("[]'\" ")) for name in catalogue)
    return [_menu(where, record, options) for where, record in _records(queries)]


def _records(path: Path) -> list[tuple[str, Any]]:
    data = read_json(path)
    if not isinstance(data, list):
        raise DataError(f"{path}: expected a list of records")
    return [(f"{path}, record {index}", record) for index, record in enumerate(data)]


def _menu(where: str, record: Any, options: tuple[Option, ...]) -> Menu:
    gold = field(record, "tool", list, where)
    names = [option.name for option in options]
    if len(set(names)) < len(names):
        raise DataError(f"{where}: a tool is listed twice")
    unknown = [tool for tool in gold if tool not in names]
    if unknown or not gold:
        raise DataError(f"{where}: the right tools {gold} are not among the tools to choose from")
    number = where.rpartition(" ")[2]
    return Menu(number, field(record, "query", str, where), options, frozenset(gold))
