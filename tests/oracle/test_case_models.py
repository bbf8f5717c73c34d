"""Cases with a toy model: compile, tree, walk."""

from __future__ import annotations

import numpy as np
import pytest

from sgl_compiled.errors import GrammarError, NumericalError
from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.compile import GrammarCompiler, compile_grammar
from sgl_compiled.grammar.layout import actions_ahead
from tests.cases import BY_ID, TOYS, width
from tests.toy_choices import choose, grammar_of, info_of


@pytest.mark.parametrize("name", TOYS)
def test_toy_models(name: str) -> None:
    given, check = BY_ID[name]["input"], BY_ID[name]["check"]
    info = info_of(given["tokenizer"], width(given))
    answer, decided, decisions, _ = choose(given, grammar_of(given), info)
    selected = check["selected"]
    assert answer.text == check.get("text", selected[0])
    if answer.labels:
        assert list(answer.labels) == selected
        assert [given["labels"][index] for index in answer.indices] == selected if "labels" in given else True
    names = {entry["id"]: entry["t"] for entry in given["tokenizer"]["vocab"]}
    expected = check.get("tokens") or [names[index] for index in check.get("ids", [])]
    # Behind the last decision one text is left, and its spelling is the tokenizer's.
    assert [names[index] for index in decided] == expected[: len(decided)]
    if "stop" in check:
        assert names[decisions[-1].token] == check["stop"]


def test_a_thousand_labels_take_one_extend() -> None:
    """A34, also with 27 and 101 labels: 112 positions hold all decisions."""
    given = BY_ID["A34"]["input"]
    for count, positions in ((1000, 112), (101, None), (27, None)):
        case = {**given, "labels_template": {**given["labels_template"], "n": count}}
        info = info_of(given["tokenizer"])
        for spelling in ("canonical", "any"):
            compiled = compile_grammar(grammar_of(case), info, spelling)  # type: ignore[arg-type]
            start = compiled.automaton.start
            tree = compiled.unfold(start, actions_ahead(compiled.automaton, start, compiled.horizon), 4096)
            assert positions is None or len(tree) == positions
        assert choose(case, grammar_of(case), info)[3] == 1


def test_rows_of_a_batch_end_on_their_own() -> None:
    given, check = BY_ID["A04"]["input"], BY_ID["A04"]["check"]
    info = info_of(given["tokenizer"])
    names = {entry["id"]: entry["t"] for entry in given["tokenizer"]["vocab"]}
    for scores, expected in zip(given["scores_per_row"], check["rows"], strict=True):
        answer, decided, _, _ = choose({**given, "scores": scores}, grammar_of(given), info)
        assert answer.text == expected["text"]
        assert [names[index] for index in decided] == expected["tokens"][: len(decided)]


def test_labels_keep_their_spaces() -> None:
    """A08: byte-equal labels, their indices, and ids that spell them."""
    labels = BY_ID["A08"]["input"]["labels"]
    pieces = [" ", "HIGH", " HIGH", "LOW", *"HIGLOW"]
    tokenizer = {
        "vocab": [{"id": i, "t": t, "special": i == 0} for i, t in enumerate(["<eos>", *pieces])],
        "stop_ids": [0],
    }
    for favourite in range(1, len(pieces) + 1):
        given = {"tokenizer": tokenizer, "logits_row": [float(i == favourite) for i in range(len(pieces) + 1)]}
        answer, decided, _, _ = choose(given, ActionGrammar.from_labels(labels, template="raw"), info_of(tokenizer))
        assert answer.labels[0] in labels
        assert labels[answer.indices[0]] == answer.labels[0] == answer.text


def test_bytes_and_not_texts_are_legal() -> None:
    given, check = BY_ID["A15"]["input"], BY_ID["A15"]["check"]
    compiled = compile_grammar(grammar_of(given), info_of(given["tokenizer"]), "any")
    assert list(compiled.automaton.step(0)) == check["ids"]


def test_an_empty_label_is_refused_and_an_empty_string_is_not() -> None:
    given = BY_ID["A28"]["input"]
    with pytest.raises(GrammarError, match="empty"):
        grammar_of(given)
    answer, decided, decisions, _ = choose(given, ActionGrammar.from_regex("(?:A|B)?"), info_of(given["tokenizer"]))
    assert (answer.text, decided) == ("", [])
    assert decisions[0].token == 0


def test_compiled_grammars_belong_to_a_tokenizer() -> None:
    given, check = BY_ID["A45"]["input"], BY_ID["A45"]["check"]
    compilers = [GrammarCompiler(info_of(tokenizer)) for tokenizer in given["tokenizers"]]
    for order in ((0, 1), (1, 0)):
        for index in order:
            case = {**given, "tokenizer": given["tokenizers"][index]}
            compilers[index].compile(grammar_of(given), "any")
            answer = choose(case, grammar_of(given), compilers[index].info)[0]
            assert [answer.text] == check["selected"][index]


def test_scores_start_behind_the_prompt() -> None:
    """B02: the renormalised log-probabilities, over rows that follow the prompt's last token."""
    given = BY_ID["B02"]["input"]
    row = given["logits"]["after_prompt"]
    info = info_of(given["tokenizer"])
    answer, decided, decisions, _ = choose({**given, "logits_row": row}, grammar_of(given), info)
    assert answer.labels == ("none",)
    # The case's numbers are over the whole vocabulary: the constrained policy's times the legal ids' mass.
    full = decisions[0].logprob + np.log(decisions[0].label_mass)
    assert full == pytest.approx(BY_ID["B02"]["check"]["labels"]["none"][0], abs=1e-5)
    assert len(decided) == len(decisions) == 1


def test_broken_rows() -> None:
    given, check = BY_ID["B08"]["input"], BY_ID["B08"]["check"]
    info = info_of(given["tokenizer"])
    for values, expected in zip(given["logits_rows"], check["rows"], strict=True):
        case = {**given, "logits_row": [float(value) for value in values]}
        if expected == "error":
            with pytest.raises(NumericalError), np.errstate(invalid="ignore"):
                choose(case, grammar_of(given), info)
        else:
            answer, _, decisions, _ = choose(case, grammar_of(given), info)
            assert answer.labels == (expected,)
            assert decisions[0].margin == 0


def test_probabilities_are_of_the_walked_spelling() -> None:
    """B10: the greedy label, with the probability of its spelling; other spellings are not added."""
    given = BY_ID["B10"]["input"]
    roots = given["logits"]["root"]
    answer, _, decisions, _ = choose({**given, "logits_row": roots}, grammar_of(given), info_of(given["tokenizer"]))
    assert list(answer.labels) == BY_ID["B10"]["check"]["selected"]
    assert np.exp(sum(decision.logprob for decision in decisions)) == pytest.approx(0.731059, abs=1e-5)
    assert np.exp(decisions[0].logprobs).sum() == pytest.approx(1)
    assert (decisions[0].logprobs <= 0).all()
