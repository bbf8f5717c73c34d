"""What a finished probe leaves behind, on a radix cache and pools of SGLang's own."""

from __future__ import annotations

import warnings
from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sgl_compiled.runtime.payload import Probe

with warnings.catch_warnings():
    # Importing SGLang on a CPU warns about kernels that it will not use.
    warnings.simplefilter("ignore")
    from sgl_compiled.runtime import winners

#: Two labels of two tokens; the second level decides again behind each.
PARENTS = (-1, 0, -1, 2)
TOKENS = [10, 11, 20, 21]
PROBE = Probe(5, PARENTS, (-1, 1, 3), ((10, 20), (30, 31), (30, 31)), True)


def numbers(root: tuple[float, float], left: tuple[float, float], right: tuple[float, float]) -> np.ndarray:
    return np.array([9.0, 9.0, 9.0, *root, *left, *right], dtype=np.float32)


@pytest.mark.parametrize(("root", "path"), [((2.0, 1.0), [0, 1]), ((1.0, 2.0), [2, 3]), ((1.0, 1.0), [0, 1])])
def test_greedy_path(root: tuple[float, float], path: list[int]) -> None:
    assert winners.greedy_path(PROBE, TOKENS, numbers(root, (0, 1), (1, 0))) == path


def test_a_winner_outside_the_tree_ends_the_path() -> None:
    probe = Probe(5, (-1, 0), (-1, 1), ((10, 20), (30, 31)), True)
    assert winners.greedy_path(probe, [10, 11], np.array([9.0, 9.0, 1.0, 2.0, 0, 0], dtype=np.float32)) == []


class Cache:
    """Stands where the radix cache does: it records what SGLang's routine is left with."""

    def __init__(self, page_size: int, slots: int) -> None:
        self.disable = False
        self.page_size = page_size
        self.freed: list[int] = []
        self.req_to_token_pool = SimpleNamespace(req_to_token=torch.arange(100, 100 + slots).unsqueeze(0))
        self.token_to_kv_pool_allocator = SimpleNamespace(free=lambda slots: self.freed.extend(slots.tolist()))
        self.inserted: Any = None


def finish(page_size: int, found: np.ndarray | None, base: int = 5) -> tuple[Cache, Any]:
    probe = Probe(base, PARENTS, PROBE.rows, PROBE.legal, True)
    cache = Cache(page_size, base + 4)
    req = SimpleNamespace(
        sgl_compiled_probe=probe,
        sgl_compiled_numbers=found,
        req_pool_idx=0,
        origin_input_ids=array("q", [*range(1, base + 1), *TOKENS]),
        kv_committed_len=base + 4,
        kv_allocated_len=base + 4,
    )

    def original(self: Cache, req: Any, is_insert: bool) -> None:
        slots = self.req_to_token_pool.req_to_token[0, : req.kv_committed_len].tolist()
        self.inserted = (list(req.origin_input_ids[: req.kv_committed_len]), slots, is_insert)

    winners.cache_finished_req(original, cache, req)
    return cache, req


def test_prompt_and_winner_stay_and_the_rest_is_freed() -> None:
    cache, req = finish(1, numbers((1, 2), (0, 1), (1, 0)))
    assert cache.inserted == ([1, 2, 3, 4, 5, 20, 21], [100, 101, 102, 103, 104, 107, 108], True)
    assert sorted(cache.freed) == [105, 106]
    assert req.kv_allocated_len == req.kv_committed_len == 7


def test_with_pages_the_whole_pages_of_the_prompt_stay() -> None:
    cache, _ = finish(4, numbers((1, 2), (0, 1), (1, 0)))
    assert cache.inserted == ([1, 2, 3, 4], [100, 101, 102, 103], True)
    assert sorted(cache.freed) == [104, 105, 106, 107, 108]


def test_a_cancelled_or_broken_probe_leaves_at_most_its_prompt() -> None:
    cancelled, _ = finish(1, None)
    assert cancelled.inserted == ([1, 2, 3, 4, 5], [100, 101, 102, 103, 104], False)
    broken, _ = finish(1, numbers((np.nan, 2), (0, 1), (1, 0)))
    assert broken.inserted[0] == [1, 2, 3, 4, 5]
    assert sorted(broken.freed) == [105, 106, 107, 108]
