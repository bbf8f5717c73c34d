"""Flat trees: what one extend evaluates."""

from __future__ import annotations

from math import perm

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import toy

from sgl_compiled.errors import GrammarTooLargeError
from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.compile import CompiledGrammar, compile_grammar
from sgl_compiled.grammar.form import Template
from sgl_compiled.grammar.layout import TreeLayout, actions_ahead, decisions_ahead, unfold
from sgl_compiled.grammar.trie import TrieAutomaton

LETTERS = [chr(65 + i) for i in range(20)]
#: The paper's slot: one token of label, two of scaffold.
PAPER = Template("", "12", "", "none")
INFO = toy([*LETTERS, "1", "2"])


def paper(k: int, n: int) -> CompiledGrammar:
    return compile_grammar(ActionGrammar.from_labels(LETTERS[:k], n, template=PAPER), INFO)


def layout(compiled: CompiledGrammar, actions: int, state: object = None, limit: int = 10_000) -> TreeLayout:
    start = compiled.automaton.start if state is None else state
    return unfold(
        compiled.automaton,
        start,
        actions_ahead(compiled.automaton, start, actions),
        stop_ids=compiled.stop_ids,
        max_positions=limit,
    )


def test_positions_of_the_papers_plans() -> None:
    """Shared trie positions, path included: 60 at three slots, 1,086 at four, and 60 + 60 for lookahead [2,2]."""
    three, four = paper(20, 3), paper(20, 4)
    assert len(layout(three, 1)) == 0
    first = three.automaton.step(three.automaton.start)[1]
    assert 3 + len(layout(three, 2, walk(three, [1, 21, 22]))) == 60
    assert 3 + len(layout(four, 3, walk(four, [1, 21, 22]))) == 1_086
    assert len(layout(four, 2)) == 60
    assert 6 + len(layout(four, 2, walk(four, [1, 21, 22, 2, 21, 22]))) == 60
    assert first != three.automaton.start


def walk(compiled: CompiledGrammar, tokens: list[int]) -> object:
    state = compiled.automaton.start
    for token in tokens:
        state = compiled.automaton.step(state)[token]
    return state


def test_unshared_rows_of_the_paper() -> None:
    """Every row with a copy of its own path: 117 positions at three slots, 3,195 and 362 rows at four."""
    for n, positions, rows in ((3, 117, 20), (4, 3_195, 362)):
        compiled = paper(20, n)
        probe = layout(compiled, n - 1, walk(compiled, [1, 21, 22]))
        unshared = 3 + sum(3 + depth_of(probe, row.node) for row in probe.rows if row.node >= 0)
        assert (unshared, len(probe.rows)) == (positions, rows)


@pytest.mark.parametrize(("n", "limit"), [(3, 5_000_000), (4, 50_000_000)])
def test_a_probe_holds_numbers_of_its_legal_ids_only(n: int, limit: int) -> None:
    """The paper's probe: in float32 a log-sum-exp a row, and the logits of its legal ids (``runtime.rows.gather``)."""
    compiled = paper(20, n)
    probe = layout(compiled, n - 1, walk(compiled, [1, 21, 22]))
    held = 4 * sum(1 + len(row.legal) for row in probe.rows)
    assert len(probe.rows) == sum(perm(19, depth) for depth in range(n - 1))
    assert held < limit
    # The paper's rows, each over a vocabulary of 152,064 ids in float32 for every position, are gigabytes.
    assert held < 4 * 152_064 * len(probe) / 1_000


def depth_of(tree: TreeLayout, node: int) -> int:
    return tree.depths[node] + 1


@given(
    answers=st.lists(
        st.lists(st.integers(1, 3), min_size=1, max_size=5).map(tuple), min_size=1, max_size=12, unique=True
    ),
    decisions=st.integers(1, 4),
)
@settings(max_examples=70, deadline=None)
def test_holds_what_the_decisions_need_and_no_more(answers: list[tuple[int, ...]], decisions: int) -> None:
    trie = TrieAutomaton(answers)
    tree = unfold(trie, 0, decisions_ahead(decisions), stop_ids=frozenset({0}), max_positions=1_000)
    tree.check_integrity()
    paths = {path_of(tree, index) for index in range(len(tree))} | {()}
    expected_rows, expected_nodes = set(), set()
    for answer in answers:
        above = 0
        for length in range(len(answer) + 1):
            prefix = answer[:length]
            followers = {a[length] for a in answers if a[:length] == prefix and len(a) > length}
            if len(followers) + (prefix in answers and bool(followers)) > 1:
                if above < decisions:
                    expected_rows.add(prefix)
                    expected_nodes |= {prefix[:i] for i in range(1, length + 1)}
                above += 1
    assert {path_of(tree, row.node) for row in tree.rows} == expected_rows
    assert paths - {()} == expected_nodes
    for row in tree.rows:
        prefix = path_of(tree, row.node)
        legal = {a[len(prefix)] for a in answers if a[: len(prefix)] == prefix and len(a) > len(prefix)}
        assert set(row.legal) == legal | ({0} if prefix in answers else set())
        assert list(row.legal) == sorted(row.legal)
        assert tree.row_at(row.node) == tree.rows.index(row)


def path_of(tree: TreeLayout, node: int) -> tuple[int, ...]:
    out: list[int] = []
    while node >= 0:
        out.append(tree.tokens[node])
        node = tree.parents[node]
    return tuple(reversed(out))


def test_limit_and_narrowing() -> None:
    compiled = paper(20, 3)
    with pytest.raises(GrammarTooLargeError, match="59 tree positions"):
        layout(compiled, 2, limit=59)
    narrow = unfold(
        compiled.automaton,
        compiled.automaton.start,
        actions_ahead(compiled.automaton, compiled.automaton.start, 2),
        stop_ids=compiled.stop_ids,
        max_positions=100,
        keep=lambda state, children: dict(list(children.items())[:4]),
    )
    assert len(narrow) == 12
    assert len(narrow.rows[0].legal) == 20


def test_a_thousand_labels_take_one_extend_of_112() -> None:
    """Case A34: two forced tokens, ten tens and a hundred digits; no leaf is evaluated."""
    info = toy([*"0123456789", "item", "_"])
    labels = [f"item_{i:03d}" for i in range(1000)]
    compiled = compile_grammar(ActionGrammar.from_labels(labels, template="raw"), info)
    assert len(layout(compiled, 1)) == 112
    assert len(layout(compiled, 1).rows) == 111
