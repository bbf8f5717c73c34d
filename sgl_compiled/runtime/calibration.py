"""What was measured on a server (cost of passes, deviations), kept by model, device, dtype, backend and version."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sgl_compiled.compat import sglang_version
from sgl_compiled.control.calibration import load, save
from sgl_compiled.control.parity import Epsilon, Setting
from sgl_compiled.errors import ModelError
from sgl_compiled.model import cache_folder
from sgl_compiled.plan.cost import CostModel, Sample, fit

__all__ = [
    "cost_path",
    "load_cost",
    "load_epsilon",
    "measure_cost",
    "parity_setting",
    "save_cost",
    "save_epsilon",
    "setting",
]

SHAPES = ((1, 1), (8, 1), (8, 8), (32, 1), (32, 24), (96, 1), (96, 64))
"""Tree positions and decision rows of the passes that are timed."""

PREFIXES = (64, 1_024)
REPEATS = 3

Send = Callable[[int, int, int], Awaitable[Sample]]
"""Run one pass of so many tree positions and rows behind so many cached tokens."""


def setting(args: Any) -> dict[str, str]:
    """Return what a calibration depends on, from SGLang's server arguments."""
    return {
        "model": str(args.model_path),
        "device": str(args.device),
        "dtype": str(args.dtype),
        "backend": str(args.prefill_attention_backend or args.attention_backend),
        "tp_size": str(args.tp_size),
        "sglang": str(sglang_version()),
    }


def cost_path(key: dict[str, str]) -> Path:
    """Return the file in which the calibration of a setting is kept."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return cache_folder() / "calibration" / f"cost-{digest}.json"


def load_cost(key: dict[str, str]) -> CostModel | None:
    """Return the cost model measured for a setting, or ``None``; a damaged file counts as none."""
    try:
        data = json.loads(cost_path(key).read_text())
        return CostModel(**data["cost"]) if data["setting"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save_cost(key: dict[str, str], model: CostModel) -> Path:
    """Write a cost model, whole or not at all."""
    path = cost_path(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps({"setting": key, "cost": asdict(model)}, indent=1))
    draft.replace(path)
    return path


def parity_setting(key: dict[str, str]) -> Setting:
    """Return what deviations from serial decoding depend on."""
    return Setting(key["model"], key["dtype"], key["device"], key["backend"], f"{key['sglang']} tp{key['tp_size']}")


def load_epsilon(key: dict[str, str]) -> Epsilon | None:
    """Return the deviations measured for a setting, or ``None``; a damaged file counts as none."""
    try:
        return load(_epsilon_path()).get(parity_setting(key))
    except (OSError, ModelError):
        return None


def save_epsilon(epsilon: Epsilon) -> None:
    """Keep deviations for the next start of a server with the same setting."""
    save(_epsilon_path(), [epsilon])


def _epsilon_path() -> Path:
    return cache_folder() / "calibration" / "parity.json"


async def measure_cost(send: Send, *, longest_prefix: int, widest: int) -> tuple[CostModel, list[Sample]]:
    """Time passes of several sizes and fit the cost model to the fastest of each, which other work disturbed least.

    Parameters
    ----------
    send : callable
    longest_prefix : int
        Prompt tokens that the server can hold beside a tree.
    widest : int
        Tree positions that fit into one pass.
    """
    samples: list[Sample] = []
    for prefix in sorted({min(prefix, longest_prefix) for prefix in PREFIXES}):
        # The first pass behind a prompt computes the prompt; it is sent for that alone.
        await send(1, 1, prefix)
        for positions, rows in SHAPES:
            if positions <= widest:
                tries = [await send(positions, rows, prefix) for _ in range(REPEATS)]
                samples.append(min(tries, key=lambda sample: sample.ms))
    return fit(samples), samples
