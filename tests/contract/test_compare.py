"""The comparison with another release's wheel, on archives made here."""

from __future__ import annotations

import re
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from sgl_compiled.compat import TARGETS, Target
from tests.contract.compare import compare, parameters, table

DOCS = Path(__file__).resolve().parents[2] / "docs" / "compat.md"

SOURCES = {
    "sglang/pool.py": "class Pool:\n def take(self, n, *, wait=True): ...\n async def give(self, *slots, **how): ...\n",
    "sglang/moved.py": "class Queue:\n    def put(self, item, late): ...\n\ndef drain(queue): ...\n",
    "sglang/srt/__init__.py": "def top(a, /, b): ...\n",
    "sglang/bare.py": "class Bare(Base): ...\n",
}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "sglang-9.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in SOURCES.items():
            archive.writestr(name, text)
    return path


@pytest.mark.parametrize(
    ("path", "params"),
    [
        ("sglang.pool.Pool.take", ("self", "n", "wait")),
        ("sglang.pool.Pool.give", ("self", "slots", "how")),
        ("sglang.srt.top", ("a", "b")),
        ("sglang.pool.Pool.lost", None),
        ("sglang.pool.take", None),
        ("elsewhere.f", None),
    ],
)
def test_parameters_are_read_from_source(path: str, params: tuple[str, ...] | None) -> None:
    assert parameters(SOURCES, path) == params


@pytest.mark.parametrize(
    ("target", "found"),
    [
        (Target("sglang.pool.Pool.take", ("self", "n"), "around"), "adds `wait`"),
        (Target("sglang.pool.Pool.take", ("self", "n", "wait", "old"), "around"), "drops `old`"),
        (Target("sglang.pool.Pool.take", ("self", "wait", "n"), "around"), "another order"),
        (Target("sglang.old.Queue.put", ("self", "item"), "around"), "moved to `sglang.moved` (adds `late`)"),
        (Target("sglang.old.drain", ("queue",), "use"), "moved to `sglang.moved` (same parameters)"),
        (Target("sglang.bare.Bare.f", ("self",), "use"), "no longer defines it"),
        (Target("sglang.old.nowhere", (), "use"), "not found"),
    ],
)
def test_differences_are_named(target: Target, found: str, wheel: Path) -> None:
    (difference,) = compare(wheel, [target])
    assert found in difference.found and difference.found in table([difference])


def test_equal_targets_are_not_listed(wheel: Path) -> None:
    assert compare(wheel, [Target("sglang.pool.Pool.take", ("self", "n", "wait"), "around")]) == []


def test_the_installed_release_has_no_differences(tmp_path: Path) -> None:
    """The parser and ``inspect`` agree on every row of the table."""
    spec = find_spec("sglang")
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent
    wanted = {parts for target in TARGETS for parts in _modules(target.path)}
    with zipfile.ZipFile(tmp_path / "installed.whl", "w") as archive:
        for name in wanted:
            file = root.parent / name
            if file.is_file():
                archive.write(file, name)
    assert compare(tmp_path / "installed.whl") == []


def _modules(path: str) -> list[str]:
    parts = path.split(".")
    return ["/".join(parts[:cut]) + ".py" for cut in range(2, len(parts))]


def test_the_documented_differences_are_of_the_table() -> None:
    text = DOCS.read_text()
    listed = re.findall(r"^\| `((?:srt|lang)\.[\w.]+)` \|", text, re.MULTILINE)
    assert listed and set(listed) <= {target.path.removeprefix("sglang.") for target in TARGETS}
