"""Grammars and choices of the cases, over toy tokenizers and toy models, through the product's own path."""

from __future__ import annotations

from typing import Any

import numpy as np

from sgl_compiled.control.walk import Decision, Row, walk
from sgl_compiled.errors import GrammarTooLargeError
from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.compile import Answer, compile_grammar
from sgl_compiled.grammar.form import Template
from sgl_compiled.grammar.layout import actions_ahead, decisions_ahead
from sgl_compiled.grammar.regex import compile_regex, require_finite
from sgl_compiled.grammar.spellings import SpellingAutomaton
from sgl_compiled.grammar.tokenizer import TokenizerInfo
from tests.cases import logits, path_tokens, toy_vocabulary

__all__ = ["answers", "choose", "grammar_of", "info_of"]


def info_of(tokenizer: dict[str, Any], logits_width: int = 0) -> TokenizerInfo:
    """A tokenizer that spells from left to right with the longest token."""
    vocabulary = toy_vocabulary(tokenizer, logits_width)

    def encode(text: str) -> list[int]:
        data, out, at = text.encode(), [], 0
        while at < len(data):
            ends = range(min(len(data), at + vocabulary.longest_token), at, -1)
            end = next((end for end in ends if data[at:end] in vocabulary.lowest_ids), None)
            if end is None:
                return []
            out.append(vocabulary.lowest_ids[data[at:end]])
            at = end
        return out

    return TokenizerInfo(vocabulary, lambda found: [encode(text) for text in found])


def grammar_of(given: dict[str, Any]) -> ActionGrammar:
    if "regex" in given:
        return ActionGrammar.from_regex(given["regex"])
    template = given.get("labels_template")
    labels = given["labels"] if template is None else [template["format"].format(i=i) for i in range(template["n"])]
    form = given.get("serialize", {"kind": "raw"})
    written: str | Template = "raw"
    if form["kind"] != "raw":
        written = Template('{"' + form["key"] + '": ["', '", "', '"]}', "json")
    order = "list" if given.get("order") == "unordered" else "any"
    return ActionGrammar.from_labels(
        labels, given.get("k", 1), distinct=given.get("distinct", True), order=order, template=written
    )


def choose(
    given: dict[str, Any], grammar: ActionGrammar, info: TokenizerInfo
) -> tuple[Answer, list[int], list[Decision], int]:
    """Answer, decided tokens, decisions and passes of the walk with the case's toy model."""
    compiled = compile_grammar(grammar, info, "any")
    automaton = compiled.automaton
    assert isinstance(automaton, SpellingAutomaton)
    state, tokens, decisions, passes = automaton.start, list[int](), list[Decision](), 0
    while True:
        try:
            tree = compiled.unfold(state, actions_ahead(automaton, state, compiled.horizon), 4096)
        except GrammarTooLargeError:
            tree = compiled.unfold(state, decisions_ahead(1), 4096)
        tree.check_integrity()
        rows = []
        for spec in tree.rows:
            taken = [*tokens, *path_tokens(tree, spec.node)]
            text = b"".join(info.vocabulary.token_bytes[token] or b"" for token in taken)
            full = logits(given, taken, text, info.vocabulary)
            rows.append(Row(full[list(spec.legal)], float(np.logaddexp.reduce(full))))
        step = walk(automaton, state, tree, rows, compiled.stop_ids, position=len(tokens))
        passes += bool(tree.rows)
        tokens += step.tokens
        decisions += step.decisions
        state = step.state
        if step.complete:
            decided = 1 + max((decision.position for decision in decisions), default=-1)
            return compiled.answer(state, tokens), tokens[:decided], decisions, passes


def answers(grammar: ActionGrammar) -> list[str]:
    if grammar.regex is not None:
        return [data.decode() for data in require_finite(compile_regex(grammar.regex)).strings(5_000)]
    return [grammar.form().text(chosen) for chosen in grammar.form().sequences()]
