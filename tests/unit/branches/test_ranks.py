"""Two processes, one decision: clocks that disagree must not make ranks disagree."""

from __future__ import annotations

import socket

import pytest

pytest.importorskip("sglang")

import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as processes  # noqa: E402

from .loop import Loop, Req, seam  # noqa: E402

STEPS = 120


def _rank(rank: int, port: int, agree: bool, results) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    vote = (lambda run: seam.broadcast_decision(run, dist.group.WORLD)) if agree else None
    # The second rank's clock is a minute ahead and runs twice as fast: every step seems to break the target.
    loop = Loop("taper", clock=lambda: loop.now * (1 + rank) + 60.0 * rank, leader=rank == 0 or not agree, agree=vote)
    tag = {"id": "a", "slo": {"e2e_s": 500.0}}
    tight = {"id": "s", "slo": {"tpot_s": 0.0135}}
    loop.waiting_queue = [Req("s", 400, tight), *(Req(f"a-{i}", 300 + i, tag | {"branch": i}) for i in range(6))]
    for _ in range(STEPS):
        loop.turn()
    results.put((rank, [sorted(mask) for mask in loop.masks]))
    dist.destroy_process_group()


def masks_of_two_ranks(agree: bool):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = processes.get_context("fork")
    results = context.Queue()
    ranks = [context.Process(target=_rank, args=(rank, port, agree, results)) for rank in range(2)]
    for process in ranks:
        process.start()
    masks = dict(results.get(timeout=240) for _ in ranks)
    for process in ranks:
        process.join(120)
        assert process.exitcode == 0
    return masks


def test_ranks_take_the_decision_of_the_first():
    masks = masks_of_two_ranks(agree=True)
    assert masks[0] == masks[1]
    assert len(masks[0]) == STEPS
    assert len({len(mask) for mask in masks[0]}) > 1, "the policy never parked a row: the test shows nothing"


def test_without_the_broadcast_these_clocks_do_disagree():
    masks = masks_of_two_ranks(agree=False)
    assert masks[0] != masks[1]
