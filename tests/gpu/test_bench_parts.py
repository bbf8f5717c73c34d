"""The parts of the GPU benchmark that need neither a GPU nor a server."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.common import json_list_regex
from bench.gpu import run
from bench.gpu.exactness import Tree, deviation, random_layout, rows_of
from bench.gpu.limits import StageTimeoutError, time_limit
from bench.gpu.records import Latency, Record, Results
from bench.gpu.speed import plans_for, records
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
    pattern = json_list_regex(["1", "A.b"], 2)
    assert re.fullmatch(pattern, '["1", "A.b"]') and not re.fullmatch(pattern, '["1", "Axb"]')
    assert plans_for(4) == ["auto", "root+probe", "[2,2]", "chunked", "serial"]


def test_wrong_answers_have_no_latency(tmp_path: Path) -> None:
    results = Results(tmp_path / "run.jsonl", {"machine": "here"})
    measured = {"good": [(10.0, True), (30.0, True)], "bad": [(1.0, True), (1.0, False)]}
    for record in records("select", {"clients": 2}, measured):
        results.add(record)
    good, bad = (json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines())
    assert good["status"] == "passed" and good["latency"]["mean_ms"] == 20.0 and good["requests_per_s"] == 66.667
    assert bad["status"] == "wrong" and "latency" not in bad and bad["correctness"] == {"answers": 2, "legal": 1}
    assert good["environment"] == bad["environment"] == {"machine": "here"}


def test_latencies() -> None:
    latency = Latency.of([3.0, 1.0, 2.0])
    assert (latency.requests, latency.p50_ms, latency.p90_ms) == (3, 2.0, 3.0)
    assert Record(stage="s", arm="a", status="error").latency is None


class FakeServer:
    """Stands for a server whose start and death a test decides."""

    started: list[list[str]] = []
    fail = False

    def __init__(self, model: Path, args: list[str], **_: Any) -> None:
        self.command = ["python", "-m", "server", str(model), *args]
        self.url = "http://127.0.0.1:9"
        self.running = False

    def __enter__(self) -> FakeServer:
        if FakeServer.fail:
            raise RuntimeError("no memory")
        FakeServer.started.append(self.command)
        self.running = True
        return self

    def alive(self) -> bool:
        return self.running

    def stop(self) -> None:
        self.running = False

    def log_text(self) -> str:
        return "last words"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> run.Bench:
    monkeypatch.setattr(run, "SGLangServer", FakeServer)
    monkeypatch.setattr(FakeServer, "started", [])
    (tmp_path / "exact").mkdir()
    (tmp_path / "exact" / "config.json").write_text("{}")
    return run.Bench(Results(tmp_path / "run.jsonl", {}), tmp_path, dry=True, limit_s=0.5, start_s=5)


async def nothing(_: Any) -> None: ...


async def forever(_: Any) -> None:
    await asyncio.sleep(60)


async def broken(_: Any) -> None:
    raise ValueError("odd answer")


def test_servers_are_kept_while_their_settings_stay(bench: run.Bench) -> None:
    bench.serve("one", "exact", {"a": nothing})
    bench.serve("two", "speed", {"a": nothing})
    assert len(FakeServer.started) == 1
    bench.serve("three", "speed", {"a": nothing}, grammar="llguidance")
    bench.serve("four", "speed", {"a": nothing}, plugin=False)
    assert len(FakeServer.started) == 3
    bench.close()
    assert bench.results.records == []


def test_a_failure_costs_its_own_piece(bench: run.Bench) -> None:
    done: list[str] = []

    async def last(_: Any) -> None:
        done.append("last")

    bench.serve("stage", "exact", {"slow": forever, "odd": broken, "last": last})
    slow, odd = bench.results.records
    assert (slow.arm, slow.status) == ("slow", "timeout") and (odd.arm, odd.status) == ("odd", "error")
    assert "odd answer" in str(odd.detail) and done == ["last"]


def test_a_server_that_does_not_start_or_dies_is_recorded(bench: run.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def kill(_: Any) -> None:
        assert bench._server is not None
        bench._server.stop()

    bench.serve("stage", "exact", {"kill": kill, "after": nothing})
    (after,) = bench.results.records
    assert after.arm == "after" and after.status == "error" and "last words" in str(after.detail)
    monkeypatch.setattr(FakeServer, "fail", True)
    bench.serve("next", "exact", {"a": nothing})
    assert bench.results.records[-1].stage == "next" and "no memory" in str(bench.results.records[-1].detail)
