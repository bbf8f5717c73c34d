"""``spelling="any"`` chooses what stock regex decoding on the same server chooses."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
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


def check_against_stock(
    server: SGLangServer, api: Client, prompt: str, grammar: RandomGrammar, plan: str, theirs: Forced | None = None
) -> bool:
    """Whether both agree; where not, noise or ``theirs`` must explain the first token that differs."""
    answer = api.select_k(prompt, spelling="any", plan=plan, **grammar.request)
    assert answer.usage.decoded_tokens == 0
    assert answer.spelling == "any"
    reference = stock(server, prompt, grammar.regex)
    ids = decided(answer)
    if (answer.text, ids) == (reference["text"], reference["output_ids"][: len(ids)]):
        return True
    at = next(i for i, (a, b) in enumerate(zip(answer.token_ids, reference["output_ids"], strict=False)) if a != b)
    if theirs is not None and theirs(grammar.regex, answer.token_ids[:at]):
        return False
    margin = min(decision.margin for decision in answer.decisions if decision.position <= at)
    assert margin < NOISE, (grammar, prompt, answer.text, reference["text"], at, margin)
    print(f"\nnoise: margin {margin:.2e} at token {at} of {answer.text!r} against {reference['text']!r}")
    return False


def check_random(server: SGLangServer, count: int, seed: int, theirs: Forced | None = None) -> None:
    equal = 0
    with client(server) as api:
        pairs = zip(random_grammars(count, seed), prompts(count, seed), strict=True)
        for index, (grammar, prompt) in enumerate(pairs):
            if theirs is not None and "regex" in grammar.request:
                # llguidance reads the class as digits of all scripts, which is refused by name.
                spelled = grammar.regex.replace(r"\d", "[0-9]")
                grammar = RandomGrammar({**grammar.request, "regex": spelled}, spelled)  # noqa: PLW2901
            plan = "auto" if "regex" in grammar.request else PLANS[index % 3]
            equal += check_against_stock(server, api, prompt, grammar, plan, theirs)
    print(f"\n{equal} of {count} equal")


Forced = Callable[[str, list[int]], bool]


def forced_by_llguidance(model: Path) -> Forced:
    """Tell where llguidance, as SGLang drives it, leaves one token only: wherever the text is forced.

    It spells forced text in its own way instead of leaving the spelling to the model; see ``docs/semantics.md``.
    """
    with warnings.catch_warnings():
        # Importing SGLang on a CPU warns about kernels that it will not use.
        warnings.simplefilter("ignore")
        from sglang.srt.constrained.llguidance_backend import GuidanceBackend
    from transformers import AutoTokenizer

    backend = GuidanceBackend(AutoTokenizer.from_pretrained(model))

    def forced(pattern: str, tokens: list[int]) -> bool:
        grammar = backend.dispatch_regex(pattern)
        for token in tokens:
            grammar.accept_token(token)
        mask = grammar.allocate_vocab_mask(backend.llguidance_tokenizer.vocab_size, 1, "cpu")
        grammar.fill_vocab_mask(mask, 0)
        return sum(int(word).bit_count() for word in (mask[0].long() & 0xFFFFFFFF).tolist()) == 1

    return forced


def test_random_model_against_outlines(tiny: SGLangServer) -> None:
    check_random(tiny, 10, seed=11)


def test_smollm2_against_outlines(smol: SGLangServer) -> None:
    check_random(smol, 8, seed=12)


five_hundred = pytest.mark.parametrize("part", [pytest.param(part, marks=pytest.mark.long) for part in range(5)])


@five_hundred
def test_many_against_outlines_on_the_random_model(tiny: SGLangServer, part: int) -> None:
    check_random(tiny, 100, seed=160 + part)


@five_hundred
def test_many_against_outlines(smol: SGLangServer, part: int) -> None:
    check_random(smol, 100, seed=130 + part)


def test_against_llguidance(guided: SGLangServer, tiny_path: Path) -> None:
    check_random(guided, 8, seed=14, theirs=forced_by_llguidance(tiny_path))


@five_hundred
def test_many_against_llguidance(guided: SGLangServer, tiny_path: Path, part: int) -> None:
    check_random(guided, 100, seed=170 + part, theirs=forced_by_llguidance(tiny_path))


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
            # Where the text is whole stock decoding writes the stop id as well.
            ids, stop = (
                reference["output_ids"][: len(answer.token_ids)],
                reference["output_ids"][len(answer.token_ids) :],
            )
            assert (answer.text, answer.token_ids) == (reference["text"], ids)
            assert len(stop) <= (answer.finish_reason == "stop")
            assert answer.usage.decoded_tokens == 0
            assert (answer.finish_reason == "stop") == bool(re.fullmatch(pattern, answer.text))
            serial = api.select_k(prompt, regex=pattern, spelling="any", max_tokens=9, plan="serial")
            assert (serial.token_ids, serial.finish_reason) == (answer.token_ids, answer.finish_reason)
