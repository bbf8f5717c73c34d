"""The open-loop client of the benchmark on a real server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import httpx

from bench.common import flush
from sgl_compiled.branches import TAG

from .arrivals import Arrival

__all__ = ["flushed", "margin_where_they_part", "post", "serve"]


async def serve(url: str, plan: list[Arrival], tpot_s: float, tag: str) -> list[tuple[bool, float, list[list[int]]]]:
    """Send the plan; for each arrival whether it met its target, its time a token, and its output ids."""
    limits = httpx.Limits(max_connections=None, keepalive_expiry=2.0)
    async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False, limits=limits) as client:
        begun = time.perf_counter()

        async def generate(text: str, tokens: int, group: dict[str, Any]) -> tuple[list[int], float]:
            params = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True, "custom_params": {TAG: group}}
            ids: list[int] = []
            first_s = 0.0
            body = {"text": text, "sampling_params": params, "stream": True}
            async with client.stream("POST", "/generate", json=body) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        first_s = first_s or time.perf_counter()
                        ids = json.loads(line[6:])["output_ids"]
            return ids, first_s

        async def one(i: int, item: Arrival) -> tuple[bool, float, list[list[int]]]:
            await asyncio.sleep(max(0.0, begun + item.at_s - time.perf_counter()))
            sent = time.perf_counter()
            total = item.tokens + sum(item.branches)
            slo = {"e2e_s": 0.6 * total * tpot_s + 1.0} if item.branches else {"tpot_s": tpot_s}
            group = {"id": f"{tag}-{i}", "slo": slo}
            ids, first_s = await generate(item.prompt, item.tokens, group)
            outputs = [ids]
            if item.branches:
                answers = await asyncio.gather(
                    *(
                        generate(text, tokens, group | {"branch": b})
                        for b, (text, tokens) in enumerate(zip(item.prompts[1:], item.branches, strict=True))
                    )
                )
                outputs += [answer[0] for answer in answers]
                return time.perf_counter() - sent <= slo["e2e_s"], 0.0, outputs
            token_s = (time.perf_counter() - first_s) / (item.tokens - 1)
            return token_s <= tpot_s and first_s - sent <= 2.0, token_s, outputs

        return await asyncio.gather(*(one(i, item) for i, item in enumerate(plan)))


def post(url: str, path: str, **body: Any) -> httpx.Response:
    return httpx.post(url + path, json=body, timeout=60, trust_env=False)


def flushed(url: str) -> bool:
    """Flush the cache; tell whether that worked, which it does only when no request is left."""
    try:
        flush(url)
    except httpx.HTTPStatusError:
        return False
    return True


def margin_where_they_part(url: str, prompt: Sequence[int], one: Sequence[int], other: Sequence[int]) -> float:
    """Log-probability between the tokens that two greedy outputs of a prompt differ in first, computed anew.

    Infinite if either is not among the ten most probable. A margin near the rounding of the logits says that batches of
    different sizes, whose kernels add up in different orders, decided.
    """
    at = next(i for i, (mine, theirs) in enumerate(zip(one, other, strict=True)) if mine != theirs)
    answer = post(
        url,
        "/generate",
        input_ids=[*prompt, *one[:at]],
        sampling_params={"max_new_tokens": 1, "temperature": 0, "ignore_eos": True},
        return_logprob=True,
        top_logprobs_num=10,
    )
    found = answer.raise_for_status().json()["meta_info"]["output_top_logprobs"][0]
    logprobs = {int(token): float(logprob) for logprob, token, _ in found}
    return abs(logprobs.get(one[at], float("inf")) - logprobs.get(other[at], float("-inf")))
