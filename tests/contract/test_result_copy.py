"""Numbers of decision rows travel with SGLang's other results."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.managers.utils import GenerationBatchResult

from sgl_compiled.runtime import results
from sgl_compiled.runtime.rows import KEY
from tests.contract.flashinfer_fakes import hook


class Event:
    """Notes whether the numbers had been handed over when SGLang marked its copies as complete."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def record(self) -> None:
        self._log.append("recorded")

    def synchronize(self) -> None:
        self._log.append("waited")


def result(info: Any, log: list[str]) -> GenerationBatchResult:
    output = SimpleNamespace(customized_info=info, hidden_states=None)
    return GenerationBatchResult(logits_output=output, next_token_ids=torch.tensor([1, 2]), copy_done=Event(log))


def test_numbers_are_copied_before_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    def to_host(values: torch.Tensor) -> torch.Tensor:
        log.append("copied")
        return values.clone()

    monkeypatch.setattr(results, "to_host", to_host)
    hook(monkeypatch, "sglang.srt.managers.utils.GenerationBatchResult.copy_to_cpu")
    numbers = torch.arange(3.0)
    batch_result = result({KEY: [None, numbers], "other": [1, 2]}, log)
    batch_result.copy_to_cpu(return_logprob=False)
    assert log == ["copied", "recorded"]
    info = batch_result.logits_output.customized_info
    assert info["other"] == [1, 2] and info[KEY][0] is None
    assert torch.equal(info[KEY][1], numbers) and info[KEY][1] is not numbers


@pytest.mark.parametrize("info", [None, {}, {"other": [1]}])
def test_other_results_are_left_alone(info: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    hook(monkeypatch, "sglang.srt.managers.utils.GenerationBatchResult.copy_to_cpu")
    batch_result = result(info, log)
    batch_result.copy_to_cpu(return_logprob=False)
    assert log == ["recorded"] and batch_result.logits_output.customized_info == info


def test_the_processor_waits_once_and_reads_host_memory() -> None:
    log: list[str] = []
    batch_result = result({KEY: [torch.tensor([1.5, 2.5]), None]}, log)
    reqs = [SimpleNamespace(), SimpleNamespace()]
    results.process_batch_result_prefill(None, SimpleNamespace(reqs=reqs), batch_result)
    assert log == ["waited"]
    assert results.numbers_of(reqs[0]).tolist() == [1.5, 2.5] and results.numbers_of(reqs[1]) is None  # type: ignore[union-attr]
