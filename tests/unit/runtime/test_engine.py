"""The engine before a scheduler that is simulated: a radix cache of whole prompts, and logits that mean nothing."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.compile import CompiledGrammar, compile_grammar
from sgl_compiled.runtime.payload import decode
from tests.unit.grammar.toy import toy

with warnings.catch_warnings():
    # Importing SGLang on a CPU warns about kernels that it will not use.
    warnings.simplefilter("ignore")
    from sgl_compiled.runtime.engine import SelectEngine, Selection
    from sgl_compiled.runtime.rows import KEY

VOCAB = 1_000
PIECES = ["[", "]", '"', ", ", "a", "b", "c", "d"]


class Engine(SelectEngine):
    """Counts as cached the longest prompt that an input begins with; the logits follow from the token ids."""

    def __init__(self) -> None:
        args = SimpleNamespace(
            page_size=1,
            device="cpu",
            dtype="float32",
            model_path="none",
            prefill_attention_backend=None,
            attention_backend="torch_native",
            tp_size=1,
            chunked_prefill_size=4096,
        )
        manager = SimpleNamespace(server_args=args, model_config=SimpleNamespace(vocab_size=VOCAB))
        super().__init__(manager, {"max_total_num_tokens": 8_000, "max_req_input_len": 7_000})
        self.held: list[tuple[int, ...]] = []

    async def generate(
        self, sampling_params: dict[str, Any], input_ids: list[int], http: Any, **fields: Any
    ) -> dict[str, Any]:
        probe = decode(sampling_params["custom_params"], len(input_ids), VOCAB)
        assert probe is not None
        base = tuple(input_ids[: probe.base])
        cached = max((len(one) for one in self.held if base[: len(one)] == one), default=0)
        cached = min(cached, len(base) - 1)
        self.held.append(base)
        numbers = [30.0] * len(probe.rows) + [float(id_ * 7 % 13) for ids in probe.legal for id_ in ids]
        meta = {KEY: [[len(probe.rows), np.array(numbers)]], "cached_tokens": cached}
        return {"meta_info": meta}


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setenv("SGLCOMPILED_CACHE", str(tmp_path))  # no calibration of this machine
    return Engine()


@pytest.fixture
def grammar() -> CompiledGrammar:
    return compile_grammar(ActionGrammar.from_labels(["a", "b", "c", "d"], 2), toy(PIECES))


def prompt(seed: int) -> list[int]:
    return [int(id_) for id_ in np.random.default_rng(seed).integers(20, VOCAB, 512)]


def ask(engine: Engine, grammar: CompiledGrammar, seed: int) -> Selection:
    return asyncio.run(engine.select(grammar, prompt(seed), "auto"))


def test_a_prompt_seen_before_is_expected_in_the_cache(engine: Engine, grammar: CompiledGrammar) -> None:
    first, again = ask(engine, grammar, 1), ask(engine, grammar, 1)
    assert first.expected_cached == 0
    assert again.expected_cached == 511
    assert again.tokens == first.tokens
    assert grammar.answer(again.state).labels == ("c", "a")  # ids 7 and 5: highest of the logits above


def test_a_flushed_cache_is_noticed_once_and_forgotten_whole(engine: Engine, grammar: CompiledGrammar) -> None:
    for seed in (1, 2, 3):
        ask(engine, grammar, seed)
    engine.held.clear()
    assert ask(engine, grammar, 1).expected_cached == 511  # nothing has told it yet
    assert ask(engine, grammar, 2).expected_cached == 0
    assert ask(engine, grammar, 1).expected_cached == 511  # computed since


def test_one_evicted_prompt_among_kept_ones(engine: Engine, grammar: CompiledGrammar) -> None:
    """What is forgotten too much costs one plan made for a fresh prompt, never an answer."""
    for seed in (1, 2):
        ask(engine, grammar, seed)
    engine.held = [base for base in engine.held if list(base[:512]) != prompt(1)]
    answers = [ask(engine, grammar, seed) for seed in (1, 2, 2)]
    assert [one.expected_cached for one in answers] == [511, 0, 511]
    assert len({tuple(one.tokens) for one in answers}) == 1
