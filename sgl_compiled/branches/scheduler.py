"""The seam: three hooks in SGLang's scheduler and tokenizer processes.

- ``update_running_batch`` (around): with a group of two or more rows in the batch, park the rows the policy leaves out
  and run the rest; otherwise the original is called untouched.
- ``process_input_requests`` (before): the parked rows come back first, so that whatever the scheduler does between two
  steps (aborts, retraction, preemption, idle checks, cache flushes) sees every request. Control requests are read here.
- ``GenerateReqInput.normalize_batch_and_arguments`` (after): samples of ``n > 1`` get a tag of their own group, and a
  malformed tag is refused before anything reaches the scheduler.

The policy of a running server is changed by ``POST /set_internal_state`` with
``{"server_args": {"sgl_compiled_branch_policy": "cap:4"}}``.
"""

from __future__ import annotations

import logging
import uuid
from functools import lru_cache
from typing import Any

import torch
from sglang.srt.environ import envs
from sglang.srt.managers.io_struct import AbortReq, SetInternalStateReq

from ..errors import RequestError
from .parking import hide_last_token, split_batch
from .predictor import StepTimePredictor
from .runtime import BranchRuntime
from .slo import load_settings
from .tags import POLICY_KEY, TAG, belongs_to, parse_tag, tag_of
from .telemetry import Telemetry

__all__ = ["normalize_request", "process_input_requests", "set_policy", "update_running_batch"]

logger = logging.getLogger(__name__)

_RUNTIME = "_sgl_compiled_branches"
_runtimes: list[BranchRuntime] = []
_settings = lru_cache(maxsize=1)(load_settings)


def set_policy(name: str) -> None:
    """Change the policy in this scheduler process; under tensor parallelism use the control request instead."""
    for runtime in _runtimes:
        runtime.set_policy(name)


def runtime_of(scheduler: Any) -> BranchRuntime:
    """State of `scheduler`, made at the first call."""
    runtime: BranchRuntime | None = getattr(scheduler, _RUNTIME, None)
    if runtime is None:
        runtime = _make_runtime(scheduler)
        setattr(scheduler, _RUNTIME, runtime)
        _runtimes.append(runtime)
    return runtime


def _make_runtime(scheduler: Any) -> BranchRuntime:
    args, settings = scheduler.server_args, _settings()
    decode = args.cuda_graph_config.decode
    captured = scheduler.device == "cuda" and decode.backend != "disabled"
    graphs = tuple(sorted(decode.bs or ())) if captured else ()
    leader = scheduler.ps.tp_rank == 0
    runtime = BranchRuntime(
        settings,
        StepTimePredictor(capture_sizes=graphs),
        Telemetry(settings.trace if leader else None, metrics=leader and args.enable_metrics),
        overlap=scheduler.enable_overlap,
        behind=scheduler.enable_overlap and scheduler.device != "cpu",
        leader=leader,
        agree=None if scheduler.ps.tp_size == 1 else lambda run: broadcast_decision(run, scheduler.tp_cpu_group),
    )
    logger.info("branch scheduling is on: policy %s, tp rank %d", settings.policy, scheduler.ps.tp_rank)
    return runtime


def broadcast_decision(run: list[bool], group: Any) -> list[bool]:
    """Return the decision of the first rank of `group` on every rank."""
    mask = torch.tensor(run, dtype=torch.uint8)
    source = torch.distributed.get_process_group_ranks(group)[0]
    torch.distributed.broadcast(mask, src=source, group=group)
    return [bool(flag) for flag in mask.tolist()]


def update_running_batch(original: Any, scheduler: Any, batch: Any) -> Any:
    """Run the original on the rows that the policy admits."""
    runtime = runtime_of(scheduler)
    if not runtime.grouped(batch.reqs) or not _can_park(scheduler):
        runtime.rest()
        return original(scheduler, batch)
    before = len(batch.reqs)
    batch.filter_batch()
    if len(batch.reqs) < before:
        batch.batch_is_full = False  # the original would see no row leave
    if batch.is_empty():
        return original(scheduler, batch)
    runtime.active = True
    reqs, context = list(batch.reqs), batch.seq_lens_cpu.tolist()
    run = runtime.choose(reqs, context, scheduler.waiting_queue)
    parked = None
    if not all(run):
        parked = split_batch(batch, run)
        if not batch.check_decode_mem():  # retraction must be free to choose among all rows
            batch.merge_batch(parked)
            parked, run = None, [True] * len(reqs)
    back = runtime.count_waits(reqs, run)
    lagging = back if runtime.overlap and batch.sampling_info.penalizer_orchestrator.is_required else ()
    with hide_last_token(lagging):
        result = original(scheduler, batch)
    runtime.parked = parked
    return result


