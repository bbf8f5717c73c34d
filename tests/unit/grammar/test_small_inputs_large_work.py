"""Small inputs that would take much time or memory: refused by a count, or no longer dear."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import toy

from sgl_compiled.errors import GrammarError, GrammarTooLargeError
from sgl_compiled.grammar import compile as compile_module
from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.automaton import ByteAutomaton
from sgl_compiled.grammar.canonical import EnumeratedSlots
from sgl_compiled.grammar.compile import CompiledGrammar, GrammarCompiler, compile_grammar
from sgl_compiled.grammar.form import SlotForm, Template
from sgl_compiled.grammar.layout import legal_ids
from sgl_compiled.grammar.limits import Deadline, Limits
from sgl_compiled.grammar.nfa import build_nfa, determinise
from sgl_compiled.grammar.regex_backends import check_backend
from sgl_compiled.grammar.regex_groups import GroupReader, Groups
from sgl_compiled.grammar.regex_syntax import parse_regex
from sgl_compiled.grammar.slots import SegmentTrie, Shared, SlotAutomaton
from sgl_compiled.grammar.tokenizer import TokenizerInfo

LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789-", '["', '", "', '"]']
PLAIN = toy(LETTERS)
# No boundary of the separator is safe: it may merge with what stands on either side.
MERGING = toy(["a", "b", "1", "2", "-", "1-a"])


@contextmanager
def within(seconds: float) -> Iterator[None]:
    # Of this thread's own: others may keep the machine busy.
    begun = time.thread_time()
    yield
    assert time.thread_time() - begun < seconds


def never_encode(texts: Sequence[str]) -> list[list[int]]:
    raise AssertionError(f"{len(texts)} texts were built")


UNUSED = TokenizerInfo(PLAIN.vocabulary, never_encode)


# Tries of slots


def test_places_take_no_paths() -> None:
    # Every node on the way to the last decision has a place.
    segments = [[1, *range(10, 4_010), 2], [1, *range(10, 4_010), 3], [4]]
    tracemalloc.start()
    try:
        assert SegmentTrie.build(segments) is not None
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_places_are_the_same_in_every_slot() -> None:
    grammar = ActionGrammar.from_labels(["abc", "abd", "ac", "b"], 3, distinct=False)
    automaton = compile_grammar(grammar, PLAIN).automaton
    assert isinstance(automaton, SlotAutomaton)
    places: list[dict[tuple[int, ...], int]] = [{}, {}, {}]

    def walk(state: tuple[tuple[int, ...], int], label: tuple[int, ...]) -> None:
        following = automaton.step(state)
        if len(following) > 1:
            slot, place = automaton.place(state)
            assert places[slot].setdefault(label, place) == place
        for token, after in following.items():
            same = len(after[0]) == len(state[0]) and (label or len(following) > 1)
            walk(after, (*label, token) if same else ())

    walk(automaton.start, ())
    # Before "abc", "ac" or "b"; before "bc", "bd" or "c"; before "c" or "d".
    assert places[0] == places[1] == places[2]
    assert len(places[0]) == len(set(places[0].values())) == 3


def test_masks_are_kept_once() -> None:
    segments = [[100 + index, *range(50)] for index in range(300)]
    shared = Shared()
    one, other = SegmentTrie.build(segments, shared), SegmentTrie.build([[7, *ids] for ids in segments], shared)
    assert one is not None and other is not None and len(one.below) == 300 * 51 + 1
    assert len({id(mask) for trie in (one, other) for mask in trie.below}) <= 2 * 300


@given(st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=1, max_size=8, unique_by=tuple))
def test_masks_tell_what_passes(segments: list[list[int]]) -> None:
    trie = SegmentTrie.build(segments)
    assert trie is not None
    expected = [0] * len(trie.children)
    for index, ids in enumerate(segments):
        node = 0
        expected[node] |= 1 << index
        for token in ids:
            node = trie.children[node][token]
            expected[node] |= 1 << index
    assert list(trie.below) == expected
    assert all(list(kids) == sorted(kids) for kids in trie.children)


# Forms


@pytest.mark.parametrize("constraint", ["increasing", "nondecreasing"])
def test_sequences_cost_no_more_than_their_number(constraint: str) -> None:
    slots = 64 if constraint == "nondecreasing" else 60
    choices = ("a", "b") if constraint == "nondecreasing" else tuple(map(str, range(61)))
    form = SlotForm(("",) * (slots + 1), (choices,) * slots, constraint)  # type: ignore[arg-type]
    found = list(form.sequences())
    assert len(found) == form.count <= 65
    assert found == sorted(found)
    assert all(form.allowed(chosen[:slot]) >> index & 1 for chosen in found for slot, index in enumerate(chosen))


@pytest.mark.parametrize("constraint", ["free", "distinct", "increasing", "nondecreasing"])
def test_size_without_unrolling(constraint: str) -> None:
    form = SlotForm(("<", "é", ""), (("a", "bcd", "é"),) * 2, constraint)  # type: ignore[arg-type]
    assert form.size == sum(len(form.text(chosen).encode()) for chosen in form.sequences())
    if constraint == "free":
        mixed = SlotForm(("<", "", ">"), (("a", "bc"), ("d", "ef", "ghij")))
        assert mixed.size == sum(len(mixed.text(chosen).encode()) for chosen in mixed.sequences())


def test_windows_are_counted_before_they_are_built() -> None:
    choices = [f"x{index}" for index in range(10_000)]
    with pytest.raises(GrammarTooLargeError, match="beside them"):
        compile_grammar(ActionGrammar.from_form(["a" * 1_000_000, choices]), UNUSED)
    # Every pair of neighbours would stand beside the long text.
    form = ActionGrammar.from_form(["a" * 2_000, ["b", "c"], "-", ["d", "e"]])
    with pytest.raises(GrammarTooLargeError, match="beside them"):
        compile_grammar(form, toy([*LETTERS, "a" * 100]), limits=Limits(max_window_bytes=10_000))
    with pytest.raises(GrammarTooLargeError, match="too long beside 10000 labels"):
        ActionGrammar.from_labels(choices, 2, template=Template("", "a" * 1_000_000, ""))


def test_slots_that_are_alike_share_a_trie() -> None:
    grammar = ActionGrammar.from_labels(["abc", "abd", "ac", "b"], 64, distinct=False)
    automaton = compile_grammar(grammar, PLAIN).automaton
    assert isinstance(automaton, SlotAutomaton)
    assert len({id(trie) for trie in automaton._tries}) == 3


def test_why_slots_cannot_be_spelled_apart() -> None:
    labels = [a + b for a in "abcdefgh" for b in "12345678"]
    grammar = ActionGrammar.from_labels(labels, 2, template=Template("", "-", ""))
    with pytest.raises(GrammarTooLargeError, match="4096 pairs of labels .* too many to compare"):
        compile_grammar(grammar, PLAIN, limits=Limits(max_strings=100))
    grammar = ActionGrammar.from_labels(["a", "a1"], 2, template=Template("", "-", ""))
    info = toy(["a", "1", "-", "a-", "-a", "1-a"])
    with pytest.raises(GrammarTooLargeError, match="merges tokens across"):
        compile_grammar(grammar, info, limits=Limits(max_strings=1))


def test_text_limits_of_labels_and_forms() -> None:
    for template in (Template("a" * 5_000_000, "", ""), Template("", "a" * 70_000, "")):
        with pytest.raises(GrammarTooLargeError, match="bytes in all"):
            ActionGrammar.from_labels([f"l{index}" for index in range(64)], 64, template=template)
    with pytest.raises(GrammarTooLargeError, match="a choice of 5000 bytes"):
        ActionGrammar.from_form([["a" * 5_000, "b"]])
    with pytest.raises(GrammarTooLargeError, match="a choice of"):
        ActionGrammar.from_json_schema({"enum": ["é" * 2_500, "b"]})
    with pytest.raises(GrammarTooLargeError, match="bytes in all"):
        ActionGrammar.from_form(["é" * 2_500_000, ["a", "b"]])
    assert ActionGrammar.from_json_schema({"const": "a" * 5_000}).form().count == 1


def test_duplicates_are_found_at_once() -> None:
    choices = list(map(str, range(40_000)))
    with within(1.0), pytest.raises(GrammarError, match="'39999' twice"):
        ActionGrammar.from_form([[*choices, "39999"]])
    with pytest.raises(GrammarTooLargeError, match="60000 choices"):
        ActionGrammar.from_form([["a"] * 60_000])


@pytest.mark.parametrize(
    ("template", "match"),
    [
        (Template("\ud800", "", ""), "prefix holds a lone surrogate"),
        ({"suffix": "\udc00"}, "suffix holds a lone surrogate"),
        ({"seperator": ";"}, "'seperator'.*separator"),
        ({"separator": 3}, "must be a string"),
        ({"escape": "xml"}, "escape 'xml'"),
        (3, "not int"),
        (["json"], "not list"),
    ],
)
def test_bad_templates(template: object, match: str) -> None:
    with pytest.raises(GrammarError, match=match):
        ActionGrammar.from_labels(["a"], template=template)  # type: ignore[arg-type]


def test_a_template_may_be_a_mapping() -> None:
    assert ActionGrammar.from_labels(["a"], template={"separator": "; "}).template == Template("", "; ", "")
    fields = {"prefix": "<", "separator": '"', "suffix": ">", "escape": "json"}
    assert ActionGrammar.from_labels(["a"], template=fields).template == Template("<", '"', ">", "json")


# Enumerated languages


def test_strings_are_limited_in_bytes() -> None:
    with pytest.raises(GrammarTooLargeError, match="100000 strings hold 500500000 bytes"):
        compile_grammar(ActionGrammar.from_regex("[0-9]{5}x{5000}"), UNUSED)
    limits = Limits(max_strings_bytes=100)
    grammar = ActionGrammar.from_labels(["a1", "a2", "b1", "b2"], 2, template=Template("", "-", ""))
    assert grammar.form().size == 60
    assert isinstance(compile_grammar(grammar, MERGING, limits=limits).automaton, EnumeratedSlots)
    with pytest.raises(GrammarTooLargeError, match="answers of 60 bytes"):
        compile_grammar(grammar, MERGING, limits=Limits(max_strings_bytes=59))


@given(st.sets(st.binary(max_size=4) | st.text("ab", max_size=6).map(str.encode), max_size=12))
def test_size_of_a_language(strings: set[bytes]) -> None:
    assert ByteAutomaton.from_strings(strings).size() == sum(map(len, strings))


def test_enumerated_slots_count_slots() -> None:
    grammar = ActionGrammar.from_labels(["a1", "a2", "b1", "b2"], 2, template=Template("", "-", ""))
    compiled = compile_grammar(grammar, MERGING)
    automaton = compiled.automaton
    assert isinstance(automaton, EnumeratedSlots) and compiled.horizon == 2

    def behind(state: int) -> list[tuple[int, ...]]:
        chosen = automaton.chosen(state)
        below = [answer for after in automaton.step(state).values() for answer in behind(after)]
        return below if chosen is None else [chosen, *below]

    states, deciding = [automaton.start], set()
    for state in states:
        states += automaton.step(state).values()
        firsts, answers = {chosen[0] for chosen in behind(state)}, set(behind(state))
        assert automaton.actions(state) == (2 if len(answers) == 1 else int(len(firsts) == 1))
        if len(legal_ids(automaton, state, compiled.stop_ids)) > 1:
            deciding.add(automaton.actions(state))
    assert len(states) > 20 and deciding == {0, 1}


# Compilation


def test_one_compilation_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[ActionGrammar] = []
    go_on, asked = threading.Event(), threading.Barrier(5)

    def slow(grammar: ActionGrammar, *rest: object) -> CompiledGrammar:
        calls.append(grammar)
        assert go_on.wait(10.0)
        if grammar.regex is not None:
            raise GrammarError("no")
        return compile_grammar(grammar, PLAIN)

    monkeypatch.setattr(compile_module, "compile_grammar", slow)
    compiler = GrammarCompiler(PLAIN)

    def ask(grammar: ActionGrammar) -> CompiledGrammar:
        asked.wait(10.0)
        return compiler.compile(grammar)

    good, bad = ActionGrammar.from_labels(["a", "b"]), ActionGrammar.from_regex("a*")
    with ThreadPoolExecutor(8) as pool:
        for grammar in (good, bad):
            go_on.clear()
            calls.clear()
            futures = [pool.submit(ask, grammar) for _ in range(4)]
            asked.wait(10.0)
            time.sleep(0.05)
            go_on.set()
            errors = [future.exception(10.0) for future in futures]
            assert len(calls) == 1
            if grammar is good:
                assert len({id(future.result()) for future in futures}) == 1
            else:
                assert all(isinstance(error, GrammarError) for error in errors)
    with pytest.raises(GrammarError):
        compiler.compile(bad)
    assert len(calls) == 2, "an error is not kept"


# Regular expressions


@pytest.mark.parametrize("item", ["(a){1}", "(a){2}", "(a)?"])
def test_repeats_of_groups_take_linear_time(item: str) -> None:
    with within(2.0):
        GroupReader("|".join([item] * 6_000))


def test_groups_have_a_deadline() -> None:
    with pytest.raises(GrammarTooLargeError, match="did not compile within"):
        GroupReader("(a)|b", Limits(compile_seconds=-1.0))


def test_patterns_without_groups_are_not_searched() -> None:
    assert GroupReader("(?:a|b){3}", Limits(max_nfa_states=1)).read("aab") == Groups((), {})


def test_group_names_are_looked_up() -> None:
    with within(2.0):
        parsed = parse_regex("|".join(f"(?<n{index}>a)" for index in range(15_000)))
    assert len(parsed.groups) == 15_000
    with pytest.raises(GrammarError, match="used twice"):
        parse_regex("(?<a>b)(?P<a>c)")


def test_length_is_checked_before_parsing() -> None:
    with within(0.5), pytest.raises(GrammarTooLargeError, match="characters"):
        check_backend("[a-b]" * 200_000, "outlines")
    with pytest.raises(GrammarTooLargeError, match="characters"):
        GroupReader("(a)" * 10, Limits(max_pattern_chars=20))


class Counted(Deadline):
    checks = 0

    def check(self) -> None:
        self.checks += 1


def test_the_deadline_is_looked_at_inside_a_row() -> None:
    program, limits, deadline = parse_regex("|".join(["[^a]"] * 2_000)).program, Limits(), Counted()
    nfa = build_nfa(program, limits, deadline)
    assert deadline.checks >= len(program)
    deadline.checks = 0
    automaton = determinise(nfa, limits, deadline)
    assert deadline.checks > 3 * len(automaton.transitions)
    with pytest.raises(GrammarTooLargeError, match="did not compile within"):
        build_nfa(program, limits, Deadline(Limits(compile_seconds=-1.0)))
