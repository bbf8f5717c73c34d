"""Public bug reports reduced to inputs (``tests/data/cases.jsonl``), and the toy models that some of them carry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np

from sgl_compiled.grammar.automaton import ByteAutomaton
from sgl_compiled.grammar.layout import TreeLayout
from sgl_compiled.grammar.regex import compile_regex, require_finite
from sgl_compiled.grammar.vocabulary import Vocabulary

__all__ = ["BY_ID", "CASES", "TOYS", "language", "logits", "path_tokens", "texts", "toy_vocabulary", "width"]

CASES: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parent / "data" / "cases.jsonl").read_text("utf-8").splitlines()
]
BY_ID = {case["id"]: case for case in CASES}
TOYS = [case["id"] for case in CASES if case["check"]["kind"] in ("serial_greedy", "selected") and case["id"] != "A28"]


def toy_vocabulary(tokenizer: dict[str, Any], width: int = 0) -> Vocabulary:
    rows: list[bytes | None] = [None] * max(width, 1 + max(entry["id"] for entry in tokenizer["vocab"]))
    for entry in tokenizer["vocab"]:
        if not entry.get("special"):
            rows[entry["id"]] = bytes.fromhex(entry["hex"]) if "hex" in entry else entry["t"].encode()
    return Vocabulary(tuple(rows), frozenset(tokenizer["stop_ids"]))


def width(given: dict[str, Any]) -> int:
    return int(given.get("logits_width", len(given.get("logits_row", []))))


def texts(given: dict[str, Any]) -> Iterator[str]:
    """Every answer of a label case."""
    template = given.get("labels_template")
    labels = given["labels"] if template is None else [template["format"].format(i=i) for i in range(template["n"])]
    form = given.get("serialize", {"kind": "raw"})
    k = given.get("k", 1)
    order = given.get("order", "ordered")
    for size in k if isinstance(k, list) else [k]:
        chosen = permutations(labels, size) if given.get("distinct", True) else product(labels, repeat=size)
        for answer in chosen:
            if order == "unordered" and [labels.index(label) for label in answer] != sorted(map(labels.index, answer)):
                continue
            if form["kind"] == "raw":
                yield "".join(answer) if size == 1 else form.get("separator", ", ").join(answer)
            else:
                yield json.dumps({form["key"]: list(answer)}, ensure_ascii=False)


def language(given: dict[str, Any]) -> ByteAutomaton:
    if "regex" in given:
        return require_finite(compile_regex(given["regex"]))
    return ByteAutomaton.from_strings(text.encode() for text in texts(given))


def logits(given: dict[str, Any], spelled: list[int], text: bytes, vocabulary: Vocabulary) -> np.ndarray:
    """The toy model's row after the tokens taken so far."""
    if "logits_row" in given:
        return np.array(given["logits_row"], float)
    names = {entry["id"]: entry["t"] for entry in given["tokenizer"]["vocab"]}
    ids = {name: index for index, name in names.items()}
    row = np.array([-50 - 0.01 * index for index in range(len(vocabulary))])
    scores = given["scores"]
    for name, value in scores.get("default", {}).items():
        row[ids[name]] = value
    taken = [names[index] for index in spelled]
    # The most particular rule comes last: exact tokens before exact text before the default.
    for key, here in (("after_text", text.decode(errors="replace")), ("after_tokens", taken)):
        for rule in scores.get("rules", []):
            if rule.get(key) == here:
                for name, value in rule["scores"].items():
                    row[ids[name]] = float(value)
    return row


def path_tokens(tree: TreeLayout, node: int) -> tuple[int, ...]:
    """Tokens from the tree's root down to a node, none for the prompt itself."""
    path: list[int] = []
    while node >= 0:
        path.append(tree.tokens[node])
        node = tree.parents[node]
    return tuple(reversed(path))
