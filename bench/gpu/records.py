"""Result records: one JSON object a line, correctness beside speed, the environment in each."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

import bench.common

Status = Literal["passed", "wrong", "timeout", "error"]


class Latency(BaseModel):
    """Latencies of single requests, in milliseconds."""

    requests: int
    mean_ms: float
    p50_ms: float
    p90_ms: float

    @classmethod
    def of(cls, values_ms: Sequence[float]) -> Latency:
        ordered = sorted(values_ms)
        return cls(
            requests=len(ordered),
            mean_ms=round(statistics.fmean(ordered), 3),
            p50_ms=round(statistics.median(ordered), 3),
            p90_ms=round(ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))], 3),
        )


class Record(BaseModel):
    """One measurement; without ``status == "passed"`` there is no latency."""

    stage: str
    arm: str
    status: Status
    workload: dict[str, Any] = {}
    correctness: dict[str, Any] = {}
    latency: Latency | None = None
    requests_per_s: float | None = None
    detail: str | None = None
    environment: dict[str, Any] = {}


class Results:
    """Writes records as they come, so that a run cut short keeps what it had."""

    def __init__(self, path: Path, environment: dict[str, Any]) -> None:
        self.path = path
        self.records: list[Record] = []
        self._environment = environment
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, record: Record) -> None:
        record.environment = self._environment
        self.records.append(record)
        with self.path.open("a") as sink:
            sink.write(record.model_dump_json(exclude_none=True) + "\n")


def environment(model: str, **extra: Any) -> dict[str, Any]:
    """Return what all benchmarks note of a run, the GPU and its libraries, and ``extra``."""
    import torch

    gpu = None
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        gpu = {"name": properties.name, "memory_gb": round(properties.total_memory / 1e9, 1)}
    common = bench.common.environment(model).model_dump()
    common["versions"] |= {name: _version(name) for name in ("flashinfer-python", "triton", "xgrammar")}
    return {**common, "gpu": gpu, "cuda": torch.version.cuda, **extra}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
