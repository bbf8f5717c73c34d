"""Configurations that are refused at start-up, each with the reason and the way out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

__all__ = ["check_server_args", "kv_cache_reasons", "model_reasons", "server_reasons"]

GPU_BACKENDS = ("flashinfer", "triton")

OFF = "or switch the plugin off with SGLANG_PLUGINS=__none__"


def check_server_args(result: Any, self: Any, *_: Any, **__: Any) -> None:
    """Stop a server that could not keep its promises: AFTER ``ServerArgs.check_server_args``."""
    model = self.get_model_config()
    config = model.hf_config
    reasons = [*server_reasons(self), *kv_cache_reasons(self, config), *model_reasons(config, model.hf_text_config)]
    if reasons:
        sys.exit("sgl_compiled cannot run with this server:\n  - " + "\n  - ".join(reasons))


def server_reasons(args: Any) -> Iterator[str]:
    """Yield a sentence for each server argument that is not supported."""
    backend = args.prefill_attention_backend or args.attention_backend
    if args.device == "cpu" and backend != "torch_native":
        yield (f"attention backend {backend!r} has no tree mask on CPU: pass --attention-backend torch_native, {OFF}")
    if args.device != "cpu" and backend not in GPU_BACKENDS:
        yield f"attention backend {backend!r} has no tree mask: pass --attention-backend flashinfer (or triton), {OFF}"
    if args.device != "cpu" and args.enable_deterministic_inference:
        yield (
            "deterministic inference promises numbers that do not depend on the batch, which is not shown for tree "
            f"masks: drop --enable-deterministic-inference, {OFF}"
        )
    if args.device == "cpu" and args.grammar_backend == "xgrammar":
        yield (
            "xgrammar cannot mask logits on CPU and would stop the scheduler at the first request with a grammar: "
            f"pass --grammar-backend outlines or llguidance, {OFF}"
        )
    if args.speculative_algorithm is not None:
        yield f"speculative decoding changes what an extend computes: drop --speculative-algorithm, {OFF}"
    if args.enable_mis:
        yield f"multi-item scoring replaces the masks of every prefill: drop --enable-mis, {OFF}"
    if args.dp_size > 1:
        yield (
            "replicas do not share a radix cache, and the passes of one choice would go to different ones: run a "
            f"server for each behind a router and drop --data-parallel-size, {OFF}"
        )
    if args.enable_dp_attention:
        yield f"DP attention pads and splits extends across ranks: drop --enable-dp-attention, {OFF}"
    if args.tokenizer_worker_num > 1:
        yield f"extra tokenizer workers do not load plugins: drop --tokenizer-worker-num, {OFF}"
    if args.pp_size > 1:
        yield f"pipeline parallelism is not supported yet: drop --pipeline-parallel-size, {OFF}"
    if args.disaggregation_mode != "null":
        yield f"prefill/decode disaggregation is not supported yet: drop --disaggregation-mode, {OFF}"
    if args.attn_cp_size > 1 or args.dcp_size > 1 or args.enable_prefill_cp:
        yield (
            "context parallelism splits a tree across ranks: drop --attention-context-parallel-size, "
            f"--decode-context-parallel-size and --enable-prefill-cp, {OFF}"
        )
    if args.enable_two_batch_overlap:
        yield f"two-batch overlap splits extends in the middle of a tree: drop --enable-two-batch-overlap, {OFF}"
    if args.enable_pdmux:
        yield f"PD multiplexing splits extends by layers: drop --enable-pdmux, {OFF}"
    if args.dllm_algorithm is not None:
        yield f"diffusion decoding has masks of its own: drop --dllm-algorithm, {OFF}"
    if args.enable_lmcache or args.radix_cache_backend is not None:
        yield (
            "a radix cache other than SGLang's own could keep a tree as if it were a text: drop --enable-lmcache and "
            f"--radix-cache-backend, {OFF}"
        )
    adapted = set(args.lora_target_modules or ())
    if (args.enable_lora or args.lora_paths) and (not adapted or adapted & {"all", "lm_head"}):
        yield (
            "an adapter of the head expects one row a request, and probes read several: pass --lora-target-modules "
            f"without lm_head, {OFF}"
        )
    if args.skip_tokenizer_init:
        yield f"grammars need the tokenizer: drop --skip-tokenizer-init, {OFF}"


def model_reasons(config: Any, text: Any) -> Iterator[str]:
    """Yield a sentence for each property of the model that a tree mask cannot handle.

    Parameters
    ----------
    config, text : PretrainedConfig
        SGLang's ``ModelConfig.hf_config`` and ``hf_text_config``, the same where the model takes text only.
    """
    name = (getattr(config, "architectures", None) or ["this model"])[0]
    layers = set(getattr(text, "layer_types", None) or ())
    sliding = getattr(text, "sliding_window", None)
    if "sliding_attention" in layers or (sliding and getattr(text, "use_sliding_window", not layers)):
        yield f"{name} has sliding-window attention, which a tree mask does not cover yet: serve another model, {OFF}"
    # Kinds of layers have many names (conv, jet, mamba, ...); SGLang's hybrid configs say which keep a state.
    stateful = any(hasattr(type(text), known) for known in ("linear_layer_ids", "mamba2_cache_params"))
    local = layers - {"full_attention", "attention", "sliding_attention", "chunked_attention"}
    blocks = getattr(text, "layers_block_type", None)
    if stateful or local or blocks or "mamba" in str(getattr(text, "model_type", "")):
        yield f"{name} has recurrent layers, whose state no mask can isolate: serve another model, {OFF}"
    if "chunked_attention" in layers:
        yield f"{name} attends in chunks, which a tree mask does not cover: serve another model, {OFF}"
    if getattr(text, "kv_lora_rank", None):
        yield f"{name} has latent attention (MLA), whose kernels take no tree mask here: serve another model, {OFF}"
    if getattr(config, "is_encoder_decoder", False):
        yield f"{name} attends to an encoder, whose masks are not those of a tree: serve a decoder model, {OFF}"
    scaling = {**(getattr(text, "rope_scaling", None) or {}), **(getattr(text, "rope_parameters", None) or {})}
    if getattr(config, "vision_config", None) is not None or "mrope_section" in scaling:
        yield f"{name} takes images, whose positions are not those of text: serve a text model, {OFF}"


def kv_cache_reasons(args: Any, config: Any) -> Iterator[str]:
    """Yield a sentence if keys and values would be stored rounded to 8 or 4 bits."""
    quantization = getattr(config, "quantization_config", None)
    scheme = quantization if isinstance(quantization, dict) else {}
    asked = args.kv_cache_dtype
    if asked == "auto" and (scheme.get("kv_cache_quant_algo") or scheme.get("kv_cache_scheme")):
        asked = "quantized"
    if asked.startswith(("fp", "quantized")):
        yield (
            f"a {asked} KV cache rounds what a tree reads, and parity with decoding has not been shown for it: pass "
            f"--kv-cache-dtype bfloat16, {OFF}"
        )
