"""Every refusal at start-up: when it comes, what it names, and the way out it offers."""

from __future__ import annotations

import dataclasses
import importlib
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from sgl_compiled.runtime.refusals import check_server_args, kv_cache_reasons, model_reasons, server_reasons

DEFAULTS: dict[str, Any] = {
    "device": "cuda",
    "attention_backend": "flashinfer",
    "prefill_attention_backend": None,
    "grammar_backend": "xgrammar",
    "kv_cache_dtype": "auto",
    "speculative_algorithm": None,
    "enable_mis": False,
    "dp_size": 1,
    "enable_dp_attention": False,
    "tokenizer_worker_num": 1,
    "pp_size": 1,
    "disaggregation_mode": "null",
    "skip_tokenizer_init": False,
    "enable_deterministic_inference": False,
    "attn_cp_size": 1,
    "dcp_size": 1,
    "enable_prefill_cp": False,
    "enable_two_batch_overlap": False,
    "enable_pdmux": False,
    "dllm_algorithm": None,
    "enable_lmcache": False,
    "radix_cache_backend": None,
    "enable_lora": None,
    "lora_paths": None,
    "lora_target_modules": None,
}
CPU = {"device": "cpu", "attention_backend": "torch_native", "grammar_backend": "outlines"}


def args(**changes: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**DEFAULTS, **changes})


def config(**changes: Any) -> SimpleNamespace:
    return SimpleNamespace(architectures=["ToyForCausalLM"], model_type="toy", **changes)


REFUSED = [
    ({**CPU, "attention_backend": "triton"}, "torch_native"),
    ({**CPU, "attention_backend": None}, "torch_native"),
    ({"attention_backend": "fa3"}, "--attention-backend flashinfer"),
    ({"attention_backend": "trtllm_mha"}, "--attention-backend flashinfer"),
    ({"prefill_attention_backend": "fa3"}, "'fa3'"),
    ({**CPU, "grammar_backend": "xgrammar"}, "--grammar-backend outlines"),
    ({"speculative_algorithm": "EAGLE"}, "--speculative-algorithm"),
    ({"enable_mis": True}, "--enable-mis"),
    ({"enable_dp_attention": True}, "--enable-dp-attention"),
    ({"tokenizer_worker_num": 2}, "--tokenizer-worker-num"),
    ({"pp_size": 2}, "--pipeline-parallel-size"),
    ({"disaggregation_mode": "prefill"}, "--disaggregation-mode"),
    ({"skip_tokenizer_init": True}, "--skip-tokenizer-init"),
    ({"enable_deterministic_inference": True}, "--enable-deterministic-inference"),
    ({"attn_cp_size": 2}, "--attention-context-parallel-size"),
    ({"dcp_size": 2}, "--decode-context-parallel-size"),
    ({"enable_prefill_cp": True}, "--enable-prefill-cp"),
    ({"enable_two_batch_overlap": True}, "--enable-two-batch-overlap"),
    ({"enable_pdmux": True}, "--enable-pdmux"),
    ({"dllm_algorithm": "LowConfidence"}, "--dllm-algorithm"),
    ({"enable_lmcache": True}, "--enable-lmcache"),
    ({"radix_cache_backend": "other"}, "--radix-cache-backend"),
    ({"dp_size": 2}, "--data-parallel-size"),
    ({"enable_lora": True}, "--lora-target-modules"),
    ({"lora_paths": ["a=b"], "lora_target_modules": {"q_proj", "lm_head"}}, "--lora-target-modules"),
]


@pytest.mark.parametrize(("changes", "named"), REFUSED, ids=lambda value: str(value)[:40])
def test_server_arguments_are_refused_by_name(changes: dict[str, Any], named: str) -> None:
    (reason,) = server_reasons(args(**changes))
    assert named in reason and "SGLANG_PLUGINS=__none__" in reason


@pytest.mark.parametrize(
    "changes",
    [
        {},
        CPU,
        {**CPU, "grammar_backend": "llguidance"},
        {**CPU, "grammar_backend": None},
        {"attention_backend": "triton"},
        {"enable_lora": True, "lora_target_modules": {"q_proj"}},
        {"attention_backend": "fa3", "prefill_attention_backend": "flashinfer"},
    ],
    ids=str,
)
def test_supported_servers_start(changes: dict[str, Any]) -> None:
    assert list(server_reasons(args(**changes))) == []


CACHES = [
    ("fp8_e5m2", {}, "fp8_e5m2"),
    ("fp8_e4m3", {}, "fp8_e4m3"),
    ("fp4_e2m1", {}, "fp4_e2m1"),
    ("auto", {"kv_cache_quant_algo": "FP8"}, "quantized"),
    ("auto", {"kv_cache_scheme": {"type": "float", "num_bits": 8}}, "quantized"),
]


