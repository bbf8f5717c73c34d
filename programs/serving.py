"""The server a program talks to: yours, or one of its own with the embedded model."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from rich.console import Console

from sgl_compiled.model import embedded_model
from sgl_compiled.server import CPU_ARGS, SGLangServer

__all__ = ["console", "require_plugin", "serving"]

console = Console()


def require_plugin(url: str) -> None:
    """Exit with a sentence unless a server with the plugin answers at ``url``."""
    try:
        # The route takes POST only, so that any answer but "not found" says that it is there.
        status = httpx.get(url.rstrip("/") + "/v1/select_k", timeout=30, trust_env=False).status_code
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        console.print(f"No server answers at {url} ({error}); start one, or leave --url out for one of our own.")
        raise SystemExit(1) from None
    if status == httpx.codes.NOT_FOUND:
        console.print(
            f"The server at {url} runs without the plugin; install sgl_compiled beside its SGLang and start it again."
        )
        raise SystemExit(1)


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

    Raises
    ------
    SystemExit
        Nothing answers at ``url``, or a server without the plugin; a line on the screen says which.
    """
    if url is not None:
        require_plugin(url)
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