def _can_park(scheduler: Any) -> bool:
    """Tell whether this server knows how to do without some rows for a step.

    Neither pipeline stages nor memory checks in the middle of a step know of rows outside the running batch, and a
    prefill mixed with decodes takes every running row's last result for one still to come.
    """
    busy_check: bool = envs.SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY.get()
    alone = scheduler.ps.pp_size == 1 and scheduler.spec_algorithm.is_none()
    return alone and not scheduler.is_mixed_chunk and not busy_check


def process_input_requests(scheduler: Any, recv_reqs: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Bring parked rows back, learn from the last turn, and act on control requests and aborted parents."""
    runtime: BranchRuntime | None = getattr(scheduler, _RUNTIME, None)
    if runtime is not None and runtime.active:
        if scheduler._engine_paused:
            runtime.rest()  # the loop spins; its turns are no steps
        else:
            runtime.turn(scheduler.last_batch)
        _rejoin(scheduler, runtime)
    more: list[Any] = []
    for request in recv_reqs:
        if isinstance(request, AbortReq) and request.rid and not request.abort_all:
            more += _aborted_children(scheduler, request.rid)
        elif isinstance(request, SetInternalStateReq) and POLICY_KEY in request.server_args:
            _switch(scheduler, request)
    return ((scheduler, [*recv_reqs, *more]), {}) if more else None


def _rejoin(scheduler: Any, runtime: BranchRuntime) -> None:
    parked, runtime.parked = runtime.parked, None
    if parked is None:
        return
    parked.filter_batch()
    if parked.is_empty():
        return
    if scheduler.running_batch.is_empty():
        parked.batch_is_full = False
        scheduler.running_batch = parked
    else:
        scheduler.running_batch.merge_batch(parked)


def _aborted_children(scheduler: Any, rid: str) -> list[Any]:
    """Aborts for all members of the group `rid`, and of groups whose parent it is.

    SGLang aborts every request whose id begins so; a member whose own id would take a stranger along is left to end by
    itself.
    """
    members = [*scheduler.waiting_queue, *scheduler.running_batch.reqs, *scheduler.grammar_manager.grammar_queue]
    if scheduler.last_batch is not None:
        members += scheduler.last_batch.reqs
    ours: dict[str, None] = {}
    strangers: set[str] = set()
    for req in members:
        if belongs_to(tag_of(getattr(req.sampling_params, "custom_params", None)), rid):
            ours[req.rid] = None
        else:
            strangers.add(req.rid)
    safe = [child for child in ours if child and not any(other.startswith(child) for other in strangers)]
    if len(safe) < len(ours):
        logger.warning("members of %s run on: their request ids are empty or begin those of others", rid)
    return [AbortReq(rid=child) for child in safe if child != rid]


def _switch(scheduler: Any, request: Any) -> None:
    """Apply a policy name; one that does not exist stays in the request, and SGLang answers ``updated: false``."""
    try:
        runtime_of(scheduler).set_policy(str(request.server_args[POLICY_KEY]))
    except RequestError as error:
        logger.warning("%s", error)
    else:
        del request.server_args[POLICY_KEY]


def normalize_request(_result: None, request: Any) -> None:
    """Check tags, and tag the samples of ``n > 1`` as one group for each prompt.

    Raises
    ------
    RequestError
        On a malformed tag; SGLang answers it with status 400.
    """
    several = getattr(request, "parallel_sample_num", 1) > 1
    params = request.sampling_params
    if several and isinstance(params, list):
        request.sampling_params = params = [_with_tag(entry) for entry in params]
    for entry in params if isinstance(params, list) else [params]:
        raw = tag_of(entry.get("custom_params")) if isinstance(entry, dict) else None
        if raw is not None:
            parse_tag(raw, _settings().slo)


def _with_tag(entry: dict[str, Any]) -> dict[str, Any]:
    """Copy the parameters of one prompt with a group of its own; prompts may share the dictionary they came with."""
    custom = entry.get("custom_params") or {}
    if not isinstance(custom, dict) or TAG in custom:
        return entry
    return {**entry, "custom_params": {**custom, TAG: {"id": f"n-{uuid.uuid4().hex}"}}}
