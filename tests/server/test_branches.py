"""Branch policies on a real server: equal outputs, nothing left behind, switchable while it runs."""

from __future__ import annotations

import asyncio
import csv
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sgl_compiled.branches import POLICY_KEY, TAG
from sgl_compiled.server import SGLangServer

pytestmark = pytest.mark.server

POLICIES = ["eager", "off", "cap:2", "taper"]
WORDS = ["alpha", "beta", "gamma", "delta", "river", "stone", "window", "paper", "seven", "orange", "quiet"]


@pytest.fixture
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _shared(tmp_path_factory) / "steps.csv"


@pytest.fixture
def server(pool: Any, tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SGLangServer]:
    folder = _shared(tmp_path_factory)
    config = folder / "server.toml"
    config.write_text(f'[branches]\ntrace = "{folder}/steps.csv"\n[branches.slo.tight]\ntpot_s = 0.02\n')
    server = pool.get(tiny_path, "--enable-metrics", env={"SGLCOMPILED_CONFIG": str(config)})
    yield server
    assert server.alive()
    assert flushed(server), "something still holds memory"


def _shared(factory: pytest.TempPathFactory) -> Path:
    folder = factory.getbasetemp() / "branches"
    folder.mkdir(exist_ok=True)
    return folder


def post(server: SGLangServer, path: str, **body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=120, trust_env=False)


def switch(server: SGLangServer, policy: str) -> bool:
    return post(server, "/set_internal_state", server_args={POLICY_KEY: policy}).json() == [True]


def flushed(server: SGLangServer) -> bool:
    """Whether the cache can be flushed, which SGLang does only when no request is left anywhere."""
    for _ in range(50):
        if post(server, "/flush_cache").status_code == 200:
            return True
        time.sleep(0.1)
    return False


def workload(seed: int, groups: int) -> list[dict[str, Any]]:
    """Bodies of serial requests and forks, with grammars and streams among them; `abort` marks those to cancel."""
    rng, bodies = random.Random(seed), []
    for g in range(groups):
        prompt = " ".join(rng.choices(WORDS, k=rng.randint(20, 60)))
        base = {"temperature": 0, "ignore_eos": True}
        bodies.append(
            {
                "text": prompt + " serial",
                "sampling_params": base
                | {
                    "max_new_tokens": rng.randint(8, 40),
                    "custom_params": {TAG: {"id": f"s{seed}-{g}", "slo": "tight"}},
                },
            }
        )
        fanout = rng.choice([2, 3, 5])
        doomed = rng.random() < 0.25
        for branch in range(fanout):
            params = base | {"max_new_tokens": rng.randint(4, 48)}
            if rng.random() < 0.2:
                params |= {"regex": "(yes|no|maybe)( and (yes|no)){3}", "ignore_eos": False}
            tag = {"id": f"g{seed}-{g}", "branch": branch, "slo": {"e2e_s": 60.0}}
            bodies.append(
                {
                    "text": f"{prompt} branch {branch}",
                    "sampling_params": params | {"custom_params": {TAG: tag}},
                    "stream": rng.random() < 0.3,
                    "abort": doomed and rng.random() < 0.7,
                }
            )
    return bodies


