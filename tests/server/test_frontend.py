"""``select_k`` inside SGLang programs."""

from __future__ import annotations

from typing import Any

import pytest
import sglang as sgl

from sgl_compiled import select_k
from sgl_compiled.server import SGLangServer
from tests.server.conftest import client

pytestmark = pytest.mark.server

LABELS = ["Intro", "Method", "Data", "Results"]


@sgl.function
def pick(s: Any, question: str, k: int) -> None:
    s += "Question: " + question + "\nSections: "
    s += select_k("picked", LABELS, k)
    s += "\nNext: "
    s += select_k("size", regex="(small|large)")


@sgl.function
def forked(s: Any, question: str) -> None:
    s += "Question: " + question + "\n"
    branches = s.fork(3)
    for number, branch in enumerate(branches):
        branch += f"Reader {number} opens "
        branch += select_k("picked", LABELS, 2)
    s += "Readers: " + "; ".join(", ".join(branch["picked"]) for branch in branches)


def test_program(tiny: SGLangServer) -> None:
    sgl.set_default_backend(sgl.RuntimeEndpoint(tiny.url))
    state = pick.run(question="which data?", k=2)
    meta = state.get_meta_info("picked")
    assert state["picked"] == meta["labels"]
    assert len(state["picked"]) == 2
    assert state["size"] in ("small", "large")
    assert state.text().endswith("\nNext: " + state["size"])
    assert meta["usage"]["decoded_tokens"] == 0
    with client(tiny) as api:
        assert api.select_k("Question: which data?\nSections: ", LABELS, 2).labels == state["picked"]


def test_fork_and_batch_and_stream(tiny: SGLangServer) -> None:
    backend = sgl.RuntimeEndpoint(tiny.url)
    state = forked.run(question="which data?", backend=backend)
    assert state.text().count(", ") == 3
    questions = [{"question": f"number {i}", "k": 2} for i in range(4)]
    states = pick.run_batch(questions, backend=backend, num_threads=4)
    alone = [pick.run(**arguments, backend=backend) for arguments in questions]
    assert [s["picked"] for s in states] == [s["picked"] for s in alone]
    streamed = pick.run(question="number 1", k=2, backend=backend, stream=True)
    text = "".join(streamed.text_iter())
    assert text == alone[1].text()
    assert streamed["picked"] == alone[1]["picked"]


def test_choice_after_a_thought(tiny: SGLangServer) -> None:
    """Free text up to the end of a thought, then the choice, evaluated behind it and never inside it."""

    @sgl.function
    def think(s: Any, question: str) -> None:
        s += question + "<think>" + sgl.gen("thought", max_tokens=12, stop="</think>") + "</think>"
        s += select_k("answer", ["3", "4"], template="raw")

    state = think.run(question="Q: 2+2?", backend=sgl.RuntimeEndpoint(tiny.url), temperature=0)
    before, answer = state.text().split("</think>")
    assert [answer] == state["answer"]
    with client(tiny) as api:
        assert api.select_k(before + "</think>", ["3", "4"], template="raw").labels == state["answer"]
