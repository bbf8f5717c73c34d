"""The programs, run as a user runs them, and the evaluation, killed in the middle; on a random-weight model."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.rag.records import Question, read
from sgl_compiled.server import SGLangServer

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]


def command(script: str, server: SGLangServer, *args: str) -> list[str]:
    return [sys.executable, str(ROOT / script), "--url", server.url, *args]


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def run(script: str, server: SGLangServer, *args: str) -> str:
    done = subprocess.run(
        command(script, server, *args), env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("script", "args", "last"),
    [
        ("pick_paragraphs.py", ("--questions", "2"), "2 of 2 the same as serial decoding"),
        ("route_tools.py", ("--tools", "10", "--requests", "2"), "2 of 2 the same as serial decoding"),
        ("route_tools.py", ("--tools", "47", "--requests", "1"), "1 of 1 the same as serial decoding"),
        ("route_tools.py", ("--tools", "199", "--requests", "1"), "1 of 1 the same as serial decoding"),
        ("route_tools.py", ("--tools", "bfcl", "--requests", "2"), "2 of 2 the same as serial decoding"),
        ("draft_sections.py", ("--words", "20"), "Kept: Draft "),
        ("fill_form.py", ("--papers", "2"), "2 of 2 the same as serial decoding"),
        ("hierarchical_rag.py", ("--questions", "1"), "rounds, "),
    ],
)
def test_program(tiny: SGLangServer, script: str, args: tuple[str, ...], last: str) -> None:
    assert last in run(f"programs/{script}", tiny, *args)


def test_evaluation_survives_a_kill(tiny: SGLangServer, tmp_path: Path) -> None:
    out = tmp_path / "rag.jsonl"
    args = ("--questions", "2", "--datasets", "bfcl,metatool-10", "--out", str(out))
    process = subprocess.Popen(
        command("bench/rag_eval.py", tiny, *args),
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 240
    while len(read(out)) < 8:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()
    before = [record.key for _, record in read(out) if isinstance(record, Question)]
    text = run("bench/rag_eval.py", tiny, *args)
    assert "48 answers" in text
    records = [record for _, record in read(out) if isinstance(record, Question)]
    keys = [record.key for record in records]
    assert keys[: len(before)] == before
    assert len(keys) == len(set(keys)) == 4 * 12
    answers = {record.key: record for record in records}
    for record in records:
        if record.arm in ("compiled", "paper", "chunked"):
            reference = answers[(*record.key[:3], "serial")]
            assert [one.token_ids for one in record.rounds] == [one.token_ids for one in reference.rounds]
            assert record.status == "ok"
        if record.arm == "embedding-mmr" and record.status == "skipped":
            assert "pip install" in (record.detail or "")
    assert {record.arm for record in records if record.status == "skipped"} <= {"embedding-mmr"}
