"""Any spelling on real tokenizers: passes take the walk that token-by-token decoding takes."""

from __future__ import annotations

import random

import pytest

from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.compile import compile_grammar
from sgl_compiled.grammar.likely import TreeRule
from sgl_compiled.grammar.spellings import SpellingAutomaton
from sgl_compiled.grammar.tokenizer import TokenizerInfo
from tests.oracle.tokenizers_available import NAMES, load
from tests.server.random_grammars import random_grammars
from tests.unit.grammar.any_walks import passes, serial

GRAMMARS = 24


def info_of(name: str) -> TokenizerInfo:
    tokenizer = load(name)
    if not hasattr(tokenizer, "backend_tokenizer"):
        pytest.skip("this wrapper encodes no bare text; its bytes are tested in test_legality_bytes.py")
    return TokenizerInfo.from_tokenizer(tokenizer)


def grammar_of(request: dict[str, object]) -> ActionGrammar:
    options = dict(request)
    pattern = options.pop("regex", None)
    if isinstance(pattern, str):
        return ActionGrammar.from_regex(pattern)
    return ActionGrammar.from_labels(options.pop("labels"), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_passes_take_the_serial_walk(name: str) -> None:
    info = info_of(name)
    for seed, random_grammar in enumerate(random_grammars(GRAMMARS, seed=21)):
        compiled = compile_grammar(grammar_of(random_grammar.request), info, "any")
        assert isinstance(compiled.automaton, SpellingAutomaton)
        text, decided = serial(info, compiled.automaton.spelling, seed, bool(seed % 2))
        rule = [TreeRule(), TreeRule(False, 0), TreeRule(True, 2)][seed % 3]
        for _ in range(2):
            tokens, _ = passes(info, compiled, seed, bool(seed % 2), rule, compiled.horizon)
            state = compiled.automaton.start
            for token in tokens:
                state = compiled.automaton.step(state)[token]
            assert compiled.answer(state, tokens).text.encode() == text
            assert tokens[: len(decided)] == decided


@pytest.mark.parametrize("name", NAMES)
def test_canonical_ids_spell_the_answers(name: str) -> None:
    """The tokenizer's own spelling of an answer lies on canonical ids, but for what its context changes."""
    info = info_of(name)
    rng = random.Random(0)
    on_path = total = 0
    for random_grammar in random_grammars(GRAMMARS, seed=22):
        grammar = grammar_of(random_grammar.request)
        if grammar.regex is not None:
            continue
        form = grammar.form()
        automaton = compile_grammar(grammar, info, "any").automaton
        assert isinstance(automaton, SpellingAutomaton)
        for chosen in rng.sample(list(form.sequences()), min(5, form.count)):
            (ids,) = info.encode_batch([form.text(chosen)])
            state = automaton.start
            for token in ids:
                if token not in automaton.step(state) or automaton.single(state):
                    break
                total += 1
                on_path += token in automaton.canonical(state)
                state = automaton.step(state)[token]
    assert total == 0 or on_path / total > 0.95
