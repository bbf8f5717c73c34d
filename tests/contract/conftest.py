"""Import SGLang once, without its warnings about kernels that a CPU lacks."""

from __future__ import annotations

import importlib
import warnings

from sgl_compiled.compat import TARGETS

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for module in sorted({target.path.rsplit(".", 2)[0] for target in TARGETS}):
        try:
            importlib.import_module(module)
        except ImportError:
            # A path of module and function has one part less; its module comes with the others.
            continue
