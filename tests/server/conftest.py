"""Real SGLang servers on CPU, one at a time, started once for all tests that want the same one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sgl_compiled.client import Client
from sgl_compiled.model import embedded_model, random_model
from sgl_compiled.server import CPU_ARGS, SGLangServer

BASE = [*CPU_ARGS, "--max-total-tokens", "20000", "--grammar-backend", "outlines"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order server tests by the server they want: starting one takes half a minute."""

    def server_of(item: pytest.Item) -> int:
        if "server" not in item.path.parts:
            return 0
        names = getattr(item, "fixturenames", ())
        return next((i for i, name in enumerate(SHARED, 1) if name in names), len(SHARED) + 1)

    items.sort(key=server_of)


SHARED = ("plain", "tiny", "smol", "guided")
"""Fixtures of servers that tests of several files share; a test that wants two is placed by the first."""


class ServerPool:
    """Keeps the server that was asked for last; asking for another stops it first.

    Calibrations are kept in a folder of the session's own.
    """

    def __init__(self, logs: Path) -> None:
        self.cache = logs / "cache"
        self._logs = logs
        self._key: Any = None
        self._server: SGLangServer | None = None
        self._count = 0

    def get(self, model: Path, *args: str, env: dict[str, str] | None = None) -> SGLangServer:
        key = (model, args, tuple((env or {}).items()))
        if key != self._key or self._server is None or not self._server.alive():
            self.close()
            self._count += 1
            environment = {"SGLCOMPILED_CACHE": str(self.cache), **(env or {})}
            log = self._logs / f"server-{self._count}.log"
            server = SGLangServer(model, [*BASE, *args], env=environment, log=log)
            self._server, self._key = server.__enter__(), key
        return self._server

    def close(self) -> None:
        if self._server is not None:
            self._server.stop()
        self._server = self._key = None


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerPool]:
    pool = ServerPool(tmp_path_factory.mktemp("servers"))
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def tiny_path() -> Path:
    return random_model()


@pytest.fixture(scope="session")
def smol_path() -> Path:
    return embedded_model()


@pytest.fixture
def tiny(pool: ServerPool, tiny_path: Path) -> SGLangServer:
    """A random-weight model: breadth."""
    return pool.get(tiny_path)


@pytest.fixture
def smol(pool: ServerPool, smol_path: Path) -> SGLangServer:
    """SmolLM2-135M-Instruct: depth."""
    return pool.get(smol_path)


@pytest.fixture
def guided(pool: ServerPool, tiny_path: Path) -> SGLangServer:
    """The random-weight model under llguidance."""
    return pool.get(tiny_path, "--grammar-backend", "llguidance")


@pytest.fixture
def plain(pool: ServerPool, tiny_path: Path) -> SGLangServer:
    """The random-weight model without the plugin; asked for inside a test it takes the place of the other server."""
    return pool.get(tiny_path, env={"SGLANG_PLUGINS": "__none__"})


def generate(server: SGLangServer, **body: Any) -> Any:
    """POST /generate and return the parsed answer."""
    response = httpx.post(server.url + "/generate", json=body, timeout=300, trust_env=False)
    response.raise_for_status()
    return response.json()


def client(server: SGLangServer) -> Client:
    return Client(server.url)
