"""Tags on the requests of a program that forks, so that the server's branch policy sees them as one group."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sglang.lang.ir import SglSamplingParams

from sgl_compiled.branches.tags import TAG
from sgl_compiled.hooks import install

__all__ = ["fork", "resolve_sampling_params", "tag_forks"]

_MARK = "sgl_compiled_branch"  # attribute of a StreamExecutor
_slo: Any = None


def tag_forks(slo: str | Mapping[str, float] | None = None) -> None:
    """Tag what programs of this process ask for from their first ``fork`` on; stays on until the process ends.

    A program's first fork opens a group with an id of its own, once for every run. The branches, the forks inside them
    and what the program generates after the join belong to it. What it asked for before is not tagged: the program is
    not known to fork then.

    Parameters
    ----------
    slo : str or mapping, optional
        A class that the server's configuration names, or ``{"ttft_s": …, "tpot_s": …, "e2e_s": …}`` in seconds; the
        server's default without it. Also for calls after the first, of which the last one counts.

    Examples
    --------
    >>> tag_forks(slo={"e2e_s": 20.0})
    >>> @sgl.function
    ... def essay(s, topic):
    ...     s += "Write about " + topic
    ...     branches = s.fork(3)
    ...     branches += sgl.gen("part", max_tokens=200)
    """
    global _slo
    _slo = dict(slo) if isinstance(slo, Mapping) else slo
    # The interpreter runs in the client's process, where SGLang loads no plugins.
    install(("forks",))


class _Group:
    """The group of one run: its id and how many branches it has numbered."""

    def __init__(self) -> None:
        self.id = uuid.uuid4().hex
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def branch(self) -> dict[str, Any]:
        """Tag of one more member."""
        with self._lock:
            number = next(self._numbers)
        return {"id": self.id, "branch": number} | ({} if _slo is None else {"slo": _slo})


def fork(original: Callable[..., list[Any]], self: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """Give the forks a place in their program's group: ``StreamExecutor.fork``."""
    branches = original(self, *args, **kwargs)
    mine = getattr(self, _MARK, None)
    if mine is None:
        group = _Group()
        setattr(self, _MARK, (group, group.branch()))
    else:
        group = mine[0]
    for branch in branches:
        setattr(branch, _MARK, (group, group.branch()))
    return branches


@dataclass
class TaggedSamplingParams(SglSamplingParams):  # type: ignore[misc]
    """Sampling parameters that carry the tag of a branch to the server."""

    tag: dict[str, Any] = field(default_factory=dict)

    def to_srt_kwargs(self) -> dict[str, Any]:
        """Return the fields of ``/generate``'s ``sampling_params``."""
        kwargs: dict[str, Any] = super().to_srt_kwargs()
        return kwargs | {"custom_params": {TAG: self.tag}}


def resolve_sampling_params(original: Callable[..., Any], self: Any, sampling_params: Any) -> Any:
    """Tag what a member of a group asks for: ``StreamExecutor._resolve_sampling_params``."""
    params = original(self, sampling_params)
    mark = getattr(self, _MARK, None)
    return params if mark is None else TaggedSamplingParams(**vars(params), tag=mark[1])
