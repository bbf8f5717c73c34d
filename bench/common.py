"""Records that all benchmarks share: what ran where, and one JSON object a line."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import BaseModel, Field

__all__ = ["RESULTS", "Environment", "append", "environment"]

RESULTS = Path(__file__).parent / "results"


class Environment(BaseModel):
    """Where a record was made; a timing without it says nothing."""

    timestamp: str
    commit: str
    machine: str
    cpu: str
    cpu_count: int
    load_average: float = Field(description="One-minute load average when the record was begun.")
    python: str
    versions: dict[str, str]
    model: str
    command: str


def environment(model: str) -> Environment:
    """Describe this run; ``model`` is named without its folder."""
    return Environment(
        timestamp=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        commit=_commit(),
        machine=platform.machine(),
        cpu=_cpu(),
        cpu_count=os.cpu_count() or 0,
        load_average=round(os.getloadavg()[0], 2),
        python=platform.python_version(),
        versions={name: _version(name) for name in ("sglang", "torch", "outlines", "llguidance", "sgl_compiled")},
        model=Path(model).name,
        command=" ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    )


def append(path: Path, record: BaseModel) -> None:
    """Append one record as a line of JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as sink:
        sink.write(record.model_dump_json() + "\n")


def _commit() -> str:
    try:
        done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
