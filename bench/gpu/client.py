"""The requests of the benchmark, against one server."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

import httpx

from sgl_compiled.client import AsyncClient
from sgl_compiled.grammar.layout import TreeLayout
from sgl_compiled.runtime.payload import encode


class BenchClient:
    """Asynchronous requests to ``/generate`` and ``/v1/select_k``."""

    def __init__(self, url: str) -> None:
        self.url = url
        limits = httpx.Limits(max_connections=None, keepalive_expiry=2.0)
        self._http = httpx.AsyncClient(base_url=url, timeout=300, trust_env=False, limits=limits)
        self._select = AsyncClient(url, timeout_s=300)

    async def generate(self, input_ids: Sequence[int], sampling: dict[str, Any], **fields: Any) -> dict[str, Any]:
        body = {"input_ids": list(input_ids), "sampling_params": {"temperature": 0, **sampling}, **fields}
        response = await self._http.post("/generate", json=body)
        response.raise_for_status()
        answer: dict[str, Any] = response.json()
        return answer

    async def select(self, prompt: Sequence[int], labels: Sequence[str], k: int, plan: str) -> Any:
        return await self._select.select_k(list(prompt), labels, k, plan=plan)

    async def prefill(self, input_ids: Sequence[int]) -> dict[str, Any]:
        """Compute a prompt and one token."""
        return await self.generate(input_ids, {"max_new_tokens": 1})

    async def probe(
        self, prompt: Sequence[int], layout: TreeLayout, *, unmasked: bool = False
    ) -> tuple[list[float], int]:
        """Evaluate a tree; return its numbers and the cached tokens. ``unmasked`` makes it one long branch."""
        custom = encode(layout, len(prompt), keep=False)
        if unmasked:
            custom["sgl_compiled_parents"] = list(range(-1, len(layout) - 1))
        answer = await self.generate([*prompt, *layout.tokens], {"max_new_tokens": 1, "custom_params": custom})
        meta = answer["meta_info"]
        ((n_rows, numbers),) = meta["sgl_compiled"]
        if n_rows != len(layout.rows):
            raise RuntimeError("the tree was dropped: its prompt was not cached and did not fit beside it")
        return list(numbers), int(meta["cached_tokens"])

    async def logprobs(self, input_ids: Sequence[int], ids: Sequence[int]) -> list[float]:
        """Log-probabilities of ``ids`` behind a text, from a plain forward."""
        answer = await self.generate(input_ids, {"max_new_tokens": 1}, return_logprob=True, token_ids_logprob=list(ids))
        (values,) = answer["meta_info"]["output_token_ids_logprobs"]
        found = {token: logprob for logprob, token, *_ in values}
        return [float(found[token]) for token in ids]

    async def flush(self) -> None:
        """Empty the radix cache; SGLang refuses while its last batch is not yet put away."""
        for _ in range(100):
            response = await self._http.post("/flush_cache")
            if response.is_success:
                return
            await asyncio.sleep(0.05)
        response.raise_for_status()

    async def aclose(self) -> None:
        await self._http.aclose()
        await self._select.aclose()


async def timed(awaitable: Any) -> tuple[float, Any]:
    """Await; return milliseconds and result."""
    start = time.perf_counter()
    result = await awaitable
    return 1e3 * (time.perf_counter() - start), result


def random_prompt(vocabulary: int, tokens: int, seed: int) -> list[int]:
    """Return ``tokens`` random ordinary token ids."""
    rng = random.Random(seed)
    return [rng.randrange(300, vocabulary) for _ in range(tokens)]
