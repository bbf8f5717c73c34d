"""The form of the program, without a server."""

from __future__ import annotations

import re

from fill_form import Card, prompt_of
from papers import load_papers

from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.model import read_model


def test_card_is_a_finite_language() -> None:
    grammar = ActionGrammar.from_model(Card)
    assert grammar.slot_form is not None
    text = '{"kind": "new data", "has_experiments": false, "languages": "none", "difficulty": 2}'
    assert read_model(Card, text) == Card(kind="new data", has_experiments=False, languages="none", difficulty=2)


def test_prompts_are_short_and_end_where_the_card_begins() -> None:
    for paper in load_papers():
        prompt = prompt_of(paper)
        assert re.search(r"as JSON: $", prompt)
        assert len(prompt.split()) < 300
