"""Times at the shape of a served model; weights without meaning, so an answer is checked for being legal only."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.common import json_list_regex
from bench.gpu.client import BenchClient, random_prompt, timed
from bench.gpu.exactness import random_layout
from bench.gpu.records import Latency, Record, Results
from sgl_compiled.grammar.layout import TreeLayout

LABELS = [str(value) for value in range(1, 21)]

Request = Callable[[int], Awaitable[bool]]
"""Sends the request of client ``i``; True if the answer is legal."""


@dataclass(frozen=True)
class Sizes:
    """What is measured, the most telling first in case time runs out; small on a CPU."""

    prompts: tuple[int, ...] = (1400, 350, 8000, 2800)
    extends: tuple[int, ...] = (1, 16, 60, 128, 256, 512)
    picks: tuple[int, ...] = (2, 3, 4)
    clients: tuple[int, ...] = (1, 32)
    repeats: int = 8
    decode_tokens: int = 64
    labels: int = 20

    def rounds(self, clients: int) -> int:
        """Return how often a burst of so many clients is sent."""
        return self.repeats if clients == 1 else max(2, self.repeats // 4)


async def rounds(requests: dict[str, Request], clients: int, repeats: int) -> dict[str, list[tuple[float, bool]]]:
    """Send bursts of ``clients`` requests, arms in turn, so that drift of the machine hits all alike.

    Returns
    -------
    dict
        For each arm the milliseconds of every request, burst after burst, and whether its answer was legal.
    """
    out: dict[str, list[tuple[float, bool]]] = {arm: [] for arm in requests}
    for round_ in range(repeats + 1):
        for arm, request in requests.items():
            answers = await asyncio.gather(*(timed(request(index)) for index in range(clients)))
            # The first round compiles, fills caches and is not counted.
            if round_:
                out[arm] += answers
    return out


def records(stage: str, workload: dict[str, Any], measured: dict[str, list[tuple[float, bool]]]) -> list[Record]:
    """Return one record an arm."""
    out = []
    for arm, answers in measured.items():
        legal = sum(ok for _, ok in answers)
        passed = legal == len(answers)
        times = [ms for ms, _ in answers]
        # A burst is over with its slowest request.
        size = workload["clients"]
        walls_ms = [max(times[at : at + size]) for at in range(0, len(times), size)]
        out.append(
            Record(
                stage=stage,
                arm=arm,
                status="passed" if passed else "wrong",
                workload=workload,
                correctness={"answers": len(answers), "legal": legal},
                latency=Latency.of(times) if passed else None,
                requests_per_s=round(1e3 * len(times) / sum(walls_ms), 3) if passed else None,
            )
        )
    return out


async def prefill(client: BenchClient, vocabulary: int, sizes: Sizes, results: Results) -> None:
    """Prompts that nothing of is cached."""
    seed = iter(range(10_000_000, 20_000_000))

    def fresh(tokens: int) -> Request:
        async def send(_: int) -> bool:
            answer = await client.prefill(random_prompt(vocabulary, tokens, next(seed)))
            return int(answer["meta_info"]["cached_tokens"]) < 64

        return send

    for tokens in sizes.prompts:
        for clients in sizes.clients:
            measured = await rounds({"prefill": fresh(tokens)}, clients, sizes.rounds(clients))
            for record in records("prefill", {"prompt_tokens": tokens, "clients": clients}, measured):
                results.add(record)


def _text(client: BenchClient, prompts: Sequence[list[int]], vocabulary: int, size: int) -> Request:
    seed = iter(range(20_000_000 + 100_000 * size, 2**31))

    async def send(index: int) -> bool:
        answer = await client.prefill([*prompts[index], *random_prompt(vocabulary, size, next(seed))])
        return int(answer["meta_info"]["cached_tokens"]) > 0

    return send


def _tree(client: BenchClient, prompts: Sequence[list[int]], layout: TreeLayout) -> Request:
    async def send(index: int) -> bool:
        _, cached = await client.probe(prompts[index], layout)
        return cached > 0

    return send


async def extends(client: BenchClient, vocabulary: int, sizes: Sizes, results: Results) -> None:
    """New tokens behind a cached prompt: a plain text, and a tree of the same size."""
    for tokens in sizes.prompts:
        prompts = await warm(client, vocabulary, tokens, max(sizes.clients))
        for extend in sizes.extends:
            arms = {
                "text": _text(client, prompts, vocabulary, extend),
                "tree": _tree(client, prompts, random_layout(vocabulary, extend)),
            }
            for clients in sizes.clients:
                workload = {"prompt_tokens": tokens, "extend_tokens": extend, "clients": clients}
                for record in records("extend", workload, await rounds(arms, clients, sizes.rounds(clients))):
                    results.add(record)


async def warm(client: BenchClient, vocabulary: int, tokens: int, count: int) -> list[list[int]]:
    """Return ``count`` prompts that the radix cache holds."""
    prompts = [random_prompt(vocabulary, tokens, 1000 * tokens + index) for index in range(count)]
    for prompt in prompts:
        await client.prefill(prompt)
    return prompts


def plans_for(picks: int) -> list[str]:
    """Plans of interest for so many picks; ``chunked`` and ``serial`` are the other two engines."""
    extra = {2: ["[1,1]"], 3: ["[2,1]"], 4: ["[2,2]"]}.get(picks, [])
    return ["auto", "root+probe", *extra, "chunked", "serial"]


def _pick(
    client: BenchClient,
    prompts: Sequence[list[int]],
    labels: Sequence[str],
    picks: int,
    plan: str,
    seen: dict[str, Any],
) -> Request:
    async def send(index: int) -> bool:
        answer = await client.select(prompts[index], labels, picks, plan)
        facts = seen.setdefault(plan, {"labels": {}})
        facts |= {"plan": answer.plan.name, "positions": [one.positions for one in answer.plan.passes]}
        facts["labels"][index] = answer.labels
        return len(set(answer.labels)) == picks and set(answer.labels) <= set(labels)

    return send


def _facts(seen: dict[str, Any], plan: str, clients: int) -> dict[str, Any]:
    """Return a plan's shape, and for how many prompts its labels are those of serial decoding."""
    if plan not in seen:
        return {}
    mine, serial = seen[plan]["labels"], seen["serial"]["labels"]
    same = sum(mine[index] == serial[index] for index in range(clients))
    return {"plan": seen[plan]["plan"], "positions": seen[plan]["positions"], "same_as_serial": f"{same}/{clients}"}


