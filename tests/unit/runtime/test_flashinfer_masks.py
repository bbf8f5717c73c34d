"""Masks of whole batches for GPU kernels, and how many bytes of them a batch may need."""

from __future__ import annotations

import warnings
from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sglang.srt.managers.schedule_policy import AddReqResult

from sgl_compiled.runtime.admission import add_one_req
from sgl_compiled.runtime.device_masks import BatchMask, MaskLayout, ancestor_pairs
from sgl_compiled.runtime.forward import ProbeSlice, TreeBatch
from sgl_compiled.runtime.mask_limit import MASK_LIMIT_BYTES, mask_fits, mask_positions
from sgl_compiled.runtime.masks import ancestor_mask, extend_mask
from sgl_compiled.runtime.payload import Probe

CPU = torch.device("cpu")
FORK = (-1, -1, 0, 0, 1, 1, 2, 6, 7)


def trees_of(parts: list[tuple[int, int, tuple[int, ...] | None]]) -> TreeBatch:
    slices, start = [], 0
    for index, (prefix, prompt, parents) in enumerate(parts):
        if parents is not None:
            probe = Probe(prefix + prompt, parents, (0,), ((1,),))
            slices.append(ProbeSlice(index, start, prefix, prompt, probe))
        start += prompt + len(parents or ())
    return TreeBatch(tuple(slices), len(parts))


@st.composite
def parents(draw: st.DrawFn, most: int = 12) -> tuple[int, ...]:
    n = draw(st.integers(1, most))
    return tuple(draw(st.integers(-1, index - 1)) for index in range(n))


def part() -> st.SearchStrategy[tuple[int, int, tuple[int, ...] | None]]:
    plain = st.tuples(st.integers(0, 20), st.integers(1, 9), st.none())
    probe = st.tuples(st.integers(0, 20), st.integers(0, 9), parents())
    return plain | probe


@settings(max_examples=50, deadline=None)
@given(st.lists(part(), min_size=1, max_size=5))
def test_a_batch_mask_is_the_requests_masks_one_after_the_other(
    parts: list[tuple[int, int, tuple[int, ...] | None]],
) -> None:
    extend = [prompt + len(tree or ()) for _, prompt, tree in parts]
    mask = MaskLayout.of(trees_of(parts), extend, [prefix for prefix, _, _ in parts]).build(CPU)
    masks = [extend_mask(prompt, prefix, tree or ()) for prefix, prompt, tree in parts]
    assert np.array_equal(mask.flat.numpy(), np.concatenate([one.ravel() for one in masks]))
    mask.check(extend, [one.shape[1] for one in masks])
    assert mask.offsets == [0, *np.cumsum([one.size for one in masks])]


@given(parents(40))
def test_ancestor_pairs_are_the_mask(tree: tuple[int, ...]) -> None:
    mask = np.zeros((len(tree), len(tree)), dtype=bool)
    mask[ancestor_pairs(tree)] = True
    assert np.array_equal(mask, ancestor_mask(tree))


@pytest.mark.parametrize("tree", [(1, -1), (0,), (-1, 2, 0)])
def test_a_parent_behind_its_child_is_refused(tree: tuple[int, ...]) -> None:
    """Kernels that stop at a row's own position would miss it."""
    with pytest.raises(AssertionError):
        ancestor_pairs(tree)


BAD = {
    "tree_only": (9, 9),
    "transposed": (21, 9),
    "one_row_short": (8, 21),
    "one_column_extra": (9, 22),
}


@pytest.mark.parametrize("name", BAD)
def test_masks_of_another_shape_are_refused(name: str) -> None:
    rows, columns = BAD[name]
    with pytest.raises(ValueError, match="tree mask"):
        BatchMask(torch.ones(rows * columns, dtype=torch.bool), (BAD[name],)).check([9], [21])


@pytest.mark.parametrize(
    "flat", [torch.ones(9 * 20, dtype=torch.bool), torch.ones(9 * 21, dtype=torch.uint8), torch.ones(9, 21) > 0]
)
def test_masks_that_belie_their_shapes_are_refused(flat: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="bools"):
        BatchMask(flat, ((9, 21),)).check([9], [21])


def test_a_mask_for_another_batch_is_refused() -> None:
    mask = BatchMask(torch.ones(9 * 21, dtype=torch.bool), ((9, 21),))
    with pytest.raises(ValueError, match="shapes"):
        mask.check([9, 1], [21, 5])


def test_a_layout_for_another_prefix_is_refused() -> None:
    with pytest.raises(AssertionError):
        MaskLayout.of(trees_of([(12, 1, FORK)]), [10], [11])


