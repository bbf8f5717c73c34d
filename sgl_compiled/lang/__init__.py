"""``select_k`` in SGLang's frontend language."""

from __future__ import annotations

from sgl_compiled.lang.expr import SglSelectK, select_k

__all__ = ["SglSelectK", "select_k"]
