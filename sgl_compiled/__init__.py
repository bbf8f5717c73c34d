"""Exact constrained choices for SGLang in a few tree-masked extends, and fork-aware scheduling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sgl_compiled.errors import SglCompiledError

if TYPE_CHECKING:
    from sgl_compiled.client import AsyncClient, Client
    from sgl_compiled.lang import select_k, tag_forks

__all__ = ["AsyncClient", "Client", "SglCompiledError", "__version__", "select_k", "tag_forks"]

__version__ = "0.1.0"

_LAZY = {
    "AsyncClient": "sgl_compiled.client",
    "Client": "sgl_compiled.client",
    "select_k": "sgl_compiled.lang",
    "tag_forks": "sgl_compiled.lang",
}


def __getattr__(name: str) -> Any:
    # SGLang and httpx are imported when something needs them, not with the package.
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
