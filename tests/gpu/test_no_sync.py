"""What the plugin adds to a forward never waits for the device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from sgl_compiled.runtime.device_masks import batch_mask
from sgl_compiled.runtime.rows import gather
from sgl_compiled.runtime.transfer import to_device, to_host
from tests.contract.batches import MASKED, Case

pytestmark = pytest.mark.gpu


@pytest.fixture
def no_sync() -> Iterator[None]:
    # Memory is reserved before: its first allocation may wait.
    torch.empty(1 << 28, device="cuda")
    to_device(range(1000), torch.device("cuda"))
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("case", MASKED, ids=lambda case: case.name)
@pytest.mark.usefixtures("no_sync")
def test_masks(case: Case) -> None:
    torch.cuda.set_sync_debug_mode("default")
    batch = case.forward_batch("cuda")
    torch.cuda.set_sync_debug_mode("error")
    mask = batch_mask(case.trees, batch)
    torch.cuda.set_sync_debug_mode("default")
    reference = np.concatenate([part.ravel() for part in case.reference_masks()])
    assert np.array_equal(mask.flat.cpu().numpy(), reference)


@pytest.mark.usefixtures("no_sync")
def test_rows_and_their_copy() -> None:
    case = next(case for case in MASKED if case.name == "everything mixed")
    hidden = torch.randn(sum(case.extend_lens), 16, device="cuda")
    head = torch.randn(16, 50, device="cuda")
    numbers = gather(case.trees, hidden, lambda states: states @ head)
    copies = [None if one is None else to_host(one) for one in numbers]
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    for one, copy in zip(numbers, copies, strict=True):
        assert (one is None) == (copy is None)
        assert one is None or copy is None or (copy.is_pinned() and torch.equal(one.cpu(), copy))
