"""Service-level objectives, their named classes, and the settings of the branch scheduler from one TOML file.

::

    [branches]
    policy = "taper"
    trace = "steps.csv"

    [branches.slo.default]
    tpot_s = 0.05

    [branches.slo.report]
    e2e_s = 30.0

The file is named by the environment variable ``SGLCOMPILED_CONFIG``; without it the defaults below hold.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import RequestError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["CONFIG_ENV", "BranchSettings", "Slo", "load_settings", "parse_slo"]

CONFIG_ENV = "SGLCOMPILED_CONFIG"


@dataclass(frozen=True, slots=True)
class Slo:
    """Targets of one request, in seconds; inf where there is none.

    Attributes
    ----------
    ttft_s : float
        From arrival to the first token. Counts in what is reported; branches cannot change it.
    tpot_s : float
        A token, on average over the answer.
    e2e_s : float
        From the arrival of the first request of a group to the end of the last.
    """

    ttft_s: float = float("inf")
    tpot_s: float = float("inf")
    e2e_s: float = float("inf")

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise RequestError(f"SLO target {item.name} is {value!r}: use a positive number of seconds")


def _default_classes() -> dict[str, Slo]:
    return {"default": Slo(ttft_s=2.0, tpot_s=0.05)}


@dataclass(frozen=True, slots=True)
class BranchSettings:
    """Server-wide settings.

    Attributes
    ----------
    policy : str
        ``taper``, ``eager``, ``off`` or ``cap:N``.
    slo : dict
        Classes by name; ``default`` is for requests that name none.
    trace : str or None
        CSV file for one line a grouped decode step.
    """

    policy: str = "taper"
    slo: Mapping[str, Slo] = field(default_factory=_default_classes)
    trace: str | None = None


def parse_slo(value: object, classes: Mapping[str, Slo]) -> Slo:
    """SLO from a class name, a table of targets, or None for the default class."""
    if value is None:
        return classes["default"]
    if isinstance(value, str):
        if value not in classes:
            raise RequestError(f"unknown SLO class {value!r}: this server has {', '.join(sorted(classes))}")
        return classes[value]
    known = {item.name for item in fields(Slo)}
    if not isinstance(value, Mapping) or not set(value) <= known:
        raise RequestError(f"slo is {value!r}: name a class, or give some of {', '.join(sorted(known))} in seconds")
    return Slo(**value)


def load_settings(path: str | None = None) -> BranchSettings:
    """Read settings from the section ``[branches]`` of `path`, or of the file named by the environment.

    Raises
    ------
    RequestError
        If the file cannot be read or holds an unknown key or a bad value.
    """
    path = path or os.environ.get(CONFIG_ENV)
    if not path:
        return BranchSettings()
    try:
        section: dict[str, Any] = tomllib.loads(Path(path).read_text()).get("branches", {})
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise RequestError(f"{CONFIG_ENV}={path} cannot be read as TOML: {error}") from error
    known = {item.name for item in fields(BranchSettings)}
    if not set(section) <= known:
        raise RequestError(f"{path}: [branches] has {sorted(set(section) - known)}; known are {sorted(known)}")
    tables = section.pop("slo", {})
    classes = _default_classes()
    for name, table in tables.items():
        classes[name] = parse_slo(table, classes)
    return BranchSettings(slo=classes, **section)
