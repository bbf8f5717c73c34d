"""The compiled trie of every file in ``grammars/``: a change of what is evaluated does not pass unseen.

``pytest tests/golden --update-golden`` writes the files anew; read the difference before committing it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sgl_compiled.errors import GrammarError
from sgl_compiled.grammar.compile import CompiledGrammar, compile_grammar
from sgl_compiled.grammar.files import load_grammar
from sgl_compiled.grammar.layout import ROOT, TreeLayout, actions_ahead
from sgl_compiled.grammar.tokenizer import TokenizerInfo
from tests.oracle.tokenizers_available import load

HERE = Path(__file__).parent
FILES = sorted((HERE.parents[1] / "grammars").glob("*.json"))


@pytest.fixture(scope="module")
def info() -> TokenizerInfo:
    return TokenizerInfo.from_tokenizer(load("smollm2"), vocab_size=49_152, stop_ids=[2])


def written(tree: TreeLayout, info: TokenizerInfo) -> list[str]:
    """One line a position, indented by depth; the number of legal ids where a decision is read."""
    legal = {row.node: len(row.legal) for row in tree.rows}
    lines = [f"(prompt) <{legal[ROOT]}>" if ROOT in legal else "(prompt)"]
    for index, (token, depth) in enumerate(zip(tree.tokens, tree.depths, strict=True)):
        text = (info.vocabulary.token_bytes[token] or b"").decode(errors="backslashreplace")
        lines.append("  " * (depth + 1) + f"{text!r} {token}" + (f" <{legal[index]}>" if index in legal else ""))
    return lines


def describe(compiled: CompiledGrammar, info: TokenizerInfo) -> list[str]:
    automaton = compiled.automaton
    # Two actions show how slots follow each other; more would only repeat it.
    actions = min(compiled.horizon, 2)
    tree = compiled.unfold(automaton.start, actions_ahead(automaton, automaton.start, actions), 4096)
    tree.check_integrity()
    sizes = f"{compiled.horizon} actions, at most {compiled.max_tokens} tokens"
    head = f"{compiled.spelling}: {compiled.count} answers, {sizes}"
    size = f"tree of the first {actions} actions: {len(tree)} positions, {len(tree.rows)} decisions"
    return [head, size, *written(tree, info), ""]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_compiled_trie(path: Path, info: TokenizerInfo, request: pytest.FixtureRequest) -> None:
    grammar = load_grammar(path).grammar
    lines = [
        line for spelling in ("canonical", "any") for line in describe(compile_grammar(grammar, info, spelling), info)
    ]  # type: ignore[arg-type]
    found = "\n".join(lines)
    golden = HERE / f"{path.stem}.txt"
    if request.config.getoption("--update-golden"):
        golden.write_text(found, "utf-8")
    assert golden.read_text("utf-8") == found


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in FILES} == {path.stem for path in HERE.glob("*.txt")}
    assert len(FILES) >= 5


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_files_are_described_and_ask_for_themselves(path: Path) -> None:
    from sgl_compiled.runtime.schema import SelectRequest

    file = load_grammar(path)
    assert file.title and file.description
    SelectRequest(prompt="x", **file.fields)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("[1]", "object"),
        ("{", "no JSON"),
        ("{}", "needs one of"),
        ('{"labels": ["a"], "regex": "a"}', "needs one of"),
        ('{"regex": "a", "k": 2}', "labels alone"),
        ('{"lables": ["a"]}', "lables"),
    ],
)
def test_broken_files(tmp_path: Any, content: str, match: str) -> None:
    path = tmp_path / "grammar.json"
    path.write_text(content)
    with pytest.raises(GrammarError, match=match):
        load_grammar(path)
