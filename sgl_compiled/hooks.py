"""Put handlers on their targets through SGLang's hook registry, and make sure they are there."""

from __future__ import annotations

import sys
from collections.abc import Collection

from sgl_compiled.compat import TARGETS, load_handler, sglang_version

__all__ = ["install"]


def install(features: Collection[str]) -> int:
    """Install the hooks of ``features`` once; return how many targets are hooked.

    Exits the process if SGLang's registry could not apply one.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    targets = [target for target in TARGETS if target.feature in features and target.hook != "use"]
    for target in targets:
        if target.path not in HookRegistry._patched:
            HookRegistry.register(target.path, load_handler(target), HookType(target.hook))
    HookRegistry.apply_hooks()
    missing = [target.path for target in targets if target.path not in HookRegistry._patched]
    if missing:
        sys.exit(
            f"sgl_compiled: SGLang {sglang_version()} did not accept hooks on {', '.join(missing)}; the log above says "
            "why. Start without the plugin: SGLANG_PLUGINS=__none__"
        )
    return len(targets)
