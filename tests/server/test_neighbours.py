"""Other requests beside ours: same choices under load, same answers with the plugin on and off, nothing leaked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from sgl_compiled.client import AsyncClient
from sgl_compiled.server import SGLangServer
from tests.server.conftest import client, generate
from tests.server.grammars import GRAMMARS, prompts

pytestmark = pytest.mark.server

UNRELATED: list[dict[str, Any]] = [
    {"text": "The capital of France is", "sampling_params": {"temperature": 0, "max_new_tokens": 24}},
    {"text": "One two three", "sampling_params": {"temperature": 0, "max_new_tokens": 16}, "return_logprob": True},
    {"text": "Digits: ", "sampling_params": {"temperature": 0, "max_new_tokens": 6, "regex": "[0-9]{3}"}},
    {"text": "word " * 150, "sampling_params": {"temperature": 0, "max_new_tokens": 12}},
    {"text": "Sampled", "sampling_params": {"temperature": 0, "max_new_tokens": 12, "frequency_penalty": 0.5}},
    {"text": "Stop", "sampling_params": {"temperature": 0, "max_new_tokens": 12, "custom_params": {"mine": 1}}},
]


def strip(answer: dict[str, Any]) -> dict[str, Any]:
    """Drop what no two runs share: ids, clocks, and how much the cache already held."""
    varying = {"id", "e2e_latency", "response_sent_to_client_ts", "cached_tokens", "cached_tokens_details"}
    meta = {key: value for key, value in answer["meta_info"].items() if key not in varying and "time" not in key}
    return {**answer, "meta_info": meta}


async def post_all(server: SGLangServer, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(base_url=server.url, timeout=300, trust_env=False) as http:
        responses = await asyncio.gather(*(http.post("/generate", json=body) for body in bodies))
    return [response.json() for response in responses]


async def decide_beside(server: SGLangServer, bodies: list[dict[str, Any]]) -> tuple[list[Any], list[dict[str, Any]]]:
    async with AsyncClient(server.url) as api:
        names = list(GRAMMARS)
        jobs = [api.select_k(text, **GRAMMARS[names[i % len(names)]]) for i, text in enumerate(prompts(12, seed=7))]
        answers, others = await asyncio.gather(asyncio.gather(*jobs), post_all(server, bodies))
    return answers, others


def test_same_choices_under_load_and_chunked_prefill(pool: Any, tiny_path: Path) -> None:
    server = pool.get(tiny_path, "--chunked-prefill-size", "128")
    beside = [
        {"text": f"{i} " + "word " * (40 * i), "sampling_params": {"temperature": 0, "max_new_tokens": 40}}
        for i in range(12)
    ]
    names = list(GRAMMARS)
    with client(server) as api:
        alone = [
            api.select_k(text, plan="serial", **GRAMMARS[names[i % len(names)]])
            for i, text in enumerate(prompts(12, seed=7))
        ]
    httpx.post(server.url + "/flush_cache", timeout=60, trust_env=False)
    answers, _ = asyncio.run(decide_beside(server, beside))
    assert [a.token_ids for a in answers] == [a.token_ids for a in alone]
    assert all(a.usage.decoded_tokens == 0 for a in answers)


def test_long_prompt_is_chunked_and_its_tree_is_not(pool: Any, tiny_path: Path) -> None:
    server = pool.get(tiny_path, "--chunked-prefill-size", "128")
    prompt = [7 + i % 500 for i in range(700)]
    labels = [chr(65 + i) for i in range(20)]
    with client(server) as api:
        answer = api.select_k(prompt, labels, 3, plan="[2,1]")
        assert answer.token_ids == api.select_k(prompt, labels, 3, plan="serial").token_ids
    assert answer.usage.decoded_tokens == 0
    # The first pass gave up its tree to compute the prompt; the tree then followed whole.
    assert answer.plan.passes[0].positions <= 1
    assert answer.plan.passes[1].cached_tokens >= 699


def test_unrelated_requests_are_byte_identical(plain: SGLangServer, pool: Any, tiny_path: Path) -> None:
    assert httpx.post(plain.url + "/v1/select_k", json={}, timeout=60, trust_env=False).status_code == 404
    assert "sgl_compiled" not in plain.log_text().replace("sgl_compiled/", "").partition("server_args")[0]
    alone_off = [strip(generate(plain, **body)) for body in UNRELATED]
    on = pool.get(tiny_path)
    alone_on = [strip(generate(on, **body)) for body in UNRELATED]
    _, beside_on = asyncio.run(decide_beside(on, UNRELATED))
    assert alone_on == alone_off
    assert [strip(answer)["text"] for answer in beside_on] == [answer["text"] for answer in alone_off]
    assert all("sgl_compiled" not in answer["meta_info"] for answer in beside_on)


def used_tokens(server: SGLangServer) -> int:
    loads = httpx.get(server.url + "/v1/loads", timeout=60, trust_env=False).json()
    return int(loads["loads"][0]["num_used_tokens"])


async def storm(server: SGLangServer, count: int) -> tuple[int, int]:
    """Send ``count`` decisions, every other one cancelled by its client; return how many ended and how many not."""
    names = list(GRAMMARS)
    done = cancelled = 0

    async def one(index: int, text: str) -> None:
        nonlocal done, cancelled
        async with AsyncClient(server.url) as api:
            job = asyncio.ensure_future(api.select_k(text, **GRAMMARS[names[index % len(names)]]))
            if index % 2:
                await asyncio.sleep(0.004 * (index % 13))
                if job.cancel():
                    cancelled += 1
                await asyncio.gather(job, return_exceptions=True)
            else:
                await job
                done += 1

    texts = prompts(count, seed=9)
    for start in range(0, count, 10):
        await asyncio.gather(*(one(start + i, text) for i, text in enumerate(texts[start : start + 10])))
    return done, cancelled


def test_nothing_leaks(tiny: SGLangServer) -> None:
    server = tiny
    done, cancelled = asyncio.run(storm(server, 300))
    assert done == 150
    assert cancelled > 100
    # Flushing needs an idle server; the idle check then counts every slot and stops the scheduler if one is missing.
    for _ in range(60):
        if httpx.post(server.url + "/flush_cache", timeout=60, trust_env=False).status_code == 200:
            break
    else:
        pytest.fail("the server did not become idle: a request was left behind")
    assert used_tokens(server) == 0
    assert generate(server, text="alive", sampling_params={"max_new_tokens": 1})["meta_info"]["completion_tokens"] == 1
    assert "leak" not in server.log_text().lower()


def test_losers_stay_out_of_the_radix_cache(tiny: SGLangServer) -> None:
    server = tiny
    httpx.post(server.url + "/flush_cache", timeout=60, trust_env=False)
    prompt = [11 + i for i in range(64)]
    labels = [chr(65 + i) for i in range(8)]
    with client(server) as api:
        answer = api.select_k(prompt, labels, 2, plan="[2]")
    winner = [*prompt, *answer.token_ids]
    loser = [token for token in [100, 200] if token not in answer.token_ids]
    sampling = {"temperature": 0, "max_new_tokens": 4}
    hit = generate(server, input_ids=[*winner, 9], sampling_params=sampling)["meta_info"]["cached_tokens"]
    # Everything up to the last decision was computed in the tree and is kept; the forced tail was not.
    assert hit > len(prompt)
    assert generate(server, input_ids=[*prompt, *loser, 9], sampling_params=sampling)["meta_info"]["cached_tokens"] <= (
        len(prompt) + 1
    )
    after = generate(server, input_ids=winner, sampling_params=sampling)["output_ids"]
    httpx.post(server.url + "/flush_cache", timeout=60, trust_env=False)
    assert generate(server, input_ids=winner, sampling_params=sampling)["output_ids"] == after
