"""Tree attention against a plain softmax over each row's own path."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_compiled.runtime.masks import ancestor_mask, extend_mask
from sgl_compiled.runtime.payload import Probe
from tests.cases import BY_ID

with warnings.catch_warnings():
    # Importing SGLang on a CPU warns about kernels that it will not use.
    warnings.simplefilter("ignore")
    from sgl_compiled.runtime.attention_cpu import attend
    from sgl_compiled.runtime.forward import ProbeSlice

trees = st.lists(st.integers(0, 10**6), max_size=12).map(
    lambda draws: tuple(draw % (index + 1) - 1 for index, draw in enumerate(draws))
)


def visible(position: int, base: int, parents: tuple[int, ...]) -> list[int]:
    """Positions that one position may attend to, from the definition."""
    if position < base:
        return list(range(position + 1))
    out, node = list(range(base)), position - base
    while node >= 0:
        out.append(base + node)
        node = parents[node]
    return sorted(out)


def plain(query: np.ndarray, key: np.ndarray, value: np.ndarray, seen: list[int], scale: float) -> np.ndarray:
    groups = query.shape[0] // key.shape[1]
    out = []
    for head in range(query.shape[0]):
        scores = key[seen, head // groups] @ query[head] * scale
        weights = np.exp(scores - scores.max())
        out.append(weights @ value[seen, head // groups] / weights.sum())
    return np.stack(out)


def check_rows(
    parents: tuple[int, ...], prefix_len: int, prompt_rows: int, groups: int, dim: int = 8, seed: int = 0
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows, base, kv_heads = prompt_rows + len(parents), prefix_len + prompt_rows, 2
    query = torch.randn(rows, kv_heads * groups, dim, generator=generator)
    key, value = (torch.randn(base + len(parents), kv_heads, dim, generator=generator) for _ in range(2))
    piece = ProbeSlice(0, 0, prefix_len, prompt_rows, Probe(base, parents, (), ()))
    found = attend(query, key, value, piece, dim**-0.5).numpy()
    for row in range(rows):
        seen = visible(prefix_len + row, base, parents)
        expected = plain(query[row].numpy(), key.numpy(), value.numpy(), seen, dim**-0.5)
        # float32 softmax of a few numbers; a wrong key changes the result in the first digit.
        assert np.allclose(found[row], expected, atol=1e-5)


@given(trees, st.integers(0, 20), st.integers(0, 9), st.sampled_from([1, 2, 3, 5]), st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_every_row_attends_its_own_path(
    parents: tuple[int, ...], prefix_len: int, prompt_rows: int, groups: int, seed: int
) -> None:
    if prompt_rows + len(parents) and prefix_len + prompt_rows:
        check_rows(parents, prefix_len, prompt_rows, groups, seed=seed)


HEADS = BY_ID["C05"]["input"]


@pytest.mark.parametrize("groups", HEADS["gqa_group_variants"])
@pytest.mark.parametrize("dim", HEADS["head_dim_variants"])
def test_any_ratio_and_size_of_heads(groups: int, dim: int) -> None:
    check_rows(tuple(HEADS["parents"]), HEADS["prefix_len"], 0, groups, dim)


@given(trees, st.integers(0, 6), st.integers(0, 6))
def test_masks_equal_their_definition(parents: tuple[int, ...], prefix_len: int, prompt_rows: int) -> None:
    base = prefix_len + prompt_rows
    mask = extend_mask(prompt_rows, prefix_len, parents)
    for row in range(prompt_rows + len(parents)):
        assert list(np.flatnonzero(mask[row])) == visible(prefix_len + row, base, parents)


def test_a_parent_behind_its_child_is_refused() -> None:
    with pytest.raises(AssertionError):
        ancestor_mask([1, -1])
