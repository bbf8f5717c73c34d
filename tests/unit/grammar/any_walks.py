"""Walks under ``spelling="any"`` with a random model: token by token, and in passes."""

from __future__ import annotations

import numpy as np

from sgl_compiled.control.walk import Row, walk
from sgl_compiled.errors import GrammarTooLargeError
from sgl_compiled.grammar.compile import CompiledGrammar
from sgl_compiled.grammar.layout import actions_ahead, decisions_ahead
from sgl_compiled.grammar.legality import AnySpelling
from sgl_compiled.grammar.likely import TreeRule
from sgl_compiled.grammar.tokenizer import TokenizerInfo
from tests.cases import path_tokens

__all__ = ["passes", "serial"]


def logits_after(info: TokenizerInfo, text: bytes, taken: tuple[int, ...], seed: int, ties: bool) -> np.ndarray:
    """Toy model: a row that depends on the tokens taken, equal bytes or not."""
    rng = np.random.default_rng([seed, len(text), *taken])
    width = len(info.vocabulary)
    return rng.integers(0, 3, width).astype(float) if ties else rng.normal(size=width)


def serial(info: TokenizerInfo, spelling: AnySpelling, seed: int, ties: bool) -> tuple[bytes, tuple[int, ...]]:
    """Text of the serial reference, and its tokens up to where one text is left."""
    state, taken, text = 0, (), b""
    decided: tuple[int, ...] | None = None
    while True:
        rest = spelling.remaining_is_single(state)
        if decided is None and rest is not None:
            decided = taken
        ids = spelling.legal_ids(state)
        if rest == b"":
            return text, taken if decided is None else decided
        row = logits_after(info, text, taken, seed, ties)
        token = int(ids[np.argmax(row[ids])])
        if token in info.vocabulary.stop_ids:
            return text, taken if decided is None else decided
        state = spelling.step(state)[token]
        taken, text = (*taken, token), text + (info.vocabulary.token_bytes[token] or b"")


def passes(
    info: TokenizerInfo, compiled: CompiledGrammar, seed: int, ties: bool, rule: TreeRule, actions: int
) -> tuple[tuple[int, ...], int]:
    state, tokens, count = compiled.automaton.start, (), 0
    while True:
        try:
            tree = compiled.unfold(state, actions_ahead(compiled.automaton, state, actions), 300, rule)
        except GrammarTooLargeError:
            tree = compiled.unfold(state, decisions_ahead(1), 300, rule)
        tree.check_integrity()
        rows = []
        for row in tree.rows:
            taken = (*tokens, *path_tokens(tree, row.node))
            text = b"".join(info.vocabulary.token_bytes[token] or b"" for token in taken)
            full = logits_after(info, text, taken, seed, ties)
            rows.append(Row(full[list(row.legal)], float(np.log(np.exp(full).sum()))))
        count += bool(tree.rows)
        step = walk(compiled.automaton, state, tree, rows, compiled.stop_ids, position=len(tokens))
        compiled.learn(state, step.tokens)
        tokens, state = (*tokens, *step.tokens), step.state
        if step.complete:
            return tokens, count
        assert step.tokens, "a pass that resolves nothing would go on for ever"
