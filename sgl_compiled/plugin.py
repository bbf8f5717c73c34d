"""Entry point of the ``sglang.srt.plugins`` group; importing it imports nothing heavy."""

from __future__ import annotations

import multiprocessing
import os
import sys

__all__ = ["register"]


def register() -> None:
    """Check every target, hook them, and stop the server where one does not fit.

    SGLang logs and skips a hook it cannot apply; a server that silently ran without ours would accept probes and
    answer nonsense. So targets are checked first and verified after, and a mismatch is a ``SystemExit``.
    """
    from sgl_compiled import __version__
    from sgl_compiled.compat import SGLANG_VERSION, TARGETS, check_targets, sglang_version
    from sgl_compiled.hooks import install

    mismatches = check_targets(TARGETS)
    if mismatches:
        rows = "\n  ".join(map(str, mismatches))
        sys.exit(
            f"sgl_compiled {__version__}: SGLang {sglang_version()} does not match what this plugin was written for "
            f"(SGLang {SGLANG_VERSION}):\n  {rows}\n"
            f"Install sglang=={SGLANG_VERSION}, or start without the plugin: SGLANG_PLUGINS=__none__"
        )
    hooked = install(("select_k", "branches"))
    role = "main" if multiprocessing.parent_process() is None else multiprocessing.current_process().name
    # SGLang configures logging after it loads plugins, so a log record would be lost.
    print(
        f"sgl_compiled {__version__} is on: pid={os.getpid()} role={role} sglang={sglang_version()} hooks={hooked}",
        file=sys.stderr,
        flush=True,
    )
