"""Positions of tree tokens, and what survives SGLang's copies of a forward batch."""

from __future__ import annotations

import copy
import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardBatch

from sgl_compiled.runtime.forward import init_new, tree_batch_of
from sgl_compiled.runtime.payload import encode
from tests.contract.batches import CASES, Case


def schedule_batch(case: Case) -> Any:
    """A batch of requests that carry their trees the way clients send them."""
    reqs = []
    for part in case.parts:
        custom = None
        if part.parents is not None:
            probe = part.probe()
            rows = [SimpleNamespace(node=row, legal=legal) for row, legal in zip(probe.rows, probe.legal, strict=True)]
            custom = encode(SimpleNamespace(parents=part.parents, rows=rows), probe.base)  # type: ignore[arg-type]
        params = SimpleNamespace(custom_params=custom, max_new_tokens=1)
        reqs.append(
            SimpleNamespace(
                sampling_params=params,
                stream=False,
                return_logprob=False,
                return_hidden_states=False,
                origin_input_ids=[5] * part.total,
                vocab_size=100,
            )
        )
    return SimpleNamespace(
        reqs=reqs,
        forward_mode=SimpleNamespace(is_extend=lambda: True),
        prefix_lens=[part.prefix for part in case.parts],
        extend_lens=case.extend_lens,
    )


def plain_batch(case: Case) -> Any:
    batch = case.forward_batch()
    batch.cross_attention_custom_mask = None
    return batch


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_tree_tokens_stand_at_their_depth(case: Case) -> None:
    usable = all(part.parents != () or part.prompt for part in case.parts)
    assert usable
    batch = init_new(lambda *_: plain_batch(case), ForwardBatch, schedule_batch(case), None)
    assert batch.positions.tolist() == case.reference_positions()
    trees = tree_batch_of(batch)
    assert (trees is None) == (not case.trees.slices)
    if trees is not None:
        assert trees.slices == case.trees.slices and trees.size == len(case.parts)


def test_a_prompt_in_chunks_has_no_tree_yet() -> None:
    case = next(case for case in CASES if case.name == "fresh probe")
    batch = schedule_batch(case)
    batch.extend_lens = [4]
    assert tree_batch_of(init_new(lambda *_: plain_batch(case), ForwardBatch, batch, None)) is None


def test_trees_ride_in_a_declared_field() -> None:
    """Ad-hoc attributes are lost where SGLang rebuilds a batch; declared fields are carried over."""
    names = {field.name for field in dataclasses.fields(ForwardBatch)}
    assert "cross_attention_custom_mask" in names
    batch = ForwardBatch.__new__(ForwardBatch)
    batch.cross_attention_custom_mask = CASES[0].trees
    assert tree_batch_of(copy.copy(batch)) is CASES[0].trees
    assert tree_batch_of(SimpleNamespace(cross_attention_custom_mask=torch.ones(3))) is None
