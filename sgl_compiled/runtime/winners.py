"""What a finished probe leaves in the radix cache: its prompt and the path that won, nothing else of the tree."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sgl_compiled.runtime.admission import probe_of
from sgl_compiled.runtime.payload import Probe
from sgl_compiled.runtime.results import numbers_of
from sgl_compiled.runtime.transfer import to_device

__all__ = ["cache_finished_req", "greedy_path"]


def greedy_path(probe: Probe, tokens: Sequence[int], numbers: np.ndarray[Any, np.dtype[np.float32]]) -> list[int]:
    """Tree positions of the greedy winner, as far as the tree follows it.

    Parameters
    ----------
    probe : Probe
    tokens : sequence of int
        Token of each tree position.
    numbers : ndarray of float32
        As :func:`sgl_compiled.runtime.rows.gather` returns them.
    """
    children: dict[int, dict[int, int]] = {}
    for index, parent in enumerate(probe.parents):
        children.setdefault(parent, {})[tokens[index]] = index
    winner: dict[int, int] = {}
    at = len(probe.rows)
    for row, legal in zip(probe.rows, probe.legal, strict=True):
        winner[row] = legal[int(np.argmax(numbers[at : at + len(legal)]))]
        at += len(legal)
    path: list[int] = []
    node = -1
    while node in children:
        token = winner.get(node)
        following = children[node]
        if token is None:
            # No decision is read here: the tree has one way on.
            node = next(iter(following.values()))
        elif token in following:
            node = following[token]
        else:
            break
        path.append(node)
    return path


def cache_finished_req(original: Callable[..., None], self: Any, req: Any, is_insert: bool = True) -> None:
    """Insert a finished probe's prompt and winning path: ``RadixCache.cache_finished_req``.

    The path's slots are moved next to the prompt's in the request's slot table, the other tree slots are freed, and
    SGLang's own routine then inserts what is left as an ordinary sequence.
    """
    probe = probe_of(req)
    numbers = numbers_of(req)
    if probe is None or not probe.parents or self.disable or req.kv_committed_len != probe.base + len(probe.parents):
        return original(self, req, is_insert)
    tree_tokens = list(req.origin_input_ids[probe.base :])
    path: list[int] = []
    kept = probe.base // self.page_size * self.page_size
    slots = self.req_to_token_pool.req_to_token[req.req_pool_idx]
    # Pages hold consecutive tokens: moving single slots between them would need copies of KV, so there the path goes.
    if self.page_size == 1 and probe.keep and numbers is not None and np.isfinite(numbers).all():
        path = greedy_path(probe, tree_tokens, numbers)
        tree = slots[probe.base : probe.base + len(tree_tokens)].clone()
        chosen = set(path)
        order = [*path, *(i for i in range(len(tree_tokens)) if i not in chosen)]
        slots[probe.base : probe.base + len(tree_tokens)] = tree[to_device(order, tree.device)]
        kept += len(path)
    self.token_to_kv_pool_allocator.free(slots[kept : req.kv_committed_len])
    req.origin_input_ids = array("q", [*req.origin_input_ids[: probe.base], *(tree_tokens[i] for i in path)])
    req.kv_committed_len = req.kv_allocated_len = kept
    return original(self, req, numbers is not None)
