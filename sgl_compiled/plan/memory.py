"""What a server remembers to plan better: which prompts it saw, and how far down the ranking winners come from."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

__all__ = ["PrefixMemory", "RankMemory"]


class PrefixMemory:
    """Estimate how much of a prompt the radix cache holds, from the prompts sent before.

    Prompts are remembered as hashes of their beginnings, a block of tokens at a time.

    Parameters
    ----------
    capacity_tokens : int
        KV slots of the server; beyond it the oldest beginnings are taken for evicted.
    block : int
        Tokens a block.
    """

    def __init__(self, capacity_tokens: int, block: int = 64) -> None:
        self._block = block
        self._capacity = max(1, capacity_tokens // block)
        self._seen: OrderedDict[int, None] = OrderedDict()

    def cached(self, prompt: Sequence[int]) -> int:
        """Tokens of ``prompt`` that are probably cached."""
        known = 0
        for count, key in enumerate(self._keys(prompt), start=1):
            if key not in self._seen:
                break
            known = count
        # The tail behind the last whole block was computed with it.
        return len(prompt) - 1 if (known + 1) * self._block > len(prompt) and known else known * self._block

    def add(self, prompt: Sequence[int]) -> None:
        """Remember a prompt that was computed."""
        for key in self._keys(prompt):
            self._seen[key] = None
            self._seen.move_to_end(key)
        while len(self._seen) > self._capacity:
            self._seen.popitem(last=False)

    def clear(self) -> None:
        """Forget everything, as a flushed cache does."""
        self._seen.clear()

    def _keys(self, prompt: Sequence[int]) -> list[int]:
        out, key = [], 0
        for start in range(0, len(prompt) - self._block + 1, self._block):
            key = hash((key, tuple(prompt[start : start + self._block])))
            out.append(key)
        return out


class RankMemory:
    """How often a later slot's winner stood at each rank of the first slot's candidates.

    Narrowing a tree to the ``m`` best candidates of the first slot misses with the share of winners from rank ``m`` on.
    """

    def __init__(self, ranks: int = 64, decay: float = 0.995) -> None:
        self._counts = [0.0] * ranks
        self._total = 0.0
        self._decay = decay

    def observe(self, rank: int) -> None:
        """Record the rank (from 0) of a winner."""
        self._counts = [count * self._decay for count in self._counts]
        self._total = self._total * self._decay + 1
        self._counts[min(rank, len(self._counts) - 1)] += 1

    def miss(self, width: int) -> float:
        """Probability that a winner is not among the ``width`` best; three quarters before anything was seen."""
        beyond = sum(self._counts[width:])
        return (beyond + 3) / (self._total + 4)
