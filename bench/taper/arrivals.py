"""Requests that the benchmark on a real server sends, and the same ones for the simulator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .workload import Job

__all__ = ["MIXES", "Arrival", "Mix", "arrivals", "as_job"]

WORDS = ("stone", "river", "paper", "seven", "quiet", "window", "orange", "method", "result", "letter")


@dataclass(frozen=True, slots=True)
class Mix:
    """Which share of the requests fork, and into how many branches."""

    share: float
    fanout: int


MIXES = {"narrow": Mix(0.33, 6), "wide": Mix(0.2, 12)}
"""A request of either mix asks for about as many tokens on average: 82 and 93."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request to send: its time, prompt, own tokens, and tokens of each branch if it forks."""

    at_s: float
    prompt: str
    tokens: int
    branches: tuple[int, ...]

    @property
    def prompts(self) -> tuple[str, ...]:
        """Prompt of the request itself, then of each branch."""
        return (self.prompt, *(f"{self.prompt} part {b}" for b in range(len(self.branches))))


def arrivals(mix: Mix, load_rps: float, horizon_s: float, seed: int, words: int) -> list[Arrival]:
    """Poisson arrivals of a mix, with prompts of so many words."""
    rng, now = np.random.default_rng(seed), 0.0
    out: list[Arrival] = []
    while (now := now + float(rng.exponential(1 / load_rps))) < horizon_s:
        prompt = " ".join(rng.choice(WORDS, words)) + f" number {len(out)}"
        branches = tuple(int(n) for n in rng.integers(12, 40, mix.fanout)) if rng.random() < mix.share else ()
        out.append(Arrival(now, prompt, int(rng.integers(16, 48)), branches))
    return out


def as_job(item: Arrival) -> Job:
    """Return the request with every word as one token, its lengths declared as they are, and nothing after the join."""
    return Job(item.at_s, len(item.prompt.split()), item.tokens, item.branches, 0, 1.0)
