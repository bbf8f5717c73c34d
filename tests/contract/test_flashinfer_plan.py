"""What reaches FlashInfer's planner for a table of batches, against masks written cell by cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.batches import CASES, FORK, MASKED, PLAIN, Case, Part
from tests.contract.flashinfer_fakes import (
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    PlannedModule,
    Recorder,
    flashinfer_backend_on_cpu,
    flashinfer_wrapper,
    hook,
)

BACKEND = "sglang.srt.layers.attention.flashinfer_backend"

Make = Callable[[Case], tuple[Any, Recorder, Recorder, Any, PlannedModule]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    def build(case: Case) -> tuple[Any, Recorder, Recorder, Any, PlannedModule]:
        wrapper, module = flashinfer_wrapper(monkeypatch)
        paged, ragged = Recorder(wrapper.plan), Recorder()
        return flashinfer_backend_on_cpu(monkeypatch, case.slots(), paged, ragged), paged, ragged, wrapper, module

    hook(monkeypatch, f"{BACKEND}.FlashInferAttnBackend.init_forward_metadata")
    hook(monkeypatch, f"{BACKEND}.FlashInferIndicesUpdaterPrefill.call_begin_forward")
    return build


def ids(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", MASKED, ids=ids)
def test_mask_and_lengths_reach_the_planner(case: Case, make: Make) -> None:
    backend, paged, ragged, _, _ = make(case)
    backend.init_forward_metadata(case.forward_batch())
    assert ragged.calls == []
    ((args, kwargs),) = paged.calls
    qo_indptr, kv_indptr, kv_indices, last_page_len, heads, kv_heads, head_dim, page_size = args
    assert qo_indptr.tolist() == [0, *np.cumsum(case.extend_lens)]
    assert kv_indptr.tolist() == [0, *np.cumsum(case.totals)]
    # Slots of single tokens, whatever the server's page size is.
    assert (heads, kv_heads, head_dim, page_size) == (HEADS, KV_HEADS, HEAD_DIM, 1)
    assert last_page_len.tolist() == [1] * len(case.parts)
    expected = torch.cat([row[:total] for row, total in zip(case.slots(), case.totals, strict=True)])
    assert torch.equal(kv_indices[: len(expected)], expected)
    mask = kwargs["custom_mask"]
    reference = np.concatenate([part.ravel() for part in case.reference_masks()])
    assert mask.dtype == torch.bool and mask.numel() == sum(
        r * t for r, t in zip(case.extend_lens, case.totals, strict=True)
    )
    assert np.array_equal(mask.numpy(), reference)
    assert not backend.forward_metadata.use_ragged


@pytest.mark.parametrize("case", MASKED, ids=ids)
def test_packed_mask_reads_back_as_the_kernel_reads_it(case: Case, make: Make) -> None:
    backend, _, _, wrapper, module = make(case)
    backend.init_forward_metadata(case.forward_batch())
    packed, starts = wrapper._custom_mask_buf.numpy(), wrapper._mask_indptr_buf.tolist()
    assert packed.dtype == np.uint8
    assert starts == [0, *np.cumsum([-(-r * t // 8) for r, t in zip(case.extend_lens, case.totals, strict=True)])]
    for start, reference in zip(starts[:-1], case.reference_masks(), strict=True):
        rows, columns = reference.shape
        offset = np.arange(rows)[:, None] * columns + np.arange(columns)
        assert np.array_equal(packed[start + offset // 8] >> (offset % 8) & 1, reference)
    (plan,) = module.plans
    qo_indptr, kv_indptr, kv_lens, total_rows = plan[3:7]
    assert qo_indptr.tolist()[-1] == total_rows == sum(case.extend_lens)
    assert kv_lens.tolist() == case.totals and kv_indptr.tolist()[-1] == sum(case.totals)


@pytest.mark.parametrize("case", PLAIN, ids=ids)
def test_batches_without_a_tree_plan_as_without_the_plugin(case: Case, make: Make) -> None:
    backend, paged, ragged, wrapper, _ = make(case)
    backend.init_forward_metadata(case.forward_batch())
    ((args, kwargs),) = paged.calls
    assert len(ragged.calls) == 1 and kwargs["custom_mask"] is None and wrapper._custom_mask_buf is None
    assert args[1].tolist() == [0, *np.cumsum([part.prefix for part in case.parts])]
    assert backend.forward_metadata.use_ragged


@pytest.mark.parametrize("case", MASKED, ids=ids)
def test_nothing_of_a_mask_is_left_for_the_next_batch(case: Case, make: Make) -> None:
    backend, paged, ragged, wrapper, _ = make(case)
    updater = backend.indices_updater_prefill
    before = dict(vars(updater)).keys()
    backend.init_forward_metadata(case.forward_batch())
    assert wrapper._custom_mask_buf is not None
    assert vars(updater).keys() == before and backend.use_paged is False
    plain = Case("plain", tuple(Part(part.prefix, part.rows) for part in case.parts))
    backend.init_forward_metadata(plain.forward_batch())
    assert len(ragged.calls) == 1 and paged.calls[1][1]["custom_mask"] is None
    assert wrapper._custom_mask_buf is None and wrapper._mask_indptr_buf is None


def test_paged_stays_on_where_the_user_asked_for_it(make: Make) -> None:
    case = CASES[0]
    backend, _, ragged, _, _ = make(case)
    backend.use_paged = True
    backend.init_forward_metadata(case.forward_batch())
    assert backend.use_paged is True and ragged.calls == []


def test_a_failed_plan_leaves_nothing_behind(make: Make) -> None:
    case = CASES[0]
    backend, paged, _, _, _ = make(case)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("workspace too small")

    paged._plan = fail
    with pytest.raises(RuntimeError, match="workspace"):
        backend.init_forward_metadata(case.forward_batch())
    assert backend.use_paged is False and not hasattr(backend.indices_updater_prefill, "_sgl_compiled_mask")


def test_a_plan_that_ignores_the_mask_is_noticed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[0]
    backend, _, _, _, _ = make(case)
    backend.indices_updater_prefill.update = lambda *_, **__: None
    with pytest.raises(AssertionError):
        backend.init_forward_metadata(case.forward_batch())


@pytest.mark.parametrize("field", ["extend_prefix_lens_cpu", "extend_seq_lens_cpu", "seq_lens_cpu"])
def test_a_batch_that_is_not_the_trees_batch_is_refused(field: str, make: Make) -> None:
    """Padded or split batches must not reach the kernel with a mask of another shape."""
    case = Case("two", (Part(12, 1, FORK), Part(3, 4)))
    backend, paged, _, _, _ = make(case)
    batch = case.forward_batch()
    values = [int(value) + (index == 0) for index, value in enumerate(getattr(batch, field))]
    setattr(batch, field, torch.tensor(values) if field == "seq_lens_cpu" else values)
    with pytest.raises((AssertionError, ValueError)):
        backend.init_forward_metadata(batch)
    assert paged.calls == []
