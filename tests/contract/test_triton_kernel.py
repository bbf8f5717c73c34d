"""SGLang's own Triton extend kernel under our mask, in Triton's interpreter, against dense attention."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.contract.batches import CASES, MASKED, PLAIN

ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def records() -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.contract.triton_interpreted"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {record["case"]: record for record in lines}


def test_every_batch_equals_dense_attention(records: dict[str, dict[str, Any]]) -> None:
    assert records.keys() == {case.name for case in CASES}
    assert {name: record["error"] for name, record in records.items() if record["error"] > TOLERANCE} == {}


def test_the_unmasked_kernel_deviates_wherever_a_tree_branches(records: dict[str, dict[str, Any]]) -> None:
    for case in MASKED:
        branches = any(len(set(part.parents or ())) < len(part.parents or ()) for part in case.parts)
        assert (records[case.name]["control"] > 100 * TOLERANCE) == branches


def test_batches_without_a_tree_are_untouched(records: dict[str, dict[str, Any]]) -> None:
    for case in PLAIN:
        assert records[case.name]["control"] == records[case.name]["error"]
