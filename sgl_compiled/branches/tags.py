"""The tag by which a request says that it is a branch: ``custom_params["sgl_compiled_group"]``.

::

    {"id": "essay-7", "branch": 2, "parent": "rid-of-the-parent", "slo": {"e2e_s": 20.0},
     "expected_tokens": 300, "after_tokens": 120}

Only ``id`` is required. All requests with one ``id`` are one group: the head of a program, the branches of a fork
(nested forks too, they share the budget of the outermost) and the answer after the join. ``expected_tokens`` is what
the client expects of this branch (else ``max_new_tokens`` counts), ``after_tokens`` what it expects after the join. The
group ends its members when its ``parent`` is aborted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import RequestError
from .slo import Slo, parse_slo

__all__ = ["POLICY_KEY", "TAG", "BranchTag", "belongs_to", "parse_tag", "tag_of"]

TAG = "sgl_compiled_group"
POLICY_KEY = "sgl_compiled_branch_policy"  # in the server_args of a set_internal_state request
_MAX_ID = 256


@dataclass(frozen=True, slots=True)
class BranchTag:
    """A parsed tag; see the module for its fields."""

    group: str
    slo: Slo
    branch: int = 0
    parent: str | None = None
    expected_tokens: int | None = None
    after_tokens: int = 0


def tag_of(custom_params: object) -> object | None:
    """Raw tag inside a request's custom parameters, or None."""
    return custom_params.get(TAG) if isinstance(custom_params, Mapping) else None


def belongs_to(raw: object | None, rid: str) -> bool:
    """Tell whether a raw tag's group has the id `rid` or hangs on a parent with that request id."""
    return isinstance(raw, Mapping) and rid in (raw.get("id"), raw.get("parent"))


def parse_tag(raw: object, classes: Mapping[str, Slo]) -> BranchTag:
    """Check a raw tag.

    Raises
    ------
    RequestError
        With the field and its allowed values.
    """
    if not isinstance(raw, Mapping):
        raise RequestError(f"{TAG} is {raw!r}: give an object with at least an id")
    unknown = set(raw) - {"id", "branch", "parent", "slo", "expected_tokens", "after_tokens"}
    if unknown:
        raise RequestError(f"{TAG} has unknown fields {sorted(map(str, unknown))}")
    group, parent = raw.get("id"), raw.get("parent")
    if not isinstance(group, str) or not 0 < len(group) <= _MAX_ID:
        raise RequestError(f"{TAG}.id is {group!r}: use a string of 1 to {_MAX_ID} characters")
    if parent is not None and (not isinstance(parent, str) or not parent):
        raise RequestError(f"{TAG}.parent is {parent!r}: use the id of the parent request, or leave it out")
    return BranchTag(
        group,
        parse_slo(raw.get("slo"), classes),
        _count(raw, "branch") or 0,
        parent,
        _count(raw, "expected_tokens"),
        _count(raw, "after_tokens") or 0,
    )


def _count(raw: Mapping[str, object], name: str) -> int | None:
    value = raw.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise RequestError(f"{TAG}.{name} is {value!r}: use a whole number from 0")
    return value
