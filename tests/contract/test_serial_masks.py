"""The serial reference under each grammar backend of SGLang: what a batch whose first grammar is ours does with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.compile import compile_grammar
from sgl_compiled.runtime.serial import TrieGrammar, _Style
from tests.unit.grammar.toy import toy

VOCABULARY = 300


def _backend(name: str) -> Any:
    return type(name, (), {"llguidance_tokenizer": SimpleNamespace(vocab_size=VOCABULARY)})()


@pytest.mark.parametrize("name", ["OutlinesGrammarBackend", "GuidanceBackend", "XGrammarGrammarBackend"])
def test_the_mask_is_applied_as_sglang_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By keyword, through a function that needs no object; xgrammar's own kernel runs on a GPU only."""
    compiled = compile_grammar(ActionGrammar.from_labels(["yes", "no"], 1, template="raw"), toy(list("yesno")))
    style = _Style(_backend(name))
    grammar = TrieGrammar(compiled, style)
    info = SamplingBatchInfo.__new__(SamplingBatchInfo)
    info.grammars, info.vocab_size, info.device = [grammar, None], VOCABULARY, "cpu"
    info.temperatures = torch.ones(2, 1)
    info.update_regex_vocab_mask()
    logits = torch.zeros(2, VOCABULARY)
    if name == "XGrammarGrammarBackend":
        with pytest.raises(RuntimeError, match="Unsupported device"):
            info.apply_mask_func(logits=logits, vocab_mask=info.vocab_mask)
        return
    info.apply_mask_func(logits=logits, vocab_mask=info.vocab_mask)
    legal = set(compiled.automaton.step(compiled.automaton.start))
    assert set(torch.isfinite(logits[0]).nonzero().flatten().tolist()) == legal
    assert torch.isfinite(logits[1]).all()
