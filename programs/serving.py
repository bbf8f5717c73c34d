"""The server a program talks to: yours, or one of its own with the embedded model."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from sgl_compiled.model import embedded_model
from sgl_compiled.server import CPU_ARGS, SGLangServer

__all__ = ["console", "serving"]

console = Console()


@contextmanager
def serving(model: Path | None, url: str | None, *, tokens: int = 20_000) -> Iterator[str]:
    """Yield the address of a server: the one given, or one of our own.

    Parameters
    ----------
    model : path or None
        Checkpoint folder of a server of our own; the embedded 135M model by default.
    url : str or None
        A running server with the plugin.
    tokens : int
        Size of the KV cache of a server of our own, in tokens.
    """
    if url is not None:
        yield url
        return
    if model is None:
        console.print(
            "Model: SmolLM2-135M-Instruct from the installed package. It chooses about as well as chance; look at "
            "fidelity and cost here, and pass --model for quality."
        )
        with console.status("Converting the embedded model (first time only)"):
            model = embedded_model()
    # A program that is told to stop must not leave its server behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    server = SGLangServer(model, [*CPU_ARGS, "--grammar-backend", "outlines", "--max-total-tokens", str(tokens)])
    with console.status("Starting the server (about 30 s on two cores)"):
        server.__enter__()
    try:
        yield server.url
    finally:
        server.stop()