@pytest.mark.parametrize(("dtype", "quantization", "named"), CACHES)
def test_rounded_caches_are_refused(dtype: str, quantization: dict[str, Any], named: str) -> None:
    (reason,) = kv_cache_reasons(args(kv_cache_dtype=dtype), config(quantization_config=quantization))
    assert named in reason and "--kv-cache-dtype bfloat16" in reason


@pytest.mark.parametrize("dtype", ["auto", "bf16", "bfloat16"])
@pytest.mark.parametrize("quantization", [None, {}, {"quant_method": "awq"}])
def test_exact_caches_are_served(dtype: str, quantization: Any) -> None:
    assert list(kv_cache_reasons(args(kv_cache_dtype=dtype), config(quantization_config=quantization))) == []


def test_the_way_out_of_a_quantized_checkpoint_works() -> None:
    quantized = config(quantization_config={"kv_cache_quant_algo": "FP8"})
    assert list(kv_cache_reasons(args(kv_cache_dtype="bfloat16"), quantized)) == []


MODELS: list[tuple[dict[str, Any], str]] = [
    ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
    ({"sliding_window": 4096}, "sliding-window"),
    ({"sliding_window": 4096, "use_sliding_window": True}, "sliding-window"),
    ({"layer_types": ["full_attention", "linear_attention"]}, "recurrent"),
    ({"layer_types": ["full_attention", "conv"]}, "recurrent"),
    ({"rope_parameters": {"rope_type": "default", "mrope_section": [24, 20, 20]}}, "images"),
    ({"layers_block_type": ["attention", "mamba"]}, "recurrent"),
    ({"layer_types": ["full_attention", "chunked_attention"]}, "in chunks"),
    ({"kv_lora_rank": 512}, "MLA"),
    ({"is_encoder_decoder": True}, "encoder"),
    ({"vision_config": SimpleNamespace()}, "images"),
    ({"text_config": SimpleNamespace(sliding_window=1024)}, "sliding-window"),
]


@pytest.mark.parametrize(("changes", "named"), MODELS, ids=lambda value: str(value)[:40])
def test_models_are_refused_by_name(changes: dict[str, Any], named: str) -> None:
    whole = config(**changes)
    reasons = list(model_reasons(whole, getattr(whole, "text_config", whole)))
    assert len(reasons) == 1 and named in reasons[0] and "ToyForCausalLM" in reasons[0]


def test_a_recurrent_model_is_known_by_its_type() -> None:
    mamba = SimpleNamespace(architectures=None, model_type="mamba2")
    (reason,) = model_reasons(mamba, mamba)
    assert "recurrent" in reason and "this model" in reason


@pytest.mark.parametrize(
    ("module", "name"), [("lfm2", "Lfm2Config"), ("jet_nemotron", "JetNemotronConfig"), ("falcon_h1", "FalconH1Config")]
)
def test_sglangs_hybrid_models_are_refused(module: str, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = getattr(importlib.import_module(f"sglang.srt.configs.{module}"), name)
    hybrid = kind.__new__(kind)
    (reason,) = model_reasons(hybrid, hybrid)
    assert "recurrent" in reason


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layer_types": ["full_attention"] * 4},
        # Qwen2.5: a window is named and switched off.
        {"sliding_window": 131072, "use_sliding_window": False, "layer_types": ["full_attention"]},
        {"sliding_window": None, "is_encoder_decoder": False, "kv_lora_rank": None},
    ],
    ids=str,
)
def test_plain_decoders_are_served(changes: dict[str, Any]) -> None:
    assert list(model_reasons(config(**changes), config(**changes))) == []


def test_all_reasons_are_given_at_once() -> None:
    server = args(enable_mis=True, pp_size=2, kv_cache_dtype="fp8_e5m2")
    server.get_model_config = lambda: SimpleNamespace(
        hf_config=config(kv_lora_rank=512), hf_text_config=config(kv_lora_rank=512)
    )
    with pytest.raises(SystemExit) as stopped:
        check_server_args(None, server)
    for named in ("--enable-mis", "--pipeline-parallel-size", "fp8_e5m2", "MLA"):
        assert named in str(stopped.value)


def test_a_supported_server_is_let_through() -> None:
    server = args()
    server.get_model_config = lambda: SimpleNamespace(hf_config=config(), hf_text_config=config())
    check_server_args(None, server)


def test_every_argument_read_is_one_of_sglangs() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sglang.srt.server_args import ServerArgs
    read = {*DEFAULTS, "cuda_graph_config", "enable_metrics"}
    assert read <= {field.name for field in dataclasses.fields(ServerArgs)}
