"""Every row of a tree equals a forward of its own path; without the mask it does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.compile import CompiledGrammar, compile_grammar
from sgl_compiled.grammar.layout import TreeLayout, actions_ahead, unfold
from sgl_compiled.grammar.tokenizer import TokenizerInfo
from sgl_compiled.runtime.payload import encode
from sgl_compiled.server import SGLangServer
from tests.server.conftest import generate

pytestmark = pytest.mark.server

TOLERANCE = 1e-3
"""Logits in fp32: measured deviations are of the order of 1e-5 (reduction order); a wrong mask gives more than 0.1."""


def tree(
    server: SGLangServer, labels: list[str], k: int, actions: int
) -> tuple[CompiledGrammar, TreeLayout, list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(server.model)
    info = TokenizerInfo.from_tokenizer(tokenizer, vocab_size=len(tokenizer), stop_ids=[tokenizer.eos_token_id])
    compiled = compile_grammar(ActionGrammar.from_labels(labels, k), info)
    start = compiled.automaton.start
    layout = unfold(
        compiled.automaton,
        start,
        actions_ahead(compiled.automaton, start, actions),
        stop_ids=compiled.stop_ids,
        max_positions=4096,
    )
    prompt = tokenizer.encode("Sections of the paper that answer the question, most useful first:\n" * 3)
    return compiled, layout, prompt


def probe(server: SGLangServer, prompt: list[int], layout: TreeLayout, custom: dict[str, Any]) -> np.ndarray:
    out = generate(
        server,
        input_ids=[*prompt, *layout.tokens],
        sampling_params={"max_new_tokens": 1, "temperature": 0, "custom_params": custom},
    )
    ((n_rows, numbers),) = out["meta_info"]["sgl_compiled"]
    assert n_rows == len(layout.rows)
    return np.array(numbers)


def deviations(server: SGLangServer, prompt: list[int], layout: TreeLayout, numbers: np.ndarray) -> list[float]:
    """Largest difference of log-probabilities at each row's legal ids to a separate forward of the row's path."""
    out = []
    at = len(layout.rows)
    for lse, row in zip(numbers[: len(layout.rows)], layout.rows, strict=True):
        path: list[int] = []
        node = row.node
        while node >= 0:
            path.append(layout.tokens[node])
            node = layout.parents[node]
        answer = generate(
            server,
            input_ids=[*prompt, *reversed(path)],
            sampling_params={"max_new_tokens": 1, "temperature": 0},
            return_logprob=True,
            token_ids_logprob=list(row.legal),
        )
        (values,) = answer["meta_info"]["output_token_ids_logprobs"]
        reference = {token: logprob for logprob, token, _ in values}
        mine = numbers[at : at + len(row.legal)] - lse
        at += len(row.legal)
        out.append(max(abs(reference[token] - value) for token, value in zip(row.legal, mine, strict=True)))
    return out


@pytest.mark.parametrize(("labels", "k", "actions"), [(["A", "B", "C", "D"], 3, 3), (["Loss", "Loss A", "Data"], 2, 2)])
def test_every_row_equals_its_own_forward(tiny: SGLangServer, labels: list[str], k: int, actions: int) -> None:
    _, layout, prompt = tree(tiny, labels, k, actions)
    numbers = probe(tiny, prompt, layout, encode(layout, len(prompt)))
    worst = max(deviations(tiny, prompt, layout, numbers))
    assert worst < TOLERANCE


def test_rows_of_a_real_model(smol: SGLangServer) -> None:
    _, layout, prompt = tree(smol, ["1", "2", "12", "20"], 2, 2)
    numbers = probe(smol, prompt, layout, encode(layout, len(prompt)))
    assert max(deviations(smol, prompt, layout, numbers)) < TOLERANCE


def test_without_the_mask_rows_differ(tiny: SGLangServer) -> None:
    """The control: the same tokens as one causal sequence must not give the same rows."""
    _, layout, prompt = tree(tiny, ["A", "B", "C", "D"], 3, 3)
    custom = encode(layout, len(prompt))
    custom["sgl_compiled_parents"] = list(range(-1, len(layout) - 1))
    numbers = probe(tiny, prompt, layout, custom)
    wrong = deviations(tiny, prompt, layout, numbers)
    assert max(wrong) > 100 * TOLERANCE
