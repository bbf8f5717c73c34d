"""A second plugin of the test server: pieces of select_k raise for requests that ask for it by their first label."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

FAULTS = {
    "fault compile RuntimeError": RuntimeError,
    "fault compile MemoryError": MemoryError,
    "fault tree KeyError": KeyError,
    "fault rows ValueError": ValueError,
}


def install_faults(folder: Path) -> dict[str, str]:
    """Write the plugin's metadata into ``folder``; return the environment of a server that loads it."""
    import os

    metadata = folder / "faults-0.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: faults\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[sglang.srt.plugins]\nfaults = tests.server.faults:register\n")
    root = Path(__file__).parents[2]
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(root), os.environ.get("PYTHONPATH", "")])}


def register() -> None:
    """Put the faults into the process: the entry point."""
    from sgl_compiled.grammar.compile import GrammarCompiler
    from sgl_compiled.runtime.engine import SelectEngine

    _break(GrammarCompiler, "compile", "fault compile", lambda _, grammar, *__: grammar)
    _break(SelectEngine, "_layout", "fault tree", lambda _, selection: selection.compiled.grammar)
    _break(SelectEngine, "evaluate", "fault rows", lambda _, selection, *__: selection.compiled.grammar, late=True)


def _break(owner: type, name: str, marker: str, grammar_of: Callable[..., Any], *, late: bool = False) -> None:
    original = getattr(owner, name)

    def fault(args: tuple[Any, ...]) -> Exception | None:
        first = (grammar_of(*args).labels or ("",))[0]
        return FAULTS[first]("injected") if first.startswith(marker) else None

    def early(*args: Any) -> Any:
        error = fault(args)
        if error is not None:
            raise error
        return original(*args)

    async def after(*args: Any) -> Any:
        out = await original(*args)
        error = fault(args)
        if error is not None:
            raise error
        return out

    setattr(owner, name, after if late else early)
