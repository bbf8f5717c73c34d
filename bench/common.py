"""What all benchmarks share: records of what ran where, one JSON object a line, and requests around the timed ones."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import httpx
from pydantic import BaseModel, Field

__all__ = ["RESULTS", "Environment", "append", "environment", "flush", "json_list_regex", "prefill", "ready_regex"]

RESULTS = Path(__file__).parent / "results"


class Environment(BaseModel):
    """Where a record was made; a timing without it says nothing."""

    timestamp: str
    commit: str = Field(description="Checked out when the benchmark was started; with '+' if files had changed.")
    machine: str
    cpu: str
    cpu_count: int
    omp_threads: int | None = Field(default=None, description="OMP_NUM_THREADS, if it limits the server's threads.")
    load_average: float = Field(description="One-minute load average when the record was begun.")
    python: str
    versions: dict[str, str]
    model: str
    command: str


def environment(model: str) -> Environment:
    """Describe this run; ``model`` is named without its folder."""
    return Environment(
        timestamp=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        commit=_COMMIT,
        machine=platform.machine(),
        cpu=_cpu(),
        cpu_count=os.cpu_count() or 0,
        omp_threads=int(os.environ.get("OMP_NUM_THREADS", 0)) or None,
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


def flush(url: str) -> None:
    """Empty the radix cache, which also forgets the grammars that SGLang's own backend compiled.

    Raises
    ------
    httpx.HTTPStatusError
        Requests are still running after a minute.
    """
    httpx.post(url + "/flush_cache", params={"timeout": 60}, timeout=90, trust_env=False).raise_for_status()


def prefill(url: str, prompt: str | list[int]) -> None:
    """Bring a prompt into the radix cache."""
    body: dict[str, Any] = {"sampling_params": {"max_new_tokens": 1, "temperature": 0}}
    body["text" if isinstance(prompt, str) else "input_ids"] = prompt
    httpx.post(url + "/generate", json=body, timeout=600, trust_env=False).raise_for_status()


def ready_regex(url: str, regex: str) -> None:
    """Let SGLang's own grammar backend compile a regex, behind a prompt that nothing else uses."""
    body = {"text": "-", "sampling_params": {"regex": regex, "max_new_tokens": 1, "temperature": 0}}
    httpx.post(url + "/generate", json=body, timeout=600, trust_env=False).raise_for_status()


def json_list_regex(labels: Sequence[str], picks: int) -> str:
    """Return what a client of an unmodified server writes for a JSON list of labels; it cannot say that they differ."""
    one = "(?:" + "|".join(re.escape(json.dumps(label, ensure_ascii=False)) for label in labels) + ")"
    return r"\[" + ", ".join([one] * picks) + r"\]"


def _commit() -> str:
    def git(*args: str) -> str:
        return subprocess.run(["git", *args], capture_output=True, text=True, check=True, cwd=RESULTS).stdout.strip()

    try:
        # Results that a benchmark appends are no change of what runs.
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)bench/results")
        return git("rev-parse", "--short", "HEAD") + "+" * bool(changed)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


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


_COMMIT = _commit()
