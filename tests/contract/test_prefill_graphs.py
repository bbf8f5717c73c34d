"""Which extends SGLang's prefill graph runner takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.model_executor.runner.prefill_cuda_graph_runner import PrefillCudaGraphRunner

from tests.contract.batches import CASES, Case
from tests.contract.flashinfer_fakes import hook

PATH = "sglang.srt.model_executor.runner.prefill_cuda_graph_runner.PrefillCudaGraphRunner.can_run_graph"


def runner() -> Any:
    return SimpleNamespace(
        _is_full_backend=False,
        capture_hidden_mode="null",
        max_num_tokens=4096,
        _has_inactive_dp_rank=lambda _: False,
    )


def forward_batch(case: Case) -> Any:
    batch = case.forward_batch()
    batch.input_embeds = batch.replace_embeds = batch.global_num_tokens_cpu = None
    batch.capture_hidden_mode = "null"
    batch.return_logprob = False
    batch.input_ids = batch.positions
    return batch


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_probes_run_outside_captured_graphs_and_others_inside(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    assert PrefillCudaGraphRunner.can_run_graph(runner(), forward_batch(case))
    hook(monkeypatch, PATH)
    with_probe = any(part.parents is not None for part in case.parts)
    assert PrefillCudaGraphRunner.can_run_graph(runner(), forward_batch(case)) is not with_probe


def test_sglangs_own_answer_stands_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    hook(monkeypatch, PATH)
    plain = next(case for case in CASES if case.name == "no probe")
    batch = forward_batch(plain)
    batch.input_embeds = object()
    assert PrefillCudaGraphRunner.can_run_graph(runner(), batch) is False
