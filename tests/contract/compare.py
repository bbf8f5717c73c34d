"""Compare the table of targets with an SGLang wheel, by parsing the wheel and importing nothing of it.

``python -m tests.contract.compare sglang-0.5.23-*.whl > table.md`` writes the differences as a Markdown table.
"""

from __future__ import annotations

import ast
import re
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sgl_compiled.compat import TARGETS, Target


@dataclass(frozen=True)
class Difference:
    """A target that is not in the wheel as the table has it."""

    target: Target
    found: str


def compare(wheel: Path, targets: Sequence[Target] = TARGETS) -> list[Difference]:
    """Return every target whose parameters differ in ``wheel``, or that is not there."""
    with zipfile.ZipFile(wheel) as archive:
        sources = {name: archive.read(name).decode() for name in archive.namelist() if name.endswith(".py")}
    out = []
    for target in targets:
        params = parameters(sources, target.path)
        if params is None:
            out.append(Difference(target, _elsewhere(sources, target)))
        elif params != target.params:
            out.append(Difference(target, _change(target.params, params)))
    return out


def parameters(sources: dict[str, str], path: str) -> tuple[str, ...] | None:
    """Return the parameter names of the function at a dotted path, or ``None`` where it is not defined there."""
    parts = path.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        for name in ("/".join(parts[:cut]) + ".py", "/".join(parts[:cut]) + "/__init__.py"):
            if name in sources:
                return _find(ast.parse(sources[name]), parts[cut:])
    return None


def _find(scope: ast.Module | ast.ClassDef, names: Sequence[str]) -> tuple[str, ...] | None:
    for node in scope.body:
        if isinstance(node, ast.ClassDef) and node.name == names[0] and len(names) > 1:
            return _find(node, names[1:])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and list(names) == [node.name]:
            arguments = node.args
            plain = [*arguments.posonlyargs, *arguments.args]
            ends = [arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
            return tuple(argument.arg for argument in [*plain, *ends] if argument is not None)
    return None


def _elsewhere(sources: dict[str, str], target: Target) -> str:
    """Say where a class or function of the same name went, if anywhere."""
    owner, name = target.path.split(".")[-2:]
    method = owner[0].isupper()
    sought = re.compile(rf"^class {owner}\b" if method else rf"^(async )?def {name}\(", re.MULTILINE)
    places = []
    for file, text in sources.items():
        if sought.search(text):
            params = _find(ast.parse(text), [owner, name] if method else [name])
            module = file.removesuffix(".py").replace("/", ".")
            if params is None:
                places.append(f"`{owner}` no longer defines it")
            else:
                same = "same parameters" if params == target.params else _change(target.params, params)
                places.append(f"moved to `{module}` ({same})")
    return "; ".join(sorted(set(places))) or "not found"


def _change(before: Sequence[str], after: Sequence[str]) -> str:
    added = [name for name in after if name not in before]
    gone = [name for name in before if name not in after]
    words = [f"{verb} `{'`, `'.join(names)}`" for verb, names in (("adds", added), ("drops", gone)) if names]
    return "; ".join(words) or "parameters in another order"


def table(differences: Sequence[Difference]) -> str:
    """Return a Markdown table."""
    rows = [
        f"| `{item.target.path.removeprefix('sglang.')}` | {item.target.hook} | {item.found} |" for item in differences
    ]
    return "\n".join(["| target | hook | there |", "| --- | --- | --- |", *rows])


if __name__ == "__main__":
    print(table(compare(Path(sys.argv[1]))))
