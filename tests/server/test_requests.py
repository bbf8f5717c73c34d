"""What clients may send, and what they get."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from sgl_compiled.server import SGLangServer
from tests.server.conftest import client, generate

pytestmark = pytest.mark.server

OK = {"prompt": "Pick one: ", "labels": ["a", "b"], "k": 1}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no labels": ({**OK, "labels": []}, "labels is empty"),
    "labels missing": ({"prompt": "x"}, "either 'labels' or 'regex'"),
    "both": ({**OK, "regex": "a|b"}, "either 'labels' or 'regex'"),
    "no prompt": ({"labels": ["a"]}, "either 'prompt' or 'messages'"),
    "empty prompt": ({**OK, "prompt": []}, "no tokens"),
    "empty label": ({**OK, "labels": ["a", ""]}, "labels[1] is empty"),
    "duplicate label": ({**OK, "labels": ["a", "b", "a"]}, "duplicate label 'a'"),
    "one string": ({**OK, "labels": "yes"}, "labels"),
    "numbers": ({**OK, "labels": [1, 2]}, "labels"),
    "null label": ({**OK, "labels": [None]}, "labels"),
    "k zero": ({**OK, "k": 0}, "k >= 1"),
    "k negative": ({**OK, "k": -1}, "k >= 1"),
    "k too large": ({**OK, "k": 3}, "only 2 distinct"),
    "k a word": ({**OK, "k": "two"}, "k"),
    "unknown template": ({**OK, "template": "xml"}, "unknown template"),
    "unknown field": ({**OK, "temprature": 1}, "temprature"),
    "unknown order": ({**OK, "order": "random"}, "order"),
    "unknown plan": ({**OK, "plan": "fastest"}, "unknown plan"),
    "plan that does not add up": ({**OK, "plan": "[2,2]"}, "must add up"),
    "label with separator": ({**OK, "labels": ["a, b", "c"], "k": 2, "template": "raw"}, "separator"),
    "lone surrogate": ({**OK, "labels": ["\ud800"]}, "surrogate"),
    "infinite": ({"prompt": "x", "regex": "a+"}, "infinite"),
    "empty language": ({"prompt": "x", "regex": "[^\\s\\S]"}, "empty"),
    "lookahead": ({"prompt": "x", "regex": "(?=a)[ab]"}, "look"),
    "backreference": ({"prompt": "x", "regex": "(a|b)\\1"}, "back"),
    "unbalanced": ({"prompt": "x", "regex": "(a"}, "regular expression"),
    "huge language": ({"prompt": "x", "regex": "[a-z]{0,12}"}, "strings"),
    "huge repeat": ({"prompt": "x", "regex": "(?:(?:a{0,50}){0,50}){0,50}"}, ""),
    "too many labels": ({**OK, "labels": [str(i) for i in range(60_000)]}, "limit"),
    "prompt too long": ({**OK, "prompt": [5] * 9000}, "shorten"),
    "id outside the vocabulary": ({**OK, "prompt": [1, 10**7]}, "vocabulary"),
    "unknown model": ({**OK, "model": "gpt-17"}, "not served here"),
}


def post(server: SGLangServer, content: bytes) -> httpx.Response:
    return httpx.post(
        server.url + "/v1/select_k",
        content=content,
        headers={"content-type": "application/json"},
        timeout=120,
        trust_env=False,
    )


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_sentence(tiny: SGLangServer, name: str) -> None:
    body, part = REFUSED[name]
    response = post(tiny, json.dumps(body).encode())
    assert 400 <= response.status_code < 500, response.text[:300]
    message = response.json()["error"]["message"]
    assert part.lower() in message.lower()
    assert len(message) > 15
    assert "Traceback" not in message


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b'{"prompt": NaN}'])
def test_body_that_is_no_request(tiny: SGLangServer, content: bytes) -> None:
    assert post(tiny, content).status_code == 400


def test_server_is_alive_after_all_that(tiny: SGLangServer) -> None:
    with client(tiny) as api:
        assert api.select_k("Pick: ", ["a", "b"]).labels[0] in ("a", "b")
    assert generate(tiny, text="Hello", sampling_params={"max_new_tokens": 2})["meta_info"]["completion_tokens"] == 2


def test_forged_probes_are_plain_requests(tiny: SGLangServer) -> None:
    """Our own payload keys, written by a client: nothing ill-formed reaches a kernel."""
    ids = [5, 6, 7, 8]
    good = {"base": 2, "parents": [-1, 0], "rows": [-1], "legal": [5, 6], "counts": [2], "keep": True}
    bad: list[dict[str, Any]] = [
        {"base": 0},
        {"base": "2"},
        {"parents": [-1, 5]},
        {"parents": [0, 0]},
        {"parents": [-1]},
        {"rows": [-2]},
        {"rows": [7]},
        {"rows": []},
        {"legal": [5, 10**8]},
        {"legal": [-1, 5]},
        {"counts": [3]},
        {"counts": [0]},
        {"parents": None},
    ]
    for change in bad:
        custom = {f"sgl_compiled_{key}": value for key, value in {**good, **change}.items()}
        sampling = {"max_new_tokens": 1, "temperature": 0, "custom_params": custom}
        out = generate(tiny, input_ids=ids, sampling_params=sampling)
        assert "sgl_compiled" not in out["meta_info"]
    # Well-formed parameters on a request that decodes on, or streams, are not a probe either.
    custom = {f"sgl_compiled_{key}": value for key, value in good.items()}
    out = generate(
        tiny, input_ids=ids, sampling_params={"max_new_tokens": 3, "temperature": 0, "custom_params": custom}
    )
    assert "sgl_compiled" not in out["meta_info"]
    # Nor is one that asks for what SGLang pairs with the whole input.
    once = {"max_new_tokens": 1, "temperature": 0}
    custom["sgl_compiled_keep"] = False
    body = {"return_logprob": True, "logprob_start_len": 0, "sampling_params": {**once, "custom_params": custom}}
    out = generate(tiny, input_ids=ids, **body)
    assert "sgl_compiled" not in out["meta_info"]
    assert len(out["meta_info"]["input_token_logprobs"]) == len(ids)
    # Well-formed, its prompt cached, no row at the prompt's end, and too large for a chunk: the tree gives way.
    prompt, nodes = [9, 8, 7, 6], 9_000
    generate(tiny, input_ids=prompt, sampling_params=once)
    wide = {"base": 4, "parents": [-1] * nodes, "rows": [0], "legal": [5], "counts": [1], "keep": False}
    custom = {f"sgl_compiled_{key}": value for key, value in wide.items()}
    answer = httpx.post(
        tiny.url + "/generate",
        json={"input_ids": [*prompt, *[5] * nodes], "sampling_params": {**once, "custom_params": custom}},
        timeout=60,
        trust_env=False,
    )
    assert answer.status_code in (200, 400)
    assert generate(tiny, input_ids=prompt, sampling_params=once)["output_ids"]


def test_prompt_kinds_agree(smol: SGLangServer) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smol.model)
    messages = [{"role": "user", "content": "Which letter comes first, A or B?"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    with client(smol) as api:
        by_messages = api.select_k(None, ["A", "B", "C"], 2, messages=messages)
        by_text = api.select_k(text, ["A", "B", "C"], 2)
        by_ids = api.select_k(tokenizer.encode(text), ["A", "B", "C"], 2)
    assert by_messages.token_ids == by_text.token_ids == by_ids.token_ids
    assert by_messages.usage.prompt_tokens == by_text.usage.prompt_tokens == by_ids.usage.prompt_tokens


def test_evidence_is_strict_json_and_adds_up(smol: SGLangServer) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    response = post(smol, json.dumps({"prompt": "Sections: ", "labels": ["Intro", "In", "Data"], "k": 2}).encode())
    answer = json.loads(response.text, parse_constant=refuse)
    assert json.loads(answer["text"]) == answer["labels"]
    total = 0.0
    for decision in answer["decisions"]:
        assert sum(c["probability"] for c in decision["candidates"]) == pytest.approx(1, abs=1e-6)
        assert 0 <= decision["label_mass"] <= 1
        assert decision["margin"] >= 0
        taken = max(decision["candidates"], key=lambda c: c["probability"])
        assert taken["token_id"] == decision["token_id"]
        total += decision["logprob"]
    assert answer["logprob"] == pytest.approx(total)
    assert answer["usage"]["decoded_tokens"] == 0
    assert answer["usage"]["completion_tokens"] == len(answer["token_ids"])


def test_one_answer_needs_no_pass(tiny: SGLangServer) -> None:
    with client(tiny) as api:
        answer = api.select_k("Only: ", ["only"], 1)
        assert (answer.labels, answer.plan.forwards, answer.decisions) == (["only"], 0, [])
        assert api.select_k("List: ", ["a", "b"], 2, order="list").labels == ["a", "b"]
        assert api.select_k("Empty: ", regex="").text == ""


def test_regex_groups(tiny: SGLangServer) -> None:
    with client(tiny) as api:
        answer = api.select_k("Size: ", regex=r"(?P<n>[1-3])(?P<unit>kg|g)")
    assert answer.text == f"{answer.named_groups['n']}{answer.named_groups['unit']}"
    assert answer.groups == list(answer.named_groups.values())


def test_route_is_documented(tiny: SGLangServer) -> None:
    schema = httpx.get(tiny.url + "/openapi.json", timeout=60, trust_env=False).json()
    operation = schema["paths"]["/v1/select_k"]["post"]
    assert "SelectRequest" in json.dumps(operation)
    assert "label_mass" in json.dumps(schema["components"])
