"""Tensor parallelism: the rows that probes read beside SGLang's own are gathered with the ranks in step."""

from __future__ import annotations

import inspect

import pytest
from sglang.srt.distributed.device_communicators.triton_symm_mem_ag import MultimemAllGatherer
from sglang.srt.layers.logits_processor import LogitsProcessor

from sgl_compiled.runtime.rows import _synchronised


def test_every_gathering_of_ours_waits_for_all_ranks() -> None:
    gatherer = MultimemAllGatherer(max_tokens=128, enabled=False, skip_entry_sync=True)
    with pytest.raises(KeyError), _synchronised(gatherer):
        assert gatherer._skip_entry_sync is False
        raise KeyError
    assert gatherer._skip_entry_sync is True


def test_sglang_gathers_through_that_object() -> None:
    assert "self._logits_gatherer = " in inspect.getsource(LogitsProcessor.__init__)
    assert "self._logits_gatherer(logits)" in inspect.getsource(LogitsProcessor._get_logits)