def _regex(client: BenchClient, prompts: Sequence[list[int]], pattern: str, most_tokens: int) -> Request:
    async def send(index: int) -> bool:
        answer = await client.generate(prompts[index], {"regex": pattern, "max_new_tokens": most_tokens})
        return re.fullmatch(pattern, answer["text"]) is not None

    return send


async def select(client: BenchClient, vocabulary: int, sizes: Sizes, results: Results, *, stage: str) -> None:
    """Pick n of k labels behind a cached prompt: every plan, and the stock regex of the server's grammar backend."""
    labels = LABELS[: sizes.labels]
    for tokens in sizes.prompts:
        prompts = await warm(client, vocabulary, tokens, max(sizes.clients))
        for picks in sizes.picks:
            seen: dict[str, Any] = {}
            arms = {f"select_k {plan}": _pick(client, prompts, labels, picks, plan, seen) for plan in plans_for(picks)}
            # A label takes at most as many tokens as it has bytes, and its quotes and comma four more.
            arms["stock regex"] = _regex(client, prompts, json_list_regex(labels, picks), 8 * picks + 4)
            for clients in sizes.clients:
                measured = await rounds(arms, clients, sizes.rounds(clients))
                workload = {"prompt_tokens": tokens, "n": picks, "k": len(labels), "clients": clients}
                for record in records(stage, workload, measured):
                    record.correctness |= _facts(seen, record.arm.removeprefix("select_k "), clients)
                    results.add(record)


async def choices(client: BenchClient, tokenizer: Any, sizes: Sizes, results: Results) -> None:
    """SGLang's own ``gen(choices=...)``, one call a pick, through its frontend."""
    import sglang as sgl

    backend = await asyncio.to_thread(sgl.RuntimeEndpoint, client.url)
    labels = LABELS[: sizes.labels]

    @sgl.function  # type: ignore[untyped-decorator]
    def program(s: Any, prompt: str, picks: int) -> None:
        s += prompt + '["'
        left = list(labels)
        for slot in range(picks):
            s += sgl.gen(f"pick{slot}", choices=left)
            left.remove(s[f"pick{slot}"])
            s += '", "' if slot + 1 < picks else '"]'

    def ask(prompt: str, picks: int) -> bool:
        state = program.run(prompt=prompt, picks=picks, backend=backend)
        chosen = [state[f"pick{slot}"] for slot in range(picks)]
        state.sync()
        return len(set(chosen)) == picks

    def sender(texts: Sequence[str], picks: int) -> Request:
        async def send(index: int) -> bool:
            return await asyncio.to_thread(ask, texts[index], picks)

        return send

    # One call sends as many requests as there are labels, a pick; one length of prompt has to do.
    tokens, count = sizes.prompts[0], max(sizes.clients)
    texts = [tokenizer.decode(random_prompt(len(tokenizer), tokens, 7 * tokens + index)) for index in range(count)]
    for picks in sizes.picks:
        for clients in sizes.clients:
            measured = await rounds({"gen(choices=)": sender(texts, picks)}, clients, 1 if clients > 1 else 3)
            workload = {"prompt_tokens": tokens, "n": picks, "k": len(labels), "clients": clients}
            for record in records("choices", workload, measured):
                results.add(record)


async def plain(client: BenchClient, vocabulary: int, sizes: Sizes, results: Results, *, plugin: bool) -> None:
    """Ordinary traffic: fresh prompts and free decoding."""
    seed = iter(range(30_000_000, 40_000_000))

    async def send(_: int) -> bool:
        sampling = {"max_new_tokens": sizes.decode_tokens, "ignore_eos": True}
        answer = await client.generate(random_prompt(vocabulary, sizes.prompts[0], next(seed)), sampling)
        return int(answer["meta_info"]["completion_tokens"]) == sizes.decode_tokens

    for clients in sizes.clients:
        measured = await rounds({"plugin on" if plugin else "plugin off": send}, clients, sizes.rounds(clients))
        workload = {
            "prompt_tokens": sizes.prompts[0],
            "decode_tokens": sizes.decode_tokens,
            "clients": clients,
        }
        for record in records("plain", workload, measured):
            results.add(record)
