"""Every answer of a choice with its probabilities, by separate forwards of the whole text in transformers."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

__all__ = ["Oracle", "Truth"]


@dataclass(frozen=True)
class Truth:
    """Log-probabilities of all answers, keyed by label indices: of the policy, and over the full vocabulary."""

    policy: dict[tuple[int, ...], float]
    raw: dict[tuple[int, ...], float]

    def probabilities(self, objective: str) -> dict[tuple[int, ...], float]:
        weights = {key: math.exp(value) for key, value in (self.policy if objective == "policy" else self.raw).items()}
        total = sum(weights.values()) if objective == "conditional" else 1.0
        return {key: weight / total for key, weight in weights.items()}

    def sets(self, objective: str) -> dict[tuple[int, ...], float]:
        out: defaultdict[tuple[int, ...], float] = defaultdict(float)
        for key, value in self.probabilities(objective).items():
            out[tuple(sorted(key))] += value
        return dict(out)


class Oracle:
    """A model and its tokenizer outside the server."""

    def __init__(self, path: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(path)
        self._model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    def truth(self, prompt: str, labels: list[str], k: int) -> Truth:
        """Score all sequences of ``k`` distinct labels, written as a JSON list."""
        keys = list(permutations(range(len(labels)), k))
        texts = [json.dumps([labels[index] for index in key]) for key in keys]
        answers = [tuple(self.tokenizer.encode(text, add_special_tokens=False)) for text in texts]
        legal: defaultdict[tuple[int, ...], set[int]] = defaultdict(set)
        for answer in answers:
            for at, token in enumerate(answer):
                legal[answer[:at]].add(token)
        opening = next(at for at in range(len(answers[0])) if len(legal[answers[0][:at]]) > 1)
        base = self.tokenizer.encode(prompt)
        policy, raw = {}, {}
        for key, answer, logprobs in zip(keys, answers, self._logprobs(base, answers), strict=True):
            policy[key] = raw[key] = 0.0
            for at in range(opening, len(answer)):
                step = float(logprobs[at, answer[at]])
                raw[key] += step
                policy[key] += step - float(torch.logsumexp(logprobs[at, sorted(legal[answer[:at]])], 0))
        return Truth(policy, raw)

    def _logprobs(self, base: list[int], answers: list[tuple[int, ...]]) -> list[torch.Tensor]:
        """Log-probabilities over the full vocabulary for each token of each answer, in float64."""
        out = []
        for start in range(0, len(answers), 16):
            chunk = answers[start : start + 16]
            longest = max(map(len, chunk))
            # Padding behind a text cannot reach back under a causal mask.
            ids = torch.tensor([[*base, *answer, *[0] * (longest - len(answer))] for answer in chunk])
            with torch.no_grad():
                logits = self._model(ids, logits_to_keep=longest + 1).logits[:, :-1]
            out += list(torch.log_softmax(logits.double(), dim=-1))
        return out
