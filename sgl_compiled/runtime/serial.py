"""The serial reference: SGLang's own token-by-token decoding under our token automaton.

A grammar object of ours stands in the configured grammar backend for regexes that carry our mark; every other key goes
to the backend untouched. All grammar objects of a batch share one mask, allocated and applied by the first of them,
so ours speaks each backend's format: outlines a bool row (True = forbidden), the others int32 words (bit 1 = allowed).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.constrained.base_grammar_backend import BaseGrammarObject, InvalidGrammarObject

from sgl_compiled.errors import SglCompiledError
from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.compile import CompiledGrammar, GrammarCompiler, Spelling
from sgl_compiled.grammar.layout import legal_ids
from sgl_compiled.grammar.tokenizer import TokenizerInfo

__all__ = ["TrieGrammar", "create_grammar_backend", "dispatch_regex", "reference_key"]

MARK = "\x00sgl_compiled:"
"""No regex of a client starts with NUL and our name."""

_compiler: GrammarCompiler | None = None


def reference_key(grammar: ActionGrammar, spelling: Spelling) -> str:
    """Return the ``regex`` sampling parameter that asks for the serial reference."""
    return MARK + json.dumps({"grammar": grammar.to_spec(), "spelling": spelling}, ensure_ascii=False, sort_keys=True)


def create_grammar_backend(
    result: Any, server_args: Any, tokenizer: Any, vocab_size: int, eos_token_ids: Any = None, *_: Any, **__: Any
) -> None:
    """Remember the tokenizer that the backend was made for: AFTER ``create_grammar_backend``."""
    global _compiler
    if result is not None:
        info = TokenizerInfo.from_tokenizer(tokenizer, vocab_size=vocab_size, stop_ids=eos_token_ids or ())
        _compiler = GrammarCompiler(info)


def dispatch_regex(original: Callable[..., Any], self: Any, key_string: str) -> Any:
    """Compile keys that carry our mark: ``dispatch_regex`` of every grammar backend."""
    if not key_string.startswith(MARK):
        return original(self, key_string)
    assert _compiler is not None
    try:
        spec = json.loads(key_string[len(MARK) :])
        compiled = _compiler.compile(ActionGrammar.from_spec(spec["grammar"]), spec["spelling"])
    except (SglCompiledError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        # A client can write our mark too; what follows it is then anything at all.
        return InvalidGrammarObject(str(error))
    return TrieGrammar(compiled, _style(self))


class _Style:
    """How one backend lays out its vocabulary mask."""

    def __init__(self, backend: Any) -> None:
        self.name = type(backend).__name__
        self.width: int | None = None
        if self.name == "OutlinesGrammarBackend":
            from sglang.srt.constrained.outlines_backend import OutlinesGrammar as masks
        elif self.name == "GuidanceBackend":
            from sglang.srt.constrained.llguidance_backend import GuidanceGrammar as masks

            self.width = int(backend.llguidance_tokenizer.vocab_size)
        else:
            # Its grammar's own function is no static one.
            from sglang.srt.constrained.xgrammar_backend import XGrammarGrammarBackend as masks
        self.bool_mask = self.name == "OutlinesGrammarBackend"
        self.masks = masks

    def allocate(self, vocab_size: int, batch_size: int, device: Any) -> torch.Tensor:
        if self.bool_mask:
            return torch.zeros(batch_size, vocab_size, dtype=torch.bool, device=device)
        words = ((self.width or vocab_size) + 31) // 32
        return torch.full((batch_size, words), -1, dtype=torch.int32)

    def fill(self, row: torch.Tensor, legal: tuple[int, ...]) -> None:
        ids = torch.tensor(legal, dtype=torch.int64)
        if self.bool_mask:
            row.fill_(True)
            row[ids.to(row.device)] = False
            return
        words = torch.zeros(row.shape[0], dtype=torch.int64)
        words.index_put_((ids // 32,), torch.ones_like(ids) << (ids % 32), accumulate=True)
        # Bit 31 is the sign of an int32.
        row.copy_(torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32))


_styles: dict[int, _Style] = {}


def _style(backend: Any) -> _Style:
    return _styles.setdefault(id(backend), _Style(backend))


class TrieGrammar(BaseGrammarObject):  # type: ignore[misc]
    """Token-by-token decoding of a compiled grammar; ends with the answer, or with a stop id where both are legal."""

    def __init__(self, compiled: CompiledGrammar, style: _Style) -> None:
        super().__init__()
        self._finished: bool = False
        self._compiled = compiled
        self._style = style
        self._trail: list[Any] = [compiled.automaton.start]
        # SGLang applies the mask through the first grammar's own function, expected to be static.
        self.apply_vocab_mask = style.masks.apply_vocab_mask
        self.move_vocab_mask = style.masks.move_vocab_mask

    def accept_token(self, token: int) -> None:
        """Advance by one token; a stop id ends the answer."""
        if self._finished:
            return
        following = self._compiled.automaton.step(self._trail[-1])
        if token in following:
            self._trail.append(following[token])
        else:
            self._finished = True

    def rollback(self, k: int) -> None:
        """Take back ``k`` tokens."""
        if k > 0 and self._finished:
            self._finished = False
            k -= 1
        if k > 0:
            del self._trail[-k:]

    def is_terminated(self) -> bool:
        """Whether the answer is complete."""
        return bool(self._finished) or not self._compiled.automaton.step(self._trail[-1])

    def allocate_vocab_mask(self, vocab_size: int, batch_size: int, device: Any) -> torch.Tensor:
        """Allocate a batch's mask in the backend's format."""
        return self._style.allocate(vocab_size, batch_size, device)

    def fill_vocab_mask(self, vocab_mask: torch.Tensor, idx: int) -> None:
        """Fill one row with the legal ids."""
        legal = legal_ids(self._compiled.automaton, self._trail[-1], self._compiled.stop_ids)
        self._style.fill(vocab_mask[idx], legal or tuple(sorted(self._compiled.stop_ids)))

    def copy(self) -> TrieGrammar:
        """Return a fresh grammar at the start state."""
        return TrieGrammar(self._compiled, self._style)

    def try_jump_forward(self, tokenizer: Any) -> None:
        """No jumps: the reference decodes every token."""
        return None
