"""``select_k`` and tagged forks in SGLang's frontend language."""

from __future__ import annotations

from sgl_compiled.lang.expr import SglSelectK, select_k
from sgl_compiled.lang.forks import tag_forks

__all__ = ["SglSelectK", "select_k", "tag_forks"]
