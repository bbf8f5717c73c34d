"""The parts of the GPU benchmark that need neither a GPU nor a server."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import numpy as np
import pytest

from bench.gpu.exactness import Tree, deviation, random_layout, rows_of
from bench.gpu.limits import StageTimeoutError, time_limit
from bench.gpu.records import Latency, Record, Results
from bench.gpu.speed import plans_for, records, stock_regex
from sgl_compiled.runtime.payload import decode, encode


def test_a_stage_ends_at_its_limit() -> None:
    start = time.perf_counter()
    with pytest.raises(StageTimeoutError), time_limit(0.1):
        time.sleep(5)
    assert time.perf_counter() - start < 1
    with time_limit(0.1):
        pass
    time.sleep(0.15)


@pytest.mark.parametrize("positions", [1, 16, 60, 300])
def test_random_trees_are_well_formed(positions: int) -> None:
    layout = random_layout(1000, positions)
    layout.check_integrity()
    assert len(layout) == positions and len(layout.rows) == positions + 1
    probe = decode(encode(layout, 5), 5 + positions, 1000)
    assert probe is not None and list(layout.depths) == probe.depths()


def test_rows_are_split_and_compared() -> None:
    layout = random_layout(1000, 2, legal=2)
    rows = rows_of(Tree([1], layout), [1.0, 2.0, 3.0, 10, 11, 20, 21, 30, 31])
    assert [row.tolist() for row in rows] == [[9, 10], [18, 19], [27, 28]]
    assert deviation(rows, [row + np.array([0.5, 0]) for row in rows]) == [0.5, 0.5, 0.5]
    assert Tree([1], random_layout(1000, 25)).path(20) == _path(25, 20)


def _path(positions: int, node: int) -> list[int]:
    layout = random_layout(1000, positions)
    assert layout.parents[node] == 0
    return [layout.tokens[0], layout.tokens[node]]


def test_the_stock_regex_is_the_answers_form() -> None:
    pattern = stock_regex(["1", "A.b"], 2)
    assert re.fullmatch(pattern, '["1", "A.b"]') and not re.fullmatch(pattern, '["1", "Axb"]')
    assert plans_for(4) == ["auto", "root+probe", "[2,2]", "chunked", "serial"]


def test_wrong_answers_have_no_latency(tmp_path: Path) -> None:
    results = Results(tmp_path / "run.jsonl", {"machine": "here"})
    measured = {"good": [(10.0, True), (30.0, True)], "bad": [(1.0, True), (1.0, False)]}
    for record in records("select", {"clients": 2}, measured):
        results.add(record)
    good, bad = (json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines())
    assert good["status"] == "passed" and good["latency"]["mean_ms"] == 20.0 and good["requests_per_s"] == 100.0
    assert bad["status"] == "wrong" and "latency" not in bad and bad["correctness"] == {"answers": 2, "legal": 1}
    assert good["environment"] == bad["environment"] == {"machine": "here"}


def test_latencies() -> None:
    latency = Latency.of([3.0, 1.0, 2.0])
    assert (latency.requests, latency.p50_ms, latency.p90_ms) == (3, 2.0, 3.0)
    assert Record(stage="s", arm="a", status="error").latency is None
