"""Models, forms and tools over HTTP and in the frontend, equal to serial decoding of the same grammar."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

import httpx
import pytest
from pydantic import BaseModel, Field

from sgl_compiled.errors import GrammarError
from sgl_compiled.grammar.files import load_grammar
from sgl_compiled.server import SGLangServer
from tests.server.conftest import client
from tests.server.grammars import prompts

pytestmark = pytest.mark.server

FILES = sorted((Path(__file__).parents[2] / "grammars").glob("*.json"))


class Priority(Enum):
    LOW = "low"
    HIGH = "high"


class Owner(BaseModel):
    team: Literal["core", "web"]
    on_call: bool


class Ticket(BaseModel):
    priority: Priority
    severity: Annotated[int, Field(ge=1, le=4)]
    owner: Owner
    tags: list[Literal["bug", "question"]] = Field(max_length=2)


class Open(BaseModel):
    owner: Owner
    title: str


@pytest.mark.parametrize("spelling", ["canonical", "any"])
def test_model(tiny: SGLangServer, spelling: str) -> None:
    with client(tiny) as api:
        for prompt in prompts(4, seed=8):
            chosen = api.select_model(prompt, Ticket, spelling=spelling)
            assert isinstance(chosen.value, Ticket)
            assert chosen.value.model_dump_json() == chosen.response.text.replace(", ", ",").replace(": ", ":")
            reference = api.select_model(prompt, Ticket, spelling=spelling, plan="serial")
            assert chosen.value == reference.value
            assert chosen.response.token_ids == reference.response.token_ids
            assert chosen.response.usage.decoded_tokens == 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_ready_grammars(tiny: SGLangServer, path: Path) -> None:
    fields = load_grammar(path).fields
    with client(tiny) as api:
        for index, prompt in enumerate(prompts(4, seed=9)):
            spelling = ["canonical", "any"][index % 2]
            answer = api.select_k(prompt, spelling=spelling, **fields)
            reference = api.select_k(prompt, spelling=spelling, plan="serial", **fields)
            assert (answer.text, answer.token_ids) == (reference.text, reference.token_ids)
            assert (answer.labels, answer.indices) == (reference.labels, reference.indices)


def test_unbounded_fields_are_refused_by_name(tiny: SGLangServer) -> None:
    with client(tiny) as api, pytest.raises(GrammarError, match="'title'"):
        api.select_model("x", Open)
    body = {"prompt": "x", "json_schema": Open.model_json_schema()}
    response = httpx.post(tiny.url + "/v1/select_k", json=body, trust_env=False, timeout=60)
    assert response.status_code == 400
    assert "'title'" in response.json()["error"]["message"]


def test_frontend(tiny: SGLangServer) -> None:
    import sglang as sgl

    from sgl_compiled import select_k

    @sgl.function  # type: ignore[untyped-decorator]
    def triage(s, text):  # type: ignore[no-untyped-def]
        s += "Ticket: " + text + "\nFields: "
        s += select_k("ticket", model=Ticket)
        s += "\nKind: "
        s += select_k("kind", form=["<", ["a", "b"], ">"])

    state = triage.run(text="the page is blank", backend=sgl.RuntimeEndpoint(tiny.url))
    assert isinstance(state["ticket"], Ticket)
    assert state["kind"] in ("<a>", "<b>")
    assert state.get_meta_info("ticket")["text"] in state.text()
