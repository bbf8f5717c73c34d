"""The one table of everything in SGLang that this plugin touches, with the signatures it was written for.

Importing this module imports neither sglang nor torch. :func:`check_targets` resolves every row, compares parameter
names, and reports each difference as a sentence.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

__all__ = ["SGLANG_VERSION", "TARGETS", "Mismatch", "Target", "check_targets", "load_handler", "sglang_version"]

SGLANG_VERSION = "0.5.15.post1"
"""The release this table was checked against."""

Hook = Literal["before", "after", "around", "use"]


@dataclass(frozen=True)
class Target:
    """One SGLang symbol.

    Attributes
    ----------
    path : str
        Dotted path of the function or method.
    params : tuple of str
        Its parameter names, in order.
    hook : {"before", "after", "around", "use"}
        How it is hooked; ``"use"`` is called but not changed.
    handler : str
        ``"module:function"`` inside this package, imported only when hooks are registered.
    feature : str
        The part of the plugin that needs it.
    """

    path: str
    params: tuple[str, ...]
    hook: Hook
    handler: str = ""
    feature: str = "select_k"


@dataclass(frozen=True)
class Mismatch:
    """A target that is missing or has other parameters than expected."""

    target: Target
    found: str

    def __str__(self) -> str:
        return f"{self.target.path}: expected ({', '.join(self.target.params)}), found {self.found}"


_BATCH = "sglang.srt.managers.schedule_batch"
_RESULT = "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
_STREAM = "sglang.srt.managers.scheduler_components.output_streamer.SchedulerOutputStreamer"

TARGETS: tuple[Target, ...] = (
    Target(
        "sglang.srt.server_args.ServerArgs.check_server_args",
        ("self",),
        "after",
        "sgl_compiled.runtime.refusals:check_server_args",
    ),
    Target(
        "sglang.srt.entrypoints.http_server.launch_server",
        (
            "server_args",
            "init_tokenizer_manager_func",
            "run_scheduler_process_func",
            "run_detokenizer_process_func",
            "execute_warmup_func",
            "launch_callback",
        ),
        "before",
        "sgl_compiled.runtime.route:add_route",
    ),
    Target(
        f"{_BATCH}.Req._compute_max_prefix_len",
        ("self", "input_len"),
        "around",
        "sgl_compiled.runtime.admission:max_prefix_len",
    ),
    Target(
        "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req",
        ("self", "req", "has_chunked_req", "truncation_align_size"),
        "around",
        "sgl_compiled.runtime.admission:add_one_req",
    ),
    Target(
        f"{_BATCH}.ScheduleBatch.filter_batch",
        ("self", "chunked_req_to_exclude", "keep_indices"),
        "around",
        "sgl_compiled.runtime.admission:filter_batch",
    ),
    Target(
        "sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new",
        ("cls", "batch", "model_runner"),
        "around",
        "sgl_compiled.runtime.forward:init_new",
    ),
    Target(
        "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend.forward_extend",
        ("self", "q", "k", "v", "layer", "forward_batch", "save_kv_cache"),
        "around",
        "sgl_compiled.runtime.attention_cpu:forward_extend",
    ),
    Target(
        "sglang.srt.layers.attention.flashinfer_backend.FlashInferAttnBackend.init_forward_metadata",
        ("self", "forward_batch"),
        "around",
        "sgl_compiled.runtime.attention_flashinfer:init_forward_metadata",
    ),
    Target(
        "sglang.srt.layers.attention.flashinfer_backend.FlashInferIndicesUpdaterPrefill.call_begin_forward",
        (
            "self",
            "wrapper_ragged",
            "wrapper_paged",
            "req_pool_indices",
            "paged_kernel_lens",
            "paged_kernel_lens_sum",
            "seq_lens",
            "prefix_lens",
            "kv_start_idx",
            "kv_indptr",
            "qo_indptr",
            "use_ragged",
            "spec_info",
            "use_sliding_window_kv_pool",
            "fixed_split_size",
            "multi_item_params",
            "cross_attention_custom_mask",
            "seq_lens_cpu",
        ),
        "around",
        "sgl_compiled.runtime.attention_flashinfer:call_begin_forward",
    ),
    Target(
        "sglang.srt.layers.attention.triton_backend.TritonAttnBackend.init_forward_metadata",
        ("self", "forward_batch"),
        "around",
        "sgl_compiled.runtime.attention_triton:init_forward_metadata",
    ),
    Target(
        "sglang.srt.model_executor.runner.prefill_cuda_graph_runner.PrefillCudaGraphRunner.can_run_graph",
        ("self", "forward_batch"),
        "around",
        "sgl_compiled.runtime.attention_flashinfer:can_run_graph",
    ),
    Target(
        "sglang.srt.managers.utils.GenerationBatchResult.copy_to_cpu",
        ("self", "return_logprob", "return_hidden_states"),
        "before",
        "sgl_compiled.runtime.results:copy_to_cpu",
    ),
    Target(
        "sglang.srt.layers.logits_processor.LogitsProcessor.forward",
        (
            "self",
            "input_ids",
            "hidden_states",
            "lm_head",
            "logits_metadata",
            "aux_hidden_states",
            "hidden_states_before_norm",
        ),
        "around",
        "sgl_compiled.runtime.rows:logits_forward",
    ),
    Target(
        "sglang.srt.layers.logits_processor.LogitsProcessor._get_logits",
        ("self", "hidden_states", "lm_head", "logits_metadata", "embedding_bias"),
        "use",
    ),
    Target(
        f"{_RESULT}.process_batch_result_prefill",
        ("self", "batch", "result"),
        "before",
        "sgl_compiled.runtime.results:process_batch_result_prefill",
    ),
    Target(
        f"{_RESULT}._maybe_collect_customized_info",
        ("self", "i", "req", "logits_output"),
        "around",
        "sgl_compiled.runtime.results:collect_customized_info",
    ),
    Target(
        f"{_STREAM}.stream_output",
        ("self", "reqs", "return_logprob", "skip_req"),
        "around",
        "sgl_compiled.runtime.results:stream_output",
    ),
    Target(
        "sglang.srt.mem_cache.radix_cache.RadixCache.cache_finished_req",
        ("self", "req", "is_insert"),
        "around",
        "sgl_compiled.runtime.winners:cache_finished_req",
    ),
    Target(
        "sglang.srt.constrained.base_grammar_backend.create_grammar_backend",
        ("server_args", "tokenizer", "vocab_size", "eos_token_ids", "think_end_id"),
        "after",
        "sgl_compiled.runtime.serial:create_grammar_backend",
    ),
    *(
        Target(
            f"sglang.srt.constrained.{backend}.dispatch_regex",
            ("self", "key_string"),
            "around",
            "sgl_compiled.runtime.serial:dispatch_regex",
        )
        for backend in (
            "outlines_backend.OutlinesGrammarBackend",
            "llguidance_backend.GuidanceBackend",
            "xgrammar_backend.XGrammarGrammarBackend",
        )
    ),
    Target(
        "sglang.lang.interpreter.StreamExecutor._execute",
        ("self", "other"),
        "around",
        "sgl_compiled.lang.hooks:execute",
        feature="lang",
    ),
    Target(
        "sglang.lang.interpreter.StreamExecutor.fork",
        ("self", "size", "position_ids_offset"),
        "around",
        "sgl_compiled.lang.forks:fork",
        feature="forks",
    ),
    Target(
        "sglang.lang.interpreter.StreamExecutor._resolve_sampling_params",
        ("self", "sampling_params"),
        "around",
        "sgl_compiled.lang.forks:resolve_sampling_params",
        feature="forks",
    ),
    Target(
        "sglang.srt.managers.scheduler.Scheduler.update_running_batch",
        ("self", "batch"),
        "around",
        "sgl_compiled.branches.scheduler:update_running_batch",
        feature="branches",
    ),
    Target(
        "sglang.srt.managers.scheduler.Scheduler.process_input_requests",
        ("self", "recv_reqs"),
        "before",
        "sgl_compiled.branches.scheduler:process_input_requests",
        feature="branches",
    ),
    Target(
        "sglang.srt.managers.io_struct.GenerateReqInput.normalize_batch_and_arguments",
        ("self",),
        "after",
        "sgl_compiled.branches.scheduler:normalize_request",
        feature="branches",
    ),
    *(
        Target(
            f"{_BATCH}.ScheduleBatch.{name}",
            params,
            "use",
            feature="branches",
        )
        for name, params in (("merge_batch", ("self", "other")), ("check_decode_mem", ("self", "selected_indices")))
    ),
)


def sglang_version() -> str | None:
    """Return the installed SGLang version, or ``None``."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return None


def parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the parameter names of ``function``, looking through hooks already applied."""
    return tuple(inspect.signature(inspect.unwrap(function)).parameters)


def resolve(path: str) -> Callable[..., Any]:
    """Return the function at a dotted path; a class or static method comes as the plain function."""
    owner_path, name = path.rsplit(".", 1)
    owner = pkgutil.resolve_name(owner_path)
    found = inspect.getattr_static(owner, name)
    return found.__func__ if isinstance(found, classmethod | staticmethod) else found


def check_targets(targets: Sequence[Target] = TARGETS) -> list[Mismatch]:
    """Return every target whose signature differs from the table; imports the modules it names."""
    out = []
    for target in targets:
        try:
            found = parameters(resolve(target.path))
        except (ImportError, AttributeError) as error:
            out.append(Mismatch(target, f"nothing ({error})"))
            continue
        if found != target.params:
            out.append(Mismatch(target, f"({', '.join(found)})"))
    return out


def load_handler(target: Target) -> Callable[..., Any]:
    """Import and return the function that handles ``target``."""
    module, name = target.handler.split(":")
    return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
