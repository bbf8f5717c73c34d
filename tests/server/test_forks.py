"""Forks on a server with room for six running requests: shared prefill, waves, failing members; and injected faults."""

from __future__ import annotations

import asyncio
import csv
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sglang as sgl

from sgl_compiled import select_k, tag_forks
from sgl_compiled.branches import TAG
from sgl_compiled.server import SGLangServer
from tests.cases import BY_ID
from tests.server.conftest import client, generate
from tests.server.faults import FAULTS, install_faults

# The interpreter warns of an error before it lets go of those who wait for it; raised, the warning would hold them.
pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("default:Error in stream_executor")]

ROOM = 6
GREEDY = {"temperature": 0, "ignore_eos": True}


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.getbasetemp() / "forks"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def server(pool: Any, tiny_path: Path, folder: Path) -> Iterator[SGLangServer]:
    config = folder / "server.toml"
    config.write_text(f'[branches]\ntrace = "{folder}/steps.csv"\n[branches.slo.essay]\ne2e_s = 60.0\n')
    env = {"SGLCOMPILED_CONFIG": str(config), **install_faults(folder)}
    server = pool.get(tiny_path, "--max-running-requests", str(ROOM), env=env)
    yield server
    assert server.alive()
    assert flushed(server), "something still holds memory"


def flushed(server: SGLangServer) -> bool:
    """Whether the cache can be flushed, which SGLang does only when no request is left anywhere."""
    for _ in range(100):
        if httpx.post(server.url + "/flush_cache", timeout=30, trust_env=False).status_code == 200:
            return True
        time.sleep(0.1)
    return False


def prompt_ids(length: int, seed: int) -> list[int]:
    return [300 + (i * 7 + seed * 13) % 4000 for i in range(length)]


def send(server: SGLangServer, bodies: list[dict[str, Any]]) -> list[httpx.Response]:
    """Answers to requests sent at once."""

    async def run() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.url, timeout=300, trust_env=False, limits=limits) as http:
            return await asyncio.gather(*(http.post("/generate", json=body) for body in bodies))

    return asyncio.run(run())


def test_branches_of_a_fork_prefill_their_prompt_once(server: SGLangServer) -> None:
    given = BY_ID["D01"]["input"]
    shared = prompt_ids(given["prompt_tokens"], 1)
    tag = {"id": "cold fork"}
    # A program's head: one token, after which the branches of the fork find its prompt in the cache.
    generate(server, input_ids=shared, sampling_params={"max_new_tokens": 0})
    bodies = [
        {
            "input_ids": [*shared, *prompt_ids(given["branch_suffix_tokens"], 50 + i)],
            "sampling_params": {**GREEDY, "max_new_tokens": 4, "custom_params": {TAG: {**tag, "branch": i}}},
        }
        for i in range(given["branches"])
    ]
    metas = [answer.json()["meta_info"] for answer in send(server, bodies)]
    computed = len(shared) + sum(meta["prompt_tokens"] - meta["cached_tokens"] for meta in metas)
    assert computed <= 2000 + 8 * 20 + 64


def test_samples_share_their_prompt_and_report_it(server: SGLangServer) -> None:
    given = BY_ID["D02"]["input"]
    shared = prompt_ids(given["prompt_tokens"], 2)
    params = {**GREEDY, "n": given["n"], "max_new_tokens": given["max_new_tokens"]}
    for _ in range(2):
        metas = [one["meta_info"] for one in generate(server, input_ids=shared, sampling_params=params)]
        assert len(metas) == given["n"]
        assert all(0 <= meta["cached_tokens"] <= meta["prompt_tokens"] == len(shared) for meta in metas)
        # Four recomputed last tokens: the token whose logits start each sample.
        assert sum(meta["prompt_tokens"] - meta["cached_tokens"] for meta in metas) <= len(shared) + given["n"]
        assert all(meta["completion_tokens"] == given["max_new_tokens"] for meta in metas)


