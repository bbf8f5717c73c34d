"""Ancestral sampling from an evaluated tree: any number of answers from one evaluation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sgl_compiled.control.evidence import Evidence
from sgl_compiled.control.future import Futures
from sgl_compiled.control.leaves import leaves
from sgl_compiled.control.node import FloatArray, Node, Objective, Path, log_sum
from sgl_compiled.errors import NumericalError, RequestError
from sgl_compiled.grammar.tokens import State

__all__ = ["Sample", "Samples", "sample"]


class Sample(NamedTuple):
    """One draw."""

    path: Path
    state: State
    logprob: float  # of the tokens drawn, under the distribution drawn from, temperature included
    complete: bool


@dataclass(frozen=True)
class Samples:
    """Draws from one evaluation.

    Attributes
    ----------
    draws : tuple of Sample
        In a fixed order: draw ``i`` depends on the seed and ``i`` alone.
    missing : tuple of (path, int)
        Prefixes to evaluate before the unfinished draws can go on, with the number of draws that wait for each, most
        first. Evaluate them and call :func:`sample` again with the same seed: finished draws stay as they are.
    """

    draws: tuple[Sample, ...]
    missing: tuple[tuple[Path, int], ...]

    @property
    def complete(self) -> bool:
        """Whether every draw reached the end of an answer."""
        return not self.missing


def sample(
    evidence: Evidence, n: int = 1, *, temperature: float = 1.0, seed: int = 0, objective: Objective = "policy"
) -> Samples:
    r"""Draw answers token by token: :math:`P(t \mid s) \propto \exp(\ell_t / T)` over the legal ids.

    Under the policy :math:`\ell` are the model's logits, as in masked decoding at that temperature (before any top-p
    or top-k). Under the conditional objective they are :math:`\log p(t \mid s) + \log F(s t)`
    (:class:`~sgl_compiled.control.future.Futures`), so that at ``T = 1`` whole answers come out with probability
    P(answer | answer in the language); this needs the whole tree below a decision.

    Parameters
    ----------
    evidence : Evidence
    n : int
        Number of draws.
    temperature : float
        0 takes the best legal id at every decision, the lowest id on a tie: the reference policy.
    seed : int
    objective : {"policy", "conditional"}

    Raises
    ------
    RequestError
        ``n`` below 1, a negative or non-finite temperature, or a negative seed.
    NumericalError
        No answer of the language has a positive probability.
    """
    if n < 1:
        raise RequestError(f"n is {n}; draw at least one sample")
    if not 0 <= temperature < np.inf:
        raise RequestError(f"temperature is {temperature}; use 0 (greedy) or a positive number")
    if seed < 0:
        raise RequestError(f"seed is {seed}; use a whole number from 0 up")
    futures = Futures(evidence) if objective == "conditional" else None
    known: dict[Path, FloatArray | None] = {}
    waiting: Counter[Path] = Counter()
    draws = []
    for index in range(n):
        rng = np.random.default_rng((seed, index))
        node, logprob, complete = evidence.root, 0.0, False
        while not complete:
            if not node.legal:
                complete = True
                break
            if node.path not in known:
                known[node.path] = _logprobs(node, temperature, futures)
            logprobs = known[node.path]
            if logprobs is None:
                waiting.update(cell.path for cell in leaves(evidence, objective, node) if not cell.complete)
                break
            choice = _draw(logprobs, rng) if len(logprobs) > 1 else 0
            logprob += float(logprobs[choice])
            token = node.legal[choice]
            if token in node.following:
                node = evidence.child(node, token)
            else:
                complete = True
        draws.append(Sample(node.path, node.state, logprob, complete))
    return Samples(tuple(draws), tuple(sorted(waiting.items(), key=lambda item: (-item[1], item[0]))))


def _logprobs(node: Node, temperature: float, futures: Futures | None) -> FloatArray | None:
    logits = (node.policy if len(node.legal) == 1 else node.logits) if futures is None else futures.logits(node)
    if logits is None:
        return None
    if not np.isfinite(logits.max()):
        raise NumericalError("no answer of the language has a positive probability here; no sample can be drawn")
    if temperature == 0:
        out = np.full(len(logits), -np.inf)
        out[int(logits.argmax())] = 0.0
        return out
    # A difference divided by a tiny temperature may overflow to minus infinity, which is its limit.
    with np.errstate(over="ignore"):
        scaled: FloatArray = (logits - logits.max()) / temperature
    scaled -= log_sum(scaled)
    return scaled


def _draw(logprobs: FloatArray, rng: np.random.Generator) -> int:
    """One uniform number a decision, so that a draw is the same however much of the tree is known."""
    cumulative = np.exp(logprobs).cumsum()
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))
