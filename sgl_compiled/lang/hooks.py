"""Seam in the frontend's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_compiled.client import Client
from sgl_compiled.errors import ServerError
from sgl_compiled.lang.expr import SglSelectK

__all__ = ["execute"]


def execute(original: Callable[..., None], self: Any, other: Any) -> None:
    """Run our expression, hand every other one on: ``StreamExecutor._execute``."""
    if not isinstance(other, SglSelectK):
        return original(self, other)
    backend = self.backend
    if not hasattr(backend, "base_url"):
        raise ServerError(f"select_k needs a RuntimeEndpoint, not {type(backend).__name__}: it runs inside the server")
    if self.images_:
        raise ServerError("select_k does not take images; choose before they are added, or without them")
    with Client(backend.base_url, backend.api_key) as client:
        answer = client.select_k(self.text_, **other.body)
    name = other.name
    self.variables[name] = other.value(answer)
    self.meta_info[name] = answer.model_dump()
    self.text_ += answer.text
    self.variable_event[name].set()
    if self.stream_var_event:
        self.stream_var_event[name].set()