def test_sizes_beyond_32_bits_are_counted_and_never_built() -> None:
    """A hundred and thirty thousand cached tokens under forty trees: 2.7e9 bits."""
    parts: list[tuple[int, int, tuple[int, ...] | None]] = [(131_072, 0, tuple([-1] * 512))] * 40
    layout = MaskLayout.of(trees_of(parts), [512] * 40, [131_072] * 40)
    assert sum(rows * columns for rows, columns in layout.shapes) == 2_694_840_320 > 2**31
    assert layout.bits.max() > 2**31 and (np.diff(layout.bits) > 0).all()
    with pytest.raises(AssertionError):
        layout.build(CPU)


# Admission.


def request(cached: int, total: int, parents: tuple[int, ...] = ()) -> Any:
    custom = None
    if parents:
        custom = {
            "sgl_compiled_base": total - len(parents),
            "sgl_compiled_parents": list(parents),
            "sgl_compiled_rows": [-1],
            "sgl_compiled_legal": [1, 2],
            "sgl_compiled_counts": [2],
            "sgl_compiled_keep": True,
        }
    tokens = array("q", [3]) * total
    return SimpleNamespace(
        sampling_params=SimpleNamespace(custom_params=custom, max_new_tokens=1),
        stream=False,
        return_logprob=False,
        return_hidden_states=False,
        init_next_round_input=lambda tree_cache: None,
        vocab_size=10,
        origin_input_ids=tokens,
        output_ids=array("q"),
        full_untruncated_fill_ids=tokens,
        prefix_indices=[0] * cached,
        skip_radix_cache_insert=False,
    )


class Adder:
    """The parts of SGLang's ``PrefillAdder`` that the hook reads."""

    def __init__(self, device: str = "cuda", chunk: int | None = None) -> None:
        self.can_run_list: list[Any] = []
        self.rem_chunk_tokens = chunk
        self.token_to_kv_pool_allocator = SimpleNamespace(device=device)
        self.tree_cache = None

    def ceil_paged_tokens(self, tokens: int) -> int:
        return tokens

    def add(self, req: Any) -> Any:
        return add_one_req(Adder._add, self, req)  # type: ignore[arg-type]

    def _add(self, req: Any) -> Any:
        start, end = len(req.prefix_indices), len(req.full_untruncated_fill_ids)
        req.extend_range = SimpleNamespace(length=end - start, end=end)
        self.can_run_list.append(req)
        return AddReqResult.CONTINUE


def mask_bytes(adder: Adder) -> int:
    return sum(req.extend_range.length * req.extend_range.end for req in adder.can_run_list)


def test_forty_long_probes_come_in_batches_below_the_limit() -> None:
    waiting = [request(130_700, 131_072, tuple([-1] * 370)) for _ in range(40)]
    batches = 0
    while waiting:
        adder = Adder()
        while waiting and adder.add(waiting[0]) is AddReqResult.CONTINUE:
            waiting.pop(0)
        assert 0 < mask_bytes(adder) <= MASK_LIMIT_BYTES
        batches += 1
    assert batches == 40


def test_short_probes_share_a_batch() -> None:
    adder = Adder()
    for _ in range(32):
        assert adder.add(request(1400, 1461, tuple([-1] * 60))) is AddReqResult.CONTINUE
    assert mask_bytes(adder) == 32 * 61 * 1461


def test_a_plain_request_that_would_fill_the_mask_waits_a_round() -> None:
    adder = Adder()
    probe, large = request(1400, 1461, FORK), request(0, 8000)
    assert adder.add(probe) is AddReqResult.CONTINUE
    assert adder.add(large) is AddReqResult.OTHER
    assert adder.can_run_list == [probe]
    fresh = Adder()
    assert fresh.add(large) is AddReqResult.CONTINUE
    assert fresh.add(request(0, 8000)) is AddReqResult.CONTINUE
    assert fresh.add(probe) is AddReqResult.OTHER


def test_a_probe_too_large_on_its_own_gives_up_its_tree() -> None:
    adder = Adder()
    probe = request(0, 8010, FORK)
    assert adder.add(probe) is AddReqResult.CONTINUE
    assert len(probe.full_untruncated_fill_ids) == 8010 - len(FORK)
    # Without a tree there is no mask, so the batch stays open.
    assert adder.add(request(0, 8000)) is AddReqResult.CONTINUE


def test_without_a_tree_nothing_is_limited() -> None:
    adder = Adder()
    for _ in range(3):
        assert adder.add(request(0, 100_000)) is AddReqResult.CONTINUE


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_cpu_attention_has_no_batch_mask(device: Any) -> None:
    assert mask_fits(Adder(device=device), request(0, 1_000_000))


@given(st.integers(1, 2_000_000), st.integers(0, 10_000))
def test_the_largest_tree_fits_and_one_more_does_not(tokens: int, rows: int) -> None:
    largest = mask_positions(tokens, rows)
    assert largest == 0 or (largest + rows) * (largest + tokens) <= MASK_LIMIT_BYTES
    assert (largest + 1 + rows) * (largest + 1 + tokens) > MASK_LIMIT_BYTES