@pytest.mark.parametrize("n", [n for n in BY_ID["D03"]["input"]["n_variants"] if n > 1])
def test_every_sample_is_there_once(server: SGLangServer, n: int) -> None:
    params = {"temperature": 0.8, "n": n, "max_new_tokens": 16}
    for inputs, wanted in (({"text": "count:"}, n), ({"input_ids": [5, 6]}, n), ({"text": ["a:", "b:"]}, 2 * n)):
        answers = generate(server, **inputs, sampling_params=params)
        assert len(answers) == wanted
        assert len({answer["meta_info"]["id"] for answer in answers}) == wanted


def test_groups_that_do_not_fit_together_finish(server: SGLangServer) -> None:
    """D06 and D08: two forks of four where six places are, one of them cancelled; 96 samples in waves."""

    async def run() -> list[Any]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.url, timeout=120, trust_env=False, limits=limits) as http:

            def group(name: str) -> list[asyncio.Task[httpx.Response]]:
                return [
                    asyncio.create_task(
                        http.post(
                            "/generate",
                            json={
                                "text": f"{name} writes part {i}",
                                "rid": f"{name}-{i}",
                                "sampling_params": {
                                    **GREEDY,
                                    "max_new_tokens": 40,
                                    "custom_params": {TAG: {"id": name, "branch": i}},
                                },
                            },
                        )
                    )
                    for i in range(4)
                ]

            first, second, third = group("first"), group("second"), group("third")
            await asyncio.sleep(0.02)
            await http.post("/abort_request", json={"rid": "third"})
            for task in third[:2]:
                task.cancel()
            await asyncio.gather(*third, return_exceptions=True)
            return await asyncio.gather(*first, *second)

    assert all(answer.json()["meta_info"]["completion_tokens"] == 40 for answer in asyncio.run(run()))
    waves = generate(server, text="waves:", sampling_params={**GREEDY, "n": 16 * ROOM, "max_new_tokens": 16})
    assert len(waves) == 16 * ROOM
    assert len({tuple(one["output_ids"]) for one in waves}) == 1


def test_one_branch_fails_alone(server: SGLangServer) -> None:
    async def run() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=120, trust_env=False) as http:
            return await asyncio.gather(
                http.post("/v1/select_k", json={"prompt": "P", "labels": ["A", "B"]}),
                http.post("/v1/select_k", json={"prompt": "P", "regex": "([A"}),
                http.post("/generate", json={"input_ids": [7] * 10_000, "sampling_params": {"max_new_tokens": 4}}),
                http.post("/generate", json={"text": "P", "sampling_params": {**GREEDY, "max_new_tokens": 4}}),
            )

    answers = asyncio.run(run())
    assert [answer.status_code for answer in answers] == [200, 400, 400, 200]
    assert answers[0].json()["labels"][0] in ("A", "B")
    assert answers[3].json()["meta_info"]["completion_tokens"] == 4


def test_a_program_whose_branch_fails_still_joins(server: SGLangServer) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "P"
        branches = s.fork(3)
        branches[0] += select_k("picked", ["A", "B"])
        branches[1] += select_k("picked", regex="([A")
        branches[2] += sgl.gen("text", max_tokens=4, temperature=0, ignore_eos=True)
        branches.join()
        seen.extend([branches[0]["picked"], branches[1].error(), branches[2]["text"]])

    seen: list[Any] = []
    program.run(backend=sgl.RuntimeEndpoint(server.url))
    assert seen[0] in (["A"], ["B"])
    assert "regular expression" in str(seen[1])
    assert seen[2]


def test_grammars_and_seeds_of_samples_are_their_own(server: SGLangServer) -> None:
    """D11 and D12."""
    given = BY_ID["D11"]["input"]
    params = {"temperature": 1.0, "max_new_tokens": 8, "regex": given["regex"]}
    texts = [one["text"] for one in generate(server, text="P", sampling_params={**params, "n": given["n"]})]
    assert all(re.fullmatch(given["regex"], text) for text in texts)
    bodies = [{"text": "P", "sampling_params": {**params, "temperature": 0}} for _ in range(16)]
    assert len({answer.json()["text"] for answer in send(server, bodies)}) == 1
    plain = {"temperature": 1.0, "max_new_tokens": 40, "ignore_eos": True}
    hot = generate(server, text="P", sampling_params={**plain, "n": 4})
    assert len({one["text"] for one in hot}) > 1
    cold = generate(server, text="P", sampling_params={**plain, "temperature": 0, "n": 4})
    assert len({one["text"] for one in cold}) == 1
    lengths = [1, 40, 40, 40]
    tagged = [
        {"text": "P", "sampling_params": {**GREEDY, "max_new_tokens": n, "custom_params": {TAG: {"id": "uneven"}}}}
        for n in lengths
    ]
    assert [answer.json()["meta_info"]["completion_tokens"] for answer in send(server, tagged)] == lengths


