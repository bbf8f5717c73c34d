"""Plans on a real server: all agree, say why, and survive what happens to the cache between passes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from sgl_compiled.client import AsyncClient
from sgl_compiled.server import SGLangServer
from tests.server.conftest import client, generate
from tests.server.grammars import GRAMMARS, NUMBERS, prompts

pytestmark = pytest.mark.server

FIXED = ["[3]", "[1,2]", "[2,1]", "[1,1,1]", "[1,2]~1", "[1,2]~2", "[1,2]~8", "root+probe", "chunked", "serial"]


def test_every_plan_chooses_the_same(tiny: SGLangServer) -> None:
    with client(tiny) as api:
        for prompt in prompts(4, seed=21):
            answers = {plan: api.select_k(prompt, NUMBERS, 3, plan=plan) for plan in ["auto", *FIXED]}
            assert len({tuple(answer.token_ids) for answer in answers.values()}) == 1
            for plan, answer in answers.items():
                if plan not in ("auto", "serial"):
                    assert answer.logprob == pytest.approx(answers["chunked"].logprob, abs=1e-3)
                    assert answer.plan.forwards >= (1 if "~" in plan else 0)
    # Narrowing to one candidate misses now and then: a pass more, never another answer.
    assert answers["chunked"].plan.forwards >= answers["[3]"].plan.forwards


def test_auto_says_why(tiny: SGLangServer) -> None:
    with client(tiny) as api:
        answer = api.select_k("Numbers: ", NUMBERS, 3)
    assert answer.plan.requested == "auto"
    assert answer.plan.why[0].name == answer.plan.name
    times = [candidate.predicted_ms for candidate in answer.plan.why]
    assert times == sorted(times)
    assert len(times) > 2


def test_calibration_measures_and_stays(tiny: SGLangServer) -> None:
    found = httpx.post(tiny.url + "/v1/select_k/calibrate", timeout=300, trust_env=False).json()
    assert found["passes"] >= 10
    assert found["a_ms"] + found["b_ms"] > 0
    with client(tiny) as api:
        assert api.select_k("Numbers: ", NUMBERS, 2).usage.decoded_tokens == 0


def test_prompts_that_evict_each_other_between_passes(pool: Any, tiny_path: Path) -> None:
    """Five prompts of 700 tokens in 2,600 slots: the prefix of a pass is often gone when the next one comes."""
    server = pool.get(tiny_path, "--max-total-tokens", "2600")
    asked = [[(17 * i + j * j) % 4_000 + 10 for j in range(700)] for i in range(5)]
    with client(server) as api:
        alone = [api.select_k(prompt, NUMBERS, 3, plan="serial").token_ids for prompt in asked]

    async def all_at_once() -> list[Any]:
        async with AsyncClient(server.url) as api:
            return await asyncio.gather(*(api.select_k(prompt, NUMBERS, 3, plan="[1,1,1]") for prompt in asked))

    answers = asyncio.run(all_at_once())
    assert [answer.token_ids for answer in answers] == alone


def test_cache_flushed_between_passes(tiny: SGLangServer) -> None:
    """Between two passes of a lone request the server is idle, so a flush succeeds and takes the prompt away."""
    names = list(GRAMMARS)
    texts = prompts(8, seed=23)
    with client(tiny) as api:
        alone = [api.select_k(text, plan="serial", **GRAMMARS[names[i]]).token_ids for i, text in enumerate(texts)]

    async def hammer() -> tuple[list[Any], int]:
        flushed = 0
        async with AsyncClient(tiny.url) as api, httpx.AsyncClient(base_url=tiny.url, trust_env=False) as http:
            answers = []
            for index, text in enumerate(texts):
                job = asyncio.ensure_future(api.select_k(text, plan="chunked", **GRAMMARS[names[index]]))
                while not job.done():
                    flushed += (await http.post("/flush_cache", timeout=60)).status_code == 200
                answers.append(await job)
        return answers, flushed

    answers, flushed = asyncio.run(hammer())
    assert [answer.token_ids for answer in answers] == alone
    assert flushed > 0


def test_the_next_call_finds_prompt_and_path(tiny: SGLangServer) -> None:
    prompt = [500 + i for i in range(90)]
    httpx.post(tiny.url + "/flush_cache", timeout=60, trust_env=False)
    with client(tiny) as api:
        answer = api.select_k(prompt, NUMBERS, 3, plan="[1,2]")
    decided = max(decision.position for decision in answer.decisions)
    after = generate(
        tiny,
        input_ids=[*prompt, *answer.token_ids, 3],
        sampling_params={"max_new_tokens": 1, "temperature": 0},
    )
    # Everything before the last decided token was computed; that token and the forced tail never had to be.
    assert after["meta_info"]["cached_tokens"] == len(prompt) + decided
