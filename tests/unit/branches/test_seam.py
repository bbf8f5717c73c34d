"""The hooks around a scheduler loop: no request is lost, stuck, run twice in a step, or left behind."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("sglang")

from sgl_compiled.branches.runtime import BranchRuntime
from sgl_compiled.branches.slo import BranchSettings
from sgl_compiled.branches.telemetry import Telemetry

from .loop import Batch, Loop, Req, seam


def group(name: str, fanout: int, length: int = 20, **tag) -> list[Req]:
    return [Req(f"{name}-{i}", length, {"id": name, "branch": i, **tag}) for i in range(fanout)]


def drain(loop: Loop, turns: int = 20000) -> None:
    for _ in range(turns):
        loop.turn()
        if loop.last_batch is None:
            return
    raise AssertionError(f"still alive: {[req.rid for req in loop.running_batch.reqs]}")


@pytest.mark.parametrize("policy", ["off", "cap:2", "eager", "taper"])
def test_everything_finishes_with_the_tokens_it_asked_for(policy):
    loop = Loop(policy)
    loop.waiting_queue = [Req("serial", 30), *group("a", 5), *group("b", 3, length=7)]
    drain(loop)
    assert len(loop.finished) == 9
    assert all(req.output_ids == list(range(req.length)) for req in loop.finished)
    assert loop.runtime.parked is None
    width = max(sum(rid.startswith("a-") for rid in mask) for mask in loop.masks)
    assert width == {"off": 1, "cap:2": 2, "eager": 5, "taper": 5}[policy]


def test_without_a_group_the_original_gets_the_batch_untouched():
    loop, seen = Loop("off"), []

    def original(scheduler, batch):
        seen.append((batch, list(batch.reqs)))
        return batch

    batch = Batch([Req("x", 5), Req("y", 5, {"id": "alone"})])
    batch.reqs[0].done = True
    reqs = list(batch.reqs)
    assert seam.update_running_batch(original, loop, batch) is batch
    assert seen == [(batch, reqs)]
    assert not loop.runtime.active


def test_a_row_that_finishes_while_parked_is_dropped():
    loop = Loop("off")
    loop.waiting_queue = group("a", 3)
    loop.turn()
    loop.runtime.parked.reqs[0].done = True
    drain(loop)
    assert len(loop.finished) == 2


def test_an_aborted_row_runs_at_once_to_be_cleaned_up():
    loop = Loop("off")
    loop.waiting_queue = group("a", 4, length=500)
    loop.turn()
    loop.turn([seam.AbortReq(rid="a-3")])
    assert [req.rid for req in loop.finished] == ["a-3"]


def test_an_aborted_parent_takes_its_branches_along_and_nobody_else():
    loop = Loop("off")
    loop.waiting_queue = [*group("kids", 4, length=500, parent="mum"), *group("a", 2, length=30)]
    loop.turn()
    loop.turn([seam.AbortReq(rid="mum")])
    assert sorted(req.rid for req in loop.finished) == [f"kids-{i}" for i in range(4)]
    drain(loop)
    assert len(loop.finished) == 6


def test_aborting_one_branch_leaves_the_others():
    loop = Loop("eager")
    loop.waiting_queue = group("a", 8, length=30)
    loop.turn()
    loop.turn([seam.AbortReq(rid="a-2")])
    drain(loop)
    assert sum(len(req.output_ids) == 30 for req in loop.finished) == 7


def test_an_abort_takes_no_stranger_along():
    """SGLang aborts by the beginning of an id: `job-1` would end `job-10` as well, and an empty id everything."""
    loop = Loop("off")
    loop.waiting_queue = [Req(rid, 50, {"id": "family"}) for rid in ("job-1", "", "kin")] + [Req("job-10", 50)]
    loop.turn()
    changed = seam.process_input_requests(loop, [seam.AbortReq(rid="family")])
    assert [request.rid for request in changed[0][1]] == ["family", "kin"]


def test_a_paused_engine_teaches_nothing():
    loop = Loop("eager")
    loop.waiting_queue = group("a", 3, length=200)
    for _ in range(20):
        loop.turn()
    seen = loop.runtime.predictor.observations
    loop._engine_paused = True
    for _ in range(50):
        seam.process_input_requests(loop, [])
    assert loop.runtime.predictor.observations == seen
    loop._engine_paused = False
    loop.turn()


def test_rows_run_together_where_prefills_are_mixed_with_decodes():
    loop = Loop("off")
    loop.is_mixed_chunk = True
    loop.waiting_queue = group("a", 3)
    loop.turn()
    assert loop.masks[-1] == ["a-0", "a-1", "a-2"]


def test_rows_that_come_back_for_want_of_memory_have_waited_for_the_last_time():
    loop = Loop("off")
    rows = loop.waiting_queue = group("a", 3, length=50)
    for _ in range(4):
        loop.turn()
    assert any(loop.runtime.row_of(row).waited_steps for row in rows)
    loop.turn(memory=False)
    assert not any(loop.runtime.row_of(row).waited_steps for row in rows)


def test_groups_that_never_had_two_rows_are_forgotten():
    loop = Loop("taper")
    for number in range(300):
        loop.runtime.row_of(Req(f"r{number}", 5, {"id": f"group {number}"}))
        loop.now += 10.0
    assert len(loop.runtime.table.groups) < 100


def test_short_memory_shows_all_rows_to_retraction():
    loop = Loop("off")
    loop.waiting_queue = group("a", 4)
    loop.turn()
    loop.turn(memory=False)
    assert len(loop.masks[-1]) == 3
    drain(loop)
    assert len(loop.finished) == 4


def test_rows_that_leave_reopen_the_batch():
    loop = Loop("off")
    loop.waiting_queue = [Req("short", 2), *group("a", 3)]
    loop.turn()
    assert loop.running_batch.batch_is_full
    loop.turn()
    assert not loop.running_batch.batch_is_full


def test_a_malformed_tag_runs_ungrouped():
    loop = Loop("off")
    loop.waiting_queue = [Req("x", 4, {"branch": 1}), Req("y", 4, {"id": 7}), *group("a", 2, length=4)]
    drain(loop)
    assert len(loop.finished) == 4


def run_with_faults(seed: int, policy: str, until_s: float) -> Loop:
    """Arrivals, aborts of rows and of parents, memory shortage and policy changes, all at random."""
    rng, loop, sent, step = random.Random(seed), Loop(policy), 0, 0
    while loop.now < until_s:
        step += 1
        if rng.random() < 0.1 or not loop.running_batch.reqs:
            new = group(f"g{step}", rng.randint(1, 6), rng.randint(2, 60), parent=f"p{step}", slo={"tpot_s": 0.02})
            loop.waiting_queue += [*new, Req(f"s{step}", rng.randint(2, 40))]
            sent += len(new) + 1
        everyone = loop.running_batch.reqs + (loop.runtime.parked.reqs if loop.runtime.parked else [])
        received = []
        if everyone and rng.random() < 0.1:
            received.append(seam.AbortReq(rid=rng.choice(everyone).rid))
        if rng.random() < 0.03:
            received.append(seam.AbortReq(rid=f"p{rng.randint(max(step - 100, 0), step)}"))
        if rng.random() < 0.05:
            loop.runtime.set_policy(rng.choice(["off", "eager", "cap:3", "taper"]))
        loop.turn(received, memory=rng.random() > 0.05)
        assert len(set(loop.masks[-1])) == len(loop.masks[-1])
    drain(loop)
    assert len(loop.finished) == len({req.rid for req in loop.finished}) == sent
    for req in loop.finished:
        assert req.to_finish or req.output_ids == list(range(req.length))
    assert loop.runtime.parked is None
    return loop


@given(st.integers(0, 10**6), st.sampled_from(["off", "cap:2", "taper"]))
@settings(max_examples=10, deadline=None)
def test_random_faults_lose_nothing(seed, policy):
    run_with_faults(seed, policy, until_s=6.0)


@pytest.mark.long
@pytest.mark.parametrize("policy", ["off", "taper"])
def test_half_an_hour_of_random_faults(policy):
    loop = run_with_faults(4, policy, until_s=1800.0)
    loop.runtime.table.forget_idle(loop.now + 601.0)
    assert not loop.runtime.table.groups


def test_a_group_whose_only_row_decodes_for_long_is_kept() -> None:
    loop = Loop("taper")
    loop.running_batch = Batch(group("a", 1, 10**6))
    first = loop.runtime.row_of(loop.running_batch.reqs[0]).group
    for _ in range(25):
        loop.now += 59.0
        loop.turn()
        loop.runtime.row_of(Req("other", 5))
    late = Req("a-1", 20, {"id": "a", "branch": 1})
    assert loop.runtime.row_of(late).group is first


@pytest.mark.parametrize(
    ("device", "backend", "sizes"), [("cuda", "full", (1, 2, 8)), ("cuda", "disabled", ()), ("cpu", "full", ())]
)
def test_step_times_know_the_captured_batch_sizes(device: str, backend: str, sizes: tuple[int, ...]) -> None:
    from sglang.srt.model_executor.cuda_graph_config import default_cuda_graph_config

    graphs = default_cuda_graph_config()
    graphs.decode.backend, graphs.decode.bs = backend, [8, 1, 2]
    scheduler = SimpleNamespace(
        server_args=SimpleNamespace(cuda_graph_config=graphs, enable_metrics=False),
        device=device,
        enable_overlap=True,
        ps=SimpleNamespace(tp_rank=0, tp_size=1),
    )
    runtime = seam._make_runtime(scheduler)
    assert runtime.predictor.capture_sizes == sizes
    assert runtime.behind == (device == "cuda")


class Prompted:
    """Sampling parameters as GenerateReqInput holds them after normalisation."""

    def __init__(self, params, samples=1):
        self.sampling_params, self.parallel_sample_num = params, samples


def test_samples_get_one_group_for_each_prompt():
    shared = {"n": 3, "custom_params": {"mine": 1}}
    request = Prompted([shared] * 6, 3)
    seam.normalize_request(None, request)
    ids = [entry["custom_params"][seam.TAG]["id"] for entry in request.sampling_params]
    assert len(set(ids)) == 6  # the two prompts use the first two
    assert shared == {"n": 3, "custom_params": {"mine": 1}}
    assert request.sampling_params[0]["custom_params"]["mine"] == 1


def test_a_tag_of_the_client_is_kept():
    entry = {"n": 2, "custom_params": {seam.TAG: {"id": "mine"}}}
    request = Prompted([entry] * 2, 2)
    seam.normalize_request(None, request)
    assert request.sampling_params[0]["custom_params"][seam.TAG] == {"id": "mine"}


@pytest.mark.parametrize("params", [{}, None, {"custom_params": None}, {"custom_params": {"a": 1}}])
def test_plain_requests_pass(params):
    seam.normalize_request(None, Prompted(params))


def test_control_request_changes_the_policy_and_leaves_the_rest():
    loop = Loop("off")
    request = seam.SetInternalStateReq(server_args={seam.POLICY_KEY: "cap:7", "other": 1})
    assert seam.process_input_requests(loop, [request]) is None
    assert loop.runtime.policy.name == "cap:7"
    assert request.server_args == {"other": 1}
    wrong = seam.SetInternalStateReq(server_args={seam.POLICY_KEY: "best"})
    seam.process_input_requests(loop, [wrong])
    assert loop.runtime.policy.name == "cap:7"
    assert wrong.server_args == {seam.POLICY_KEY: "best"}


@pytest.mark.parametrize(("behind", "learnt"), [(False, [(3, 1.0), (4, 2.0)]), (True, [(2, 1.0), (3, 2.0)])])
def test_a_turn_is_learnt_for_the_batch_whose_work_it_waited_for(behind: bool, learnt: list[tuple[int, float]]) -> None:
    """On a CPU its own; on a GPU under the overlap scheduler the one before it."""
    times, seen = iter([0.0, 1.0, 3.0]), []
    predictor = SimpleNamespace(observe=lambda features, elapsed_s: seen.append((features.batch, elapsed_s)) or 0.0)
    runtime = BranchRuntime(BranchSettings("taper"), predictor, Telemetry(), behind=behind, clock=lambda: next(times))
    runtime.active = True
    for rows in (2, 3, 4):
        decode = SimpleNamespace(is_extend=lambda: False)
        runtime.turn(SimpleNamespace(reqs=[None] * rows, forward_mode=decode, seq_lens_cpu=np.full(rows, 10)))
    assert seen == learnt