def parallel_groups(folder: Path) -> list[dict[str, str]]:
    with (folder / "steps.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_forks_of_programs_carry_their_group(server: SGLangServer, folder: Path) -> None:
    @sgl.function
    def essay(s: Any, topic: str) -> None:
        s += "Write about " + topic
        branches = s.fork(2)
        for i, branch in enumerate(branches):
            branch += f" part {i}"
            for inner in branch.fork(2):
                inner += sgl.gen("part", max_tokens=24, temperature=0, ignore_eos=True)
                texts.append(inner)
        s += sgl.gen("end", max_tokens=4, temperature=0, ignore_eos=True)

    backend = sgl.RuntimeEndpoint(server.url)
    texts: list[Any] = []
    httpx.post(server.url + "/set_internal_state", json={"server_args": {"sgl_compiled_branch_policy": "off"}})
    before = len(parallel_groups(folder))
    untagged = essay.run(topic="rivers", backend=backend)
    plain = [untagged["end"], *(inner["part"] for inner in texts)]
    assert len(parallel_groups(folder)) == before, "forks are tagged without being asked to"
    texts.clear()
    tag_forks(slo="essay")
    tagged = essay.run(topic="rivers", backend=backend)
    assert [tagged["end"], *(inner["part"] for inner in texts)] == plain
    grown = parallel_groups(folder)[before:]
    assert sum(int(row["parked"] or 0) for row in grown) > 0, "the leaves of one program are no group"
    tag_forks(slo="no such class")
    try:
        refused = essay.run(topic="stones", backend=backend)
        assert refused.error() is not None
    finally:
        tag_forks()  # for the process, so for the tests to come


@pytest.mark.parametrize("suffixes", [["a", "b", "c"], ["", "", ""], ["a"], []])
def test_forks_of_any_shape(server: SGLangServer, suffixes: list[str]) -> None:
    """D13."""

    @sgl.function
    def program(s: Any, prompt: str) -> None:
        s += prompt
        branches = s.fork(len(suffixes))
        for branch, suffix in zip(branches, suffixes, strict=True):
            branch += suffix
            branch += sgl.gen("text", max_tokens=3, temperature=0, ignore_eos=True)
        texts.extend(branch["text"] for branch in branches)

    texts: list[str] = []
    state = program.run(prompt="P", backend=sgl.RuntimeEndpoint(server.url))
    assert state.error() is None
    assert len(texts) == len(suffixes)
    if suffixes == ["", "", ""]:
        assert len(set(texts)) == 1


@pytest.mark.parametrize("label", FAULTS)
def test_a_fault_costs_its_own_request(server: SGLangServer, label: str) -> None:
    """E03."""
    body = {"prompt": "ok?", "labels": [label, "other"]}
    answer = httpx.post(server.url + "/v1/select_k", json=body, timeout=60, trust_env=False)
    assert answer.is_error
    with client(server) as api:
        assert api.select_k("ok?", ["yes", "no"]).labels[0] in ("yes", "no")


@pytest.mark.parametrize("how", ["disconnect", "deadline"])
def test_a_client_that_leaves_during_compilation(server: SGLangServer, how: str) -> None:
    """E05."""
    given = BY_ID["E05"]["input"]["steps"][0]["send"]["labels_template"]
    labels = [given["format"].format(i=i) for i in range(given["n"])]

    async def leave() -> None:
        async with httpx.AsyncClient(base_url=server.url, trust_env=False) as http:
            timeout = 0.1 if how == "deadline" else 60
            task = asyncio.create_task(
                http.post("/v1/select_k", json={"prompt": "ok?", "labels": labels}, timeout=timeout)
            )
            if how == "disconnect":
                await asyncio.sleep(0.05)
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(leave())
    with client(server) as api:
        assert api.select_k("ok?", ["yes", "no"]).labels[0] in ("yes", "no")
