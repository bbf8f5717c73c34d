"""Compiled control returns what serial decoding on the same server returns, token for token."""

from __future__ import annotations

import random
import re

import pytest

from sgl_compiled.server import SGLangServer
from tests.cases import BY_ID
from tests.server.conftest import client, generate
from tests.server.grammars import GRAMMARS, LETTERS, NUMBERS, prompts

pytestmark = pytest.mark.server

PLANS = ["auto", "root+probe", "chunked"]


def check_equal(server: SGLangServer, name: str, count: int, seed: int) -> None:
    grammar = GRAMMARS[name]
    with client(server) as api:
        for index, prompt in enumerate(prompts(count, seed)):
            reference = api.select_k(prompt, plan="serial", **grammar)
            assert reference.plan.name == "serial"
            assert reference.usage.decoded_tokens > 0
            answer = api.select_k(prompt, plan=PLANS[index % len(PLANS)], **grammar)
            assert answer.usage.decoded_tokens == 0
            assert (answer.token_ids, answer.text) == (reference.token_ids, reference.text)
            assert (answer.labels, answer.indices) == (reference.labels, reference.indices)


@pytest.mark.parametrize("name", GRAMMARS)
def test_random_model(tiny: SGLangServer, name: str) -> None:
    check_equal(tiny, name, count=20, seed=1)


@pytest.mark.parametrize("length", BY_ID["B05"]["input"]["prompt_tokens_variants"])
def test_any_length_of_prompt(tiny: SGLangServer, length: int) -> None:
    """In float32 the margin does not excuse a difference."""
    rng = random.Random(length)
    with client(tiny) as api:
        for _ in range(8):
            prompt = [rng.randrange(300, 4_000) for _ in range(length)]
            reference = api.select_k(prompt, [" True", " False"], template="raw", plan="serial")
            answer = api.select_k(prompt, [" True", " False"], template="raw")
            assert answer.labels == reference.labels
            assert answer.min_margin is not None


def single_spelling() -> list[tuple[str, list[str], int]]:
    """Grammars that a byte-level mask spells in one way only, once the opening quote is in the prompt."""
    return [("letters", LETTERS, 1), ("letters", LETTERS, 2), ("digits", NUMBERS[:9], 2), ("digits", NUMBERS[:9], 3)]


@pytest.mark.parametrize(("kind", "labels", "k"), single_spelling())
def test_equals_stock_outlines(smol: SGLangServer, kind: str, labels: list[str], k: int) -> None:
    """Where only one spelling exists, stock ``gen(regex=...)`` must choose the same.

    The tail ``"]`` has several spellings under a byte mask, so only the choices are compared, and each slot is asked
    for alone behind the text that leads to it.
    """
    with client(smol) as api:
        for prompt in prompts(4, seed=3):
            opened = prompt + '["'
            answer = api.select_k(opened, labels, k, template={"separator": '", "', "suffix": '"]', "escape": "json"})
            text = opened
            taken: list[str] = []
            for slot in range(k):
                left = [label for label in labels if label not in taken]
                pattern = "(" + "|".join(map(re.escape, left)) + ")"
                # The prompt ids are those that select_k saw: never re-merged with the answer.
                stock = generate(
                    smol, text=text, sampling_params={"regex": pattern, "temperature": 0, "max_new_tokens": 1}
                )
                taken.append(stock["text"])
                text += stock["text"] + '", "'
                assert answer.labels[slot] == stock["text"], (kind, slot, answer.min_margin)


@pytest.mark.parametrize("name", GRAMMARS)
def test_smollm2(smol: SGLangServer, name: str) -> None:
    check_equal(smol, name, count=6, seed=2)


def test_llguidance_backend(guided: SGLangServer) -> None:
    """The serial reference speaks llguidance's mask format too, beside llguidance's own grammars."""
    for name in ("letters-2", "sections-raw", "regex"):
        check_equal(guided, name, count=4, seed=5)
    stock = generate(
        guided, text="Pick: ", sampling_params={"regex": "(yes|no)", "temperature": 0, "max_new_tokens": 4}
    )
    assert stock["text"] in ("yes", "no")
