"""Calibrations on disk: one JSON file, one record a setting."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from sgl_compiled.control.parity import Epsilon, Setting
from sgl_compiled.errors import ModelError

__all__ = ["load", "save"]


def save(path: Path, records: Iterable[Epsilon]) -> None:
    """Write calibrations, one a setting; those that the file holds for other settings stay."""
    merged = {str(key): record for key, record in (load(path) if path.exists() else {}).items()}
    merged |= {str(record.setting): record for record in records}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([record.to_dict() for record in merged.values()], indent=1) + "\n")


def load(path: Path) -> dict[Setting, Epsilon]:
    """Read calibrations by setting.

    Raises
    ------
    ModelError
        The file is not one that :func:`save` wrote.
    """
    try:
        records = [Epsilon.from_dict(data) for data in json.loads(path.read_text())]
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path} is not a calibration file ({error}); run 'sgl-compiled calibrate' again") from error
    return {record.setting: record for record in records}
