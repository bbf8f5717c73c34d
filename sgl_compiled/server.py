"""Start a real SGLang server with the plugin on a free loopback port, and stop it again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx

from sgl_compiled.errors import ServerError

__all__ = ["CPU_ARGS", "SGLangServer", "free_port"]

CPU_ARGS: tuple[str, ...] = (
    "--device",
    "cpu",
    "--attention-backend",
    "torch_native",
    "--dtype",
    "float32",
    "--mem-fraction-static",
    "0.2",
    "--disable-cuda-graph",
)
"""Arguments of a server that runs on a plain CPU."""


def free_port() -> int:
    """Return a loopback port that nobody listens on, low enough for the ports SGLang derives from it."""
    for _ in range(100):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port < 55_000:
            return port
    raise ServerError("no free port below 55000 was found")


class SGLangServer:
    """Context manager around ``python -m sglang.launch_server``.

    Parameters
    ----------
    model : path
    args : sequence of str
        Further server arguments.
    env : dict, optional
        Further environment variables; ``{"SGLANG_PLUGINS": "__none__"}`` switches the plugin off. By default
        ``SGLANG_USE_CPU_ENGINE`` is 1; set it to 0 beside a GPU.
    log : path, optional
        Where the server writes; a temporary file by default.
    timeout_s : float
        Seconds until the server must answer.
    progress : callable, optional
        Called about every second with the seconds passed.
    """

    def __init__(
        self,
        model: str | Path,
        args: Sequence[str] = (),
        *,
        env: dict[str, str] | None = None,
        log: Path | None = None,
        timeout_s: float = 300.0,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self.model = str(model)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log or Path(tempfile.mkstemp(prefix="sglang-", suffix=".log")[1])
        self._args = list(args)
        self._env = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "TOKENIZERS_PARALLELISM": "false", **(env or {})}
        self._timeout_s = timeout_s
        self._progress = progress
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def command(self) -> list[str]:
        """The command line of the server."""
        args = ["--model-path", self.model, "--port", str(self.port), *self._args]
        return [sys.executable, "-m", "sglang.launch_server", *args]

    def __enter__(self) -> SGLangServer:
        with self.log.open("wb") as sink:
            # A process group of its own: stopping it stops the scheduler and the detokenizer too.
            self._process = subprocess.Popen(
                self.command, stdout=sink, stderr=subprocess.STDOUT, env=self._env, start_new_session=True
            )
        try:
            self._wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Process id of the server, which must have been started."""
        assert self._process is not None, "the server has not been started"
        return self._process.pid

    def alive(self) -> bool:
        """Whether the server's main process runs."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Stop the server's process group, gently first."""
        if self._process is None:
            return
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, sign)
            except ProcessLookupError:
                break
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                continue
        self._process.wait()

    def log_text(self) -> str:
        """Return what the server wrote, long lines cut (SGLang prints all its arguments in one)."""
        return "\n".join(line[:400] for line in self.log.read_text(errors="replace").splitlines())

    def _wait_ready(self) -> None:
        assert self._process is not None
        start = time.monotonic()
        while (passed := time.monotonic() - start) < self._timeout_s:
            if self._process.poll() is not None:
                raise ServerError(f"the server stopped while starting; its log {self.log} ends:\n{self._tail()}")
            if self._progress is not None:
                self._progress(passed)
            # The warm-up request is over when SGLang says so; before that /health answers 503.
            if "ready to roll" in self.log_text():
                try:
                    if httpx.get(self.url + "/health", timeout=5, trust_env=False).status_code == httpx.codes.OK:
                        return
                except httpx.TransportError:
                    # The port opens a moment after the log line.
                    time.sleep(0.2)
            time.sleep(0.5)
        raise ServerError(
            f"the server was not ready after {self._timeout_s:.0f} s; its log {self.log} ends:\n{self._tail()}"
        )

    def _tail(self) -> str:
        return "\n".join(self.log_text().splitlines()[-15:])
