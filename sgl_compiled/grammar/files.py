"""Grammars in JSON files: the grammar fields of a request, with a title and a description."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgl_compiled.errors import GrammarError
from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.form import Template

__all__ = ["GrammarFile", "load_grammar"]

_KINDS = ("labels", "regex", "form", "json_schema", "tools")
_LABEL_OPTIONS = ("k", "distinct", "order", "template")


@dataclass(frozen=True)
class GrammarFile:
    """A grammar to keep.

    Attributes
    ----------
    title, description : str
        What it is for.
    grammar : ActionGrammar
    fields : dict
        The fields of a request that ask for it: ``client.select_k(prompt, **fields)``.
    """

    title: str
    description: str
    grammar: ActionGrammar
    fields: dict[str, Any]


def load_grammar(path: str | Path) -> GrammarFile:
    """Read a grammar file.

    Raises
    ------
    GrammarError
        The file is no JSON object, names no grammar or several, or the grammar itself is wrong.
    """
    try:
        data = json.loads(Path(path).read_text("utf-8"))
    except ValueError as error:
        raise GrammarError(f"{path} is no JSON file: {error}") from None
    if not isinstance(data, dict):
        raise GrammarError(f"{path} must hold a JSON object")
    fields = {key: value for key, value in data.items() if key not in ("title", "description")}
    unknown = set(fields) - {*_KINDS, *_LABEL_OPTIONS}
    kinds = [kind for kind in _KINDS if kind in fields]
    if unknown or len(kinds) != 1:
        raise GrammarError(f"{path} needs one of {', '.join(_KINDS)}; it has {', '.join(sorted(fields)) or 'none'}")
    if kinds != ["labels"] and len(fields) > 1:
        raise GrammarError(f"{path}: {', '.join(_LABEL_OPTIONS)} go with labels alone")
    return GrammarFile(data.get("title", ""), data.get("description", ""), _grammar(kinds[0], fields), fields)


def _grammar(kind: str, fields: dict[str, Any]) -> ActionGrammar:
    value = fields[kind]
    if kind == "labels":
        options = {key: fields[key] for key in _LABEL_OPTIONS if key in fields}
        if isinstance(options.get("template"), dict):
            options["template"] = Template(**{"prefix": "", "separator": ", ", "suffix": "", **options["template"]})
        return ActionGrammar.from_labels(value, **options)
    if kind == "regex":
        return ActionGrammar.from_regex(value)
    if kind == "form":
        return ActionGrammar.from_form(value)
    return ActionGrammar.from_json_schema(value) if kind == "json_schema" else ActionGrammar.from_tools(value)
