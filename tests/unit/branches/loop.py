"""A scheduler loop in miniature: SGLang's batch interface over plain lists, driven by the real hooks."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sgl_compiled.branches import scheduler as seam

from sgl_compiled.branches import TAG, BranchSettings, StepTimePredictor
from sgl_compiled.branches.runtime import BranchRuntime
from sgl_compiled.branches.telemetry import Telemetry


class Req:
    def __init__(self, rid: str, length: int, tag: dict[str, Any] | None = None, prompt: int = 10) -> None:
        self.rid, self.length, self.prompt = rid, length, prompt
        self.output_ids: list[int] = [0]
        self.to_finish: object | None = None
        self.done = False
        params = None if tag is None else {TAG: tag}
        self.sampling_params = SimpleNamespace(custom_params=params, max_new_tokens=length)
        self.time_stats = SimpleNamespace(scheduler_recv_time=0.0)

    def finished(self) -> bool:
        return self.done


class Batch:
    """The parts of ScheduleBatch that the hooks use."""

    def __init__(self, reqs: list[Req]) -> None:
        self.reqs = list(reqs)
        self.batch_is_full = True
        self.memory = True
        self.forward_mode = SimpleNamespace(is_extend=lambda: False)
        self.sampling_info = SimpleNamespace(penalizer_orchestrator=SimpleNamespace(is_required=False, penalizers={}))

    @property
    def seq_lens_cpu(self) -> np.ndarray:
        return np.array([req.prompt + len(req.output_ids) for req in self.reqs])

    def filter_batch(self, chunked_req_to_exclude: Any = None, keep_indices: list[int] | None = None) -> None:
        keep = [i for i, r in enumerate(self.reqs) if not r.finished()] if keep_indices is None else keep_indices
        self.reqs = [self.reqs[i] for i in keep]

    def merge_batch(self, other: Batch) -> None:
        self.reqs.extend(other.reqs)

    def is_empty(self) -> bool:
        return not self.reqs

    def check_decode_mem(self, selected_indices: Any = None) -> bool:
        return self.memory


class Loop:
    """Turns of a scheduler without overlap: receive, admit, decode one token a row, finish."""

    def __init__(self, policy: str, clock: Any = None, **kwargs: Any) -> None:
        self.now = 0.0
        self.running_batch = Batch([])
        self.last_batch: Batch | None = None
        self.waiting_queue: list[Req] = []
        self.ps = SimpleNamespace(pp_size=1, tp_size=1, tp_rank=0)
        self.spec_algorithm = SimpleNamespace(is_none=lambda: True)
        self.is_mixed_chunk = self._engine_paused = False
        self.grammar_manager = SimpleNamespace(grammar_queue=[])
        self.finished: list[Req] = []
        self.masks: list[list[str]] = []
        self.runtime = BranchRuntime(
            BranchSettings(policy),
            StepTimePredictor(),
            Telemetry(),
            overlap=False,
            behind=False,
            clock=clock or (lambda: self.now),
            **kwargs,
        )
        setattr(self, seam._RUNTIME, self.runtime)

    def turn(self, received: list[Any] = (), memory: bool = True) -> None:
        changed = seam.process_input_requests(self, list(received))
        for request in changed[0][1] if changed else received:
            self.abort(request)
        self.runtime.check_integrity(self.running_batch.reqs)
        self.running_batch.reqs += self.waiting_queue
        self.waiting_queue = []
        self.running_batch.memory = memory
        if self.running_batch.is_empty():
            self.last_batch = None
            return
        self.running_batch = seam.update_running_batch(Loop.original, self, self.running_batch)
        self.now += 0.01 + 0.001 * len(self.running_batch.reqs)
        self.masks.append([req.rid for req in self.running_batch.reqs])
        for req in self.running_batch.reqs:
            req.output_ids.append(len(req.output_ids))
            if req.to_finish is not None or len(req.output_ids) >= req.length:
                req.done = True
                self.finished.append(req)
        self.last_batch = self.running_batch

    def original(self, batch: Batch) -> Batch:
        before = len(batch.reqs)
        batch.filter_batch()
        if len(batch.reqs) < before:
            batch.batch_is_full = False
        if not batch.memory and len(batch.reqs) > 1:
            victim = batch.reqs.pop()
            self.waiting_queue.append(victim)
        return batch

    def abort(self, request: Any) -> None:
        for req in self.running_batch.reqs:
            if not req.finished() and req.rid == request.rid:
                req.to_finish = "abort"