async def drive(server: SGLangServer, bodies: list[dict[str, Any]], seed: int) -> list[list[int] | None]:
    """Send all bodies with small gaps; output ids in their order, None for an aborted one."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=300, trust_env=False, limits=limits) as client:

        async def one(i: int, body: dict[str, Any]) -> list[int] | None:
            body = dict(body)
            abort, rid = body.pop("abort", False), f"{seed}-{i}-{time.monotonic_ns()}"
            await asyncio.sleep(0.01 * i)
            if abort:
                task = asyncio.create_task(client.post("/generate", json=body | {"rid": rid}))
                await asyncio.sleep(0.05 + 0.01 * (i % 7))
                if i % 2:
                    task.cancel()  # the client goes away
                else:
                    await client.post("/abort_request", json={"rid": rid})
                await asyncio.gather(task, return_exceptions=True)
                return None
            if not body.get("stream"):
                return list((await client.post("/generate", json=body)).raise_for_status().json()["output_ids"])
            ids: list[int] = []
            async with client.stream("POST", "/generate", json=body) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        ids = httpx.Response(200, text=line[6:]).json()["output_ids"]
            return ids

        return await asyncio.gather(*(one(i, body) for i, body in enumerate(bodies)))


def parked_rows(trace: Path) -> dict[str, int]:
    """Rows parked by each policy, from the trace of the server."""
    out: dict[str, int] = {}
    with trace.open(newline="") as file:
        for row in csv.DictReader(file):
            out[row["policy"]] = out.get(row["policy"], 0) + int(row["parked"] or 0)
    return out


def test_outputs_are_equal_under_all_policies_with_aborts_mixed_in(server: SGLangServer, trace: Path) -> None:
    bodies = workload(1, groups=50)
    assert len(bodies) >= 200
    answers = {}
    for policy in POLICIES:
        assert switch(server, policy)
        answers[policy] = asyncio.run(drive(server, bodies, seed=1))
        assert flushed(server)
    reference = answers["eager"]
    for i, (body, ids) in enumerate(zip(bodies, reference, strict=True)):
        if body.get("abort"):
            continue
        assert ids, f"request {i} has no output"
        for policy in POLICIES[1:]:
            assert answers[policy][i] == ids, f"{policy} changed request {i}: {body}"
    parked = parked_rows(trace)
    assert parked.get("eager", 0) == 0
    assert parked["off"] > parked["cap:2"] > 0


def test_samples_of_one_request_are_a_group(server: SGLangServer, trace: Path) -> None:
    body = {"sampling_params": {"temperature": 0, "n": 6, "max_new_tokens": 40, "ignore_eos": True}}
    texts = ["the river and the stone", "seven quiet windows"]
    answers = {}
    for policy in ("eager", "off"):
        before = parked_rows(trace).get(policy, 0)
        assert switch(server, policy)
        answers[policy] = [answer["output_ids"] for answer in post(server, "/generate", text=texts, **body).json()]
        assert flushed(server)
        grew = parked_rows(trace).get(policy, 0) - before
        assert (grew > 0) == (policy == "off")
    assert answers["off"] == answers["eager"]
    assert len(answers["off"]) == 12
    assert all(len(ids) == 40 for ids in answers["off"])


@pytest.mark.parametrize("policy", ["off", "taper"])
def test_penalties_survive_parking(server: SGLangServer, policy: str) -> None:
    params = {"temperature": 0, "n": 4, "max_new_tokens": 48, "ignore_eos": True, "repetition_penalty": 1.3}
    answers = {}
    for name in ("eager", policy):
        assert switch(server, name)
        got = post(server, "/generate", text="paper paper orange", sampling_params=params | {"frequency_penalty": 0.4})
        answers[name] = [answer["output_ids"] for answer in got.json()]
    assert answers[policy] == answers["eager"]


def test_aborting_the_parent_ends_its_branches(server: SGLangServer) -> None:
    assert switch(server, "off")

    async def run() -> list[dict[str, Any]]:
        async with httpx.AsyncClient(base_url=server.url, timeout=120, trust_env=False) as client:

            def send(rid: str, tag: dict[str, Any]) -> asyncio.Task[httpx.Response]:
                params = {"max_new_tokens": 4000, "ignore_eos": True, "temperature": 0, "custom_params": {TAG: tag}}
                body = {"text": f"quiet {rid}", "rid": rid, "sampling_params": params}
                return asyncio.create_task(client.post("/generate", json=body))

            tasks = [send("parent-1", {"id": "family"})]
            tasks += [send(f"child-{i}", {"id": "family", "branch": i, "parent": "parent-1"}) for i in range(5)]
            await asyncio.sleep(1.0)
            await client.post("/abort_request", json={"rid": "parent-1"})
            started = time.monotonic()
            answers = await asyncio.gather(*tasks)
            assert time.monotonic() - started < 10
            return [answer.json() for answer in answers]

    for answer in asyncio.run(run()):
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"


@pytest.mark.parametrize(
    ("tag", "what"),
    [
        ({"branch": 1}, "id is None"),
        ({"id": "a", "slo": "nope"}, "unknown SLO class"),
        ({"id": "a", "slo": {"tpot_s": -1}}, "positive"),
        (17, "give an object"),
    ],
)
def test_malformed_tags_are_answered_with_400(server: SGLangServer, tag: Any, what: str) -> None:
    got = post(server, "/generate", text="stone", sampling_params={"max_new_tokens": 2, "custom_params": {TAG: tag}})
    assert got.status_code == 400
    assert what in got.text


def test_unknown_policies_are_refused_and_change_nothing(server: SGLangServer) -> None:
    assert not switch(server, "fastest")
    assert switch(server, "taper")


def test_metrics_are_exported(server: SGLangServer) -> None:
    assert switch(server, "off")
    params = {"temperature": 0, "n": 4, "max_new_tokens": 16, "ignore_eos": True}
    assert len(post(server, "/generate", text="gamma", sampling_params=params).json()) == 4
    text = httpx.get(server.url + "/metrics", timeout=30, trust_env=False).text
    for name in ("step_seconds_bucket", "step_predicted_seconds_bucket", "rows_parked_total", "slack_seconds"):
        assert f"sgl_compiled_branch_{name}" in text
