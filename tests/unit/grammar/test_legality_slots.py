"""The lazily determinised language of slot forms against the list of all answers."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.form import SlotForm
from sgl_compiled.grammar.legality import AnySpelling
from sgl_compiled.grammar.slot_language import SlotLanguage
from sgl_compiled.grammar.vocabulary import Vocabulary

BYTES = tuple(bytes([byte]) for byte in range(256))
WORDS = (*BYTES, b"a", b"ab", b", ", b'", "', b"b,", "é".encode(), None)


@st.composite
def forms(draw: st.DrawFn) -> SlotForm:
    """Small forms whose choices may be prefixes of one another and run into the separators."""
    texts = st.text("ab,é", max_size=3)
    constraint = draw(st.sampled_from(["free", "distinct", "increasing", "nondecreasing"]))
    n = draw(st.integers(0 if constraint == "free" else 1, 3))
    if constraint == "free":
        choices = st.lists(texts, min_size=1, max_size=4, unique=True).map(tuple)
        slots = tuple(draw(st.lists(choices, min_size=n, max_size=n)))
    else:
        slots = (draw(st.lists(texts, min_size=n, max_size=5, unique=True).map(tuple)),) * n
    return SlotForm(tuple(draw(st.lists(texts, min_size=n + 1, max_size=n + 1))), slots, constraint)


def answers(language: SlotLanguage) -> set[bytes]:
    found, stack = set(), [(0, b"")]
    while stack:
        state, text = stack.pop()
        if language.accepts(state):
            found.add(text)
        stack += [(target, text + bytes([byte])) for byte, target in language.row(state).items()]
    return found


@settings(deadline=None, max_examples=25)
@given(forms())
def test_language_and_reading(form: SlotForm) -> None:
    language = SlotLanguage(form)
    spelled = [form.text(chosen) for chosen in form.sequences()]
    assert language.is_empty() == (not spelled)
    assume(spelled)
    assert answers(language) == {text.encode() for text in spelled}
    for text in set(spelled):
        chosen = language.read(text.encode())
        assert chosen is not None and form.text(chosen) == text
        assert language.read(text.encode() + b"?") is None
    assert language.count_from(0, 10**6) == len(spelled)


@settings(deadline=None, max_examples=15)
@given(forms())
def test_every_state_counts_its_answers(form: SlotForm) -> None:
    spelled = [form.text(chosen).encode() for chosen in form.sequences()]
    assume(spelled and len(set(spelled)) == len(spelled))
    language = SlotLanguage(form)
    stack = [(0, b"")]
    while stack:
        state, text = stack.pop()
        assert language.count_from(state, 10**6) == sum(answer.startswith(text) for answer in spelled)
        stack += [(target, text + bytes([byte])) for byte, target in language.row(state).items()]


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.filter_too_much])
@given(forms())
def test_legal_ids_are_the_definition(form: SlotForm) -> None:
    spelled = {form.text(chosen).encode() for chosen in form.sequences()}
    assume(spelled)
    vocabulary = Vocabulary(WORDS, frozenset({len(WORDS) - 1}))
    spelling = AnySpelling(SlotLanguage(form), vocabulary)
    for text in {answer[:end] for answer in spelled for end in range(len(answer) + 1)}:
        state = spelling.walk(0, text)
        assert state is not None
        expected = [
            index
            for index, data in enumerate(WORDS)
            if (data is None and text in spelled) or (data and any(a.startswith(text + data) for a in spelled))
        ]
        assert spelling.legal_ids(state).tolist() == expected


def test_slots_are_filled_when_the_choice_cannot_grow() -> None:
    spelling = AnySpelling(SlotLanguage(SlotForm(("", ", ", ""), (("a", "ab"),) * 2)), Vocabulary(WORDS, frozenset()))
    filled = {text: spelling.actions(spelling.walk(0, text) or 0) for text in (b"", b"a", b"ab", b"a,", b"ab, a")}
    assert filled == {b"": 0, b"a": 0, b"ab": 0, b"a,": 1, b"ab, a": 1}


@pytest.mark.parametrize(
    ("labels", "k", "order", "count"),
    [(20, 4, "any", 116_280), (20, 4, "list", 4_845), (1_000, 3, "any", 997_002_000), (1_000, 1, "any", 1_000)],
)
def test_nothing_is_unrolled(labels: int, k: int, order: str, count: int) -> None:
    begun = time.monotonic()
    form = ActionGrammar.from_labels([f"Section {n}" for n in range(labels)], k, order=order).form()  # type: ignore[arg-type]
    spelling = AnySpelling(SlotLanguage(form), Vocabulary(WORDS, frozenset({len(WORDS) - 1})))
    assert spelling.language.count_from(0, 10**12) == count
    state: int | None = 0
    while spelling.remaining_is_single(state) is None:
        state = spelling.legal(state).targets[0].item()
    assert len(spelling.language._places) < 2_000  # type: ignore[attr-defined]
    assert time.monotonic() - begun < 2.0
