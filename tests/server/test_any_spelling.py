"""``spelling="any"`` chooses what stock regex decoding on the same server chooses."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sgl_compiled.client import Client
from sgl_compiled.runtime.schema import SelectResponse
from sgl_compiled.server import SGLangServer
from tests.server.conftest import client, generate
from tests.server.grammars import GRAMMARS, prompts
from tests.server.random_grammars import RandomGrammar, random_grammars

pytestmark = pytest.mark.server

NOISE = 1e-3
"""Logit margin under which two execution graphs may decide differently; fp32 on CPU stays below 1e-4."""

PLANS = ["auto", "chunked", "root+probe"]


def stock(server: SGLangServer, prompt: str, pattern: str) -> Any:
    return generate(
        server,
        text=prompt,
        sampling_params={"regex": pattern, "temperature": 0, "max_new_tokens": 400, "no_stop_trim": True},
    )


def decided(answer: SelectResponse) -> list[int]:
    """Token ids up to the last decision; behind it one text is left, and its spelling is not the model's."""
    last = answer.decisions[-1].position if answer.decisions else -1
    return answer.token_ids[: last + 1]


def check_against_stock(server: SGLangServer, api: Client, prompt: str, grammar: RandomGrammar, plan: str) -> None:
    answer = api.select_k(prompt, spelling="any", plan=plan, **grammar.request)
    assert answer.usage.decoded_tokens == 0
    assert answer.spelling == "any"
    reference = stock(server, prompt, grammar.regex)
    ids = decided(answer)
    if (answer.text, ids) == (reference["text"], reference["output_ids"][: len(ids)]):
        return
    at = next(i for i, (a, b) in enumerate(zip(answer.token_ids, reference["output_ids"], strict=False)) if a != b)
    margin = min(decision.margin for decision in answer.decisions if decision.position <= at)
    assert margin < NOISE, (grammar, prompt, answer.text, reference["text"], at, margin)
    print(f"\nnoise: margin {margin:.2e} at token {at} of {answer.text!r} against {reference['text']!r}")


def check_random(server: SGLangServer, count: int, seed: int) -> None:
    with client(server) as api:
        pairs = zip(random_grammars(count, seed), prompts(count, seed), strict=True)
        for index, (grammar, prompt) in enumerate(pairs):
            check_against_stock(
                server, api, prompt, grammar, "auto" if "regex" in grammar.request else PLANS[index % 3]
            )


def test_random_model_against_outlines(tiny: SGLangServer) -> None:
    check_random(tiny, 15, seed=11)


def test_smollm2_against_outlines(smol: SGLangServer) -> None:
    check_random(smol, 15, seed=12)


@pytest.mark.long
def test_many_against_outlines_on_the_random_model(tiny: SGLangServer) -> None:
    check_random(tiny, 60, seed=11)


@pytest.mark.long
def test_many_against_outlines(smol: SGLangServer) -> None:
    check_random(smol, 500, seed=13)


@pytest.mark.parametrize("name", GRAMMARS)
def test_equals_serial_reference(tiny: SGLangServer, name: str) -> None:
    """Grammars that stock decoding cannot take (distinct lists) against SGLang's decoding under our automaton."""
    with client(tiny) as api:
        for index, prompt in enumerate(prompts(6, seed=4)):
            reference = api.select_k(prompt, spelling="any", plan="serial", **GRAMMARS[name])
            answer = api.select_k(prompt, spelling="any", plan=["auto", "chunked"][index % 2], **GRAMMARS[name])
            assert reference.usage.decoded_tokens > 0
            assert answer.usage.decoded_tokens == 0
            assert (answer.token_ids, answer.text) == (reference.token_ids, reference.text)
            assert (answer.labels, answer.indices) == (reference.labels, reference.indices)
            assert (answer.groups, answer.named_groups) == (reference.groups, reference.named_groups)


def test_wide_states(tiny: SGLangServer) -> None:
    """Thousands of legal ids in every state: passes stay bounded, the answer stays stock decoding's."""
    with client(tiny) as api:
        for prompt in prompts(3, seed=6):
            check_against_stock(tiny, api, prompt, RandomGrammar({"regex": "[a-z]{1,6}"}, "[a-z]{1,6}"), "auto")


@pytest.mark.parametrize("pattern", ["[0-9]+", "(yes|no)(, (yes|no))*", "[a-c]{2,}-?", "(red|green)+!?"])
def test_infinite_languages(tiny: SGLangServer, pattern: str) -> None:
    """Cut off where ``max_new_tokens`` cuts stock decoding, token for token; serial the same."""
    with client(tiny) as api:
        for prompt in prompts(4, seed=8):
            answer = api.select_k(prompt, regex=pattern, spelling="any", max_tokens=9)
            sampling = {"regex": pattern, "temperature": 0, "max_new_tokens": 9, "no_stop_trim": True}
            reference = generate(tiny, text=prompt, sampling_params=sampling)
            ids = reference["output_ids"]
            if ids[-1] == reference["meta_info"]["finish_reason"].get("matched"):
                ids = ids[:-1]  # the stop id
            assert answer.token_ids == ids, (prompt, answer.text, reference["text"])
            assert answer.usage.decoded_tokens == 0
            assert (answer.finish_reason == "stop") == bool(re.fullmatch(pattern, answer.text))
            serial = api.select_k(prompt, regex=pattern, spelling="any", max_tokens=9, plan="serial")
            assert (serial.token_ids, serial.finish_reason) == (answer.token_ids, answer.finish_reason)
