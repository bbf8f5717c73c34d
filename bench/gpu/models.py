"""Checkpoints that need no download: a tokenizer trained on Python's own documentation, and models with no meaning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

EOS = "<|end|>"
MERGED_VOCABULARY = 8_000

EXACT_GPU = {"layers": 8, "hidden": 1024, "heads": 8, "kv_heads": 2, "spread": 0.05, "dtype": "bfloat16"}
EXACT_CPU = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "spread": 0.3, "dtype": "float32"}
QWEN_7B = {"layers": 28, "hidden": 3584, "heads": 28, "kv_heads": 4, "intermediate": 18944, "vocabulary": 152_064}


def write_tokenizer(folder: Path) -> Any:
    """Train a byte-level BPE tokenizer on the texts of ``pydoc`` (part of Python) and save it."""
    from pydoc_data.topics import topics

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MERGED_VOCABULARY,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator([topics[name] for name in sorted(topics)], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=EOS, bos_token=EOS)
    tokenizer.save_pretrained(folder)
    return tokenizer


def write_random_llama(folder: Path, shape: dict[str, Any], seed: int = 0) -> Path:
    """Save a random Llama whose logits differ clearly between the branches of a tree."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = write_tokenizer(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        # Wider than the tokenizer, as most checkpoints are.
        vocab_size=(len(tokenizer) // 64 + 1) * 64,
        hidden_size=shape["hidden"],
        intermediate_size=2 * shape["hidden"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"],
        max_position_embeddings=16_384,
        initializer_range=shape["spread"],
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).to(getattr(torch, shape["dtype"]))
    model.save_pretrained(folder)
    return folder


def write_dummy_qwen(folder: Path, shape: dict[str, Any]) -> Path:
    """Write a configuration of Qwen2.5-7B's shape for ``--load-format dummy``."""
    tokenizer = write_tokenizer(folder)
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": shape["hidden"],
        "intermediate_size": shape["intermediate"],
        "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["kv_heads"],
        "vocab_size": shape["vocabulary"],
        "max_position_embeddings": 32_768,
        "max_window_layers": shape["layers"],
        "use_sliding_window": False,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder
