"""Every public bug report of ``tests/data/cases.jsonl`` has a test: here, or at the place named here.

Toy models run through the product's own path: compile, tree, walk. What another part of the work covers is skipped with
the title of its issue.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sgl_compiled.control.walk import Decision, Row, walk
from sgl_compiled.errors import GrammarError, GrammarTooLargeError, NumericalError, SglCompiledError
from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.compile import Answer, GrammarCompiler, compile_grammar
from sgl_compiled.grammar.form import Template
from sgl_compiled.grammar.layout import actions_ahead, decisions_ahead
from sgl_compiled.grammar.regex import compile_regex, require_finite
from sgl_compiled.grammar.spellings import SpellingAutomaton
from sgl_compiled.grammar.tokenizer import TokenizerInfo
from sgl_compiled.runtime.schema import SelectRequest
from tests.cases import BY_ID, CASES, logits, texts, toy_vocabulary, width

ROOT = Path(__file__).resolve().parents[2]

GPU = "The GPU path: FlashInfer tree masks, proven as far as a machine allows"

ELSEWHERE = {
    "A09": "tests/oracle/test_legality_backends.py",
    "A40": "tests/oracle/test_legality_bytes.py",
    "A47": "tests/server/test_frontend.py::test_choice_after_a_thought",
    "A49": "tests/oracle/test_legality_backends.py",
    "B03": "tests/server/test_rows.py::test_rows_of_a_real_model",
    "B06": "tests/server/test_neighbours.py::test_same_choices_under_load_and_chunked_prefill",
    "B07": "tests/server/test_requests.py::test_evidence_is_strict_json_and_adds_up",
    "C01": "tests/unit/runtime/test_refusals.py::test_models_are_refused_by_name",
    "C02": "tests/unit/runtime/test_refusals.py::test_models_are_refused_by_name",
    "C04": "tests/unit/runtime/test_flashinfer_masks.py::test_masks_of_another_shape_are_refused",
    "C06": "tests/server/test_neighbours.py::test_nothing_leaks",
    "C07": "tests/server/test_neighbours.py::test_unrelated_requests_are_byte_identical",
    "C09": "tests/unit/runtime/test_refusals.py::test_rounded_caches_are_refused",
    "C10": "tests/unit/runtime/test_flashinfer_masks.py::test_a_parent_behind_its_child_is_refused",
    "C11": "tests/server/test_neighbours.py::test_losers_stay_out_of_the_radix_cache",
    "C12": "tests/unit/runtime/test_refusals.py::test_a_recurrent_model_is_known_by_its_type",
    "C13": "tests/unit/runtime/test_flashinfer_masks.py::test_sizes_beyond_32_bits_are_counted_and_never_built",
    "C14": "tests/server/test_neighbours.py::test_same_choices_under_load_and_chunked_prefill",
    "D01": "tests/server/test_forks.py::test_branches_of_a_fork_prefill_their_prompt_once",
    "D02": "tests/server/test_forks.py::test_samples_share_their_prompt_and_report_it",
    "D03": "tests/server/test_forks.py::test_every_sample_is_there_once",
    "D04": "tests/server/test_branches.py::test_outputs_are_equal_under_all_policies_with_aborts_mixed_in",
    "D05": "tests/server/test_branches.py::test_aborting_the_parent_ends_its_branches",
    "D06": "tests/server/test_forks.py::test_groups_that_do_not_fit_together_finish",
    "D08": "tests/server/test_forks.py::test_groups_that_do_not_fit_together_finish",
    "D09": "tests/server/test_forks.py::test_one_branch_fails_alone",
    "D11": "tests/server/test_forks.py::test_grammars_and_seeds_of_samples_are_their_own",
    "D12": "tests/server/test_forks.py::test_grammars_and_seeds_of_samples_are_their_own",
    "D13": "tests/server/test_forks.py::test_forks_of_any_shape",
    "D14": "tests/unit/branches/test_policies.py::test_bounded_wait_with_a_broken_predictor",
    "E03": "tests/server/test_forks.py::test_a_fault_costs_its_own_request",
    "E05": "tests/server/test_forks.py::test_a_client_that_leaves_during_compilation",
    "E06": "tests/unit/branches/test_ranks.py::test_ranks_take_the_decision_of_the_first",
    "E09": "tests/unit/runtime/test_refusals.py::test_server_arguments_are_refused_by_name",
}
LATER = {
    "B05": GPU,
    "C05": GPU,
}
TOYS = [case["id"] for case in CASES if case["check"]["kind"] in ("serial_greedy", "selected") and case["id"] != "A28"]
HERE = [
    *("A04", "A08", "A15", "A16", "A18", "A19", "A20", "A22", "A24", "A25", "A26", "A27", "A28", "A29", "A30", "A37"),
    *("A45", "A46", "B02", "B08", "B10", "E01", "E02", "E07", "E10", "E11"),
]


def test_every_case_has_one_place() -> None:
    assert len(CASES) == len(BY_ID) == 83
    assert sorted([*ELSEWHERE, *LATER, *TOYS, *HERE]) == sorted(BY_ID)


@pytest.mark.parametrize("name", HERE)
def test_cases_of_this_file_are_named_in_it(name: str) -> None:
    assert f'BY_ID["{name}"]' in Path(__file__).read_text("utf-8") or f'items("{name}")' in Path(__file__).read_text()


@pytest.mark.parametrize(("name", "place"), ELSEWHERE.items())
def test_places_exist(name: str, place: str) -> None:
    path, _, function = place.partition("::")
    text = (ROOT / path).read_text("utf-8")
    assert f"def {function or 'test'}" in text


@pytest.mark.parametrize(("name", "issue"), LATER.items())
def test_later(name: str, issue: str) -> None:
    pytest.skip(f"{name}: {BY_ID[name]['expect'].partition('.')[0]}. Covered by the issue: {issue}")


# Toy models.


def info_of(tokenizer: dict[str, Any], logits_width: int = 0) -> TokenizerInfo:
    """A tokenizer that spells from left to right with the longest token."""
    vocabulary = toy_vocabulary(tokenizer, logits_width)

    def encode(text: str) -> list[int]:
        data, out, at = text.encode(), [], 0
        while at < len(data):
            ends = range(min(len(data), at + vocabulary.longest_token), at, -1)
            end = next((end for end in ends if data[at:end] in vocabulary.lowest_ids), None)
            if end is None:
                return []
            out.append(vocabulary.lowest_ids[data[at:end]])
            at = end
        return out

    return TokenizerInfo(vocabulary, lambda found: [encode(text) for text in found])


def grammar_of(given: dict[str, Any]) -> ActionGrammar:
    if "regex" in given:
        return ActionGrammar.from_regex(given["regex"])
    template = given.get("labels_template")
    labels = given["labels"] if template is None else [template["format"].format(i=i) for i in range(template["n"])]
    form = given.get("serialize", {"kind": "raw"})
    written: str | Template = "raw"
    if form["kind"] != "raw":
        written = Template('{"' + form["key"] + '": ["', '", "', '"]}', "json")
    order = "list" if given.get("order") == "unordered" else "any"
    return ActionGrammar.from_labels(
        labels, given.get("k", 1), distinct=given.get("distinct", True), order=order, template=written
    )


def choose(
    given: dict[str, Any], grammar: ActionGrammar, info: TokenizerInfo
) -> tuple[Answer, list[int], list[Decision], int]:
    """Answer, decided tokens, decisions and passes of the walk with the case's toy model."""
    compiled = compile_grammar(grammar, info, "any")
    automaton = compiled.automaton
    assert isinstance(automaton, SpellingAutomaton)
    state, tokens, decisions, passes = automaton.start, list[int](), list[Decision](), 0
    while True:
        try:
            tree = compiled.unfold(state, actions_ahead(automaton, state, compiled.horizon), 4096)
        except GrammarTooLargeError:
            tree = compiled.unfold(state, decisions_ahead(1), 4096)
        tree.check_integrity()
        rows = []
        for spec in tree.rows:
            path: list[int] = []
            node = spec.node
            while node >= 0:
                path.append(tree.tokens[node])
                node = tree.parents[node]
            taken = [*tokens, *reversed(path)]
            text = b"".join(info.vocabulary.token_bytes[token] or b"" for token in taken)
            full = logits(given, taken, text, info.vocabulary)
            rows.append(Row(full[list(spec.legal)], float(np.logaddexp.reduce(full))))
        step = walk(automaton, state, tree, rows, compiled.stop_ids, position=len(tokens))
        passes += bool(tree.rows)
        tokens += step.tokens
        decisions += step.decisions
        state = step.state
        if step.complete:
            decided = 1 + max((decision.position for decision in decisions), default=-1)
            return compiled.answer(state, tokens), tokens[:decided], decisions, passes


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


def answers(grammar: ActionGrammar) -> list[str]:
    if grammar.regex is not None:
        return [data.decode() for data in require_finite(compile_regex(grammar.regex)).strings(5_000)]
    return [grammar.form().text(chosen) for chosen in grammar.form().sequences()]


def test_json_holds_the_characters_themselves() -> None:
    given, check = BY_ID["A16"]["input"], BY_ID["A16"]["check"]
    found = answers(grammar_of(given))
    assert set(check["accept"]) <= set(found)
    assert not set(check["refuse"]) & set(found)
    assert [json.loads(text)["sections"][0] for text in found] == given["labels"]


@pytest.mark.parametrize("variant", BY_ID["A18"]["input"]["serialize_variants"])
def test_every_label_comes_back(variant: dict[str, Any]) -> None:
    given = BY_ID["A18"]["input"]
    for label, text in zip(given["labels"], answers(grammar_of({**given, "serialize": variant})), strict=True):
        if variant["kind"] == "raw":
            assert text == label
        else:
            assert json.loads(text) == {"sections": [label]}
            assert "\\/" not in text


def items(name: str) -> list[Any]:
    given, check = BY_ID[name]["input"], BY_ID[name]["check"]
    patterns = given.get("regex_list") or [
        item["regex"] for item in given.get("items") or given["ranges"] if "flags" not in item
    ]
    outcomes = {item["regex"]: item["ok"] for item in check.get("items", [])}
    return [pytest.param(pattern, outcomes.get(pattern, ["reject"]), id=f"{name}: {pattern}") for pattern in patterns]


@pytest.mark.parametrize("spelling", ["canonical", "any"])
@pytest.mark.parametrize(
    ("pattern", "accepted"), [*items("A19"), *items("A20"), *items("A22"), *items("A24"), *items("A25")]
)
def test_patterns(pattern: str, accepted: list[Any], spelling: Any) -> None:
    pieces = [chr(code) for code in range(32, 127)]
    tokenizer = {
        "vocab": [{"id": i, "t": t, "special": i == 0} for i, t in enumerate(["<eos>", *pieces])],
        "stop_ids": [0],
    }
    try:
        compiled = compile_grammar(ActionGrammar.from_regex(pattern), info_of(tokenizer), spelling)
    except SglCompiledError:
        assert "reject" in accepted
        return
    if spelling == "any" and accepted == ["reject"]:
        # Large and finite: nothing is unrolled, and a pass stays within its limits.
        with pytest.raises(GrammarTooLargeError):
            compiled.unfold(0, actions_ahead(compiled.automaton, 0, 1), 4096)
        assert len(compiled.unfold(0, decisions_ahead(1), 4096)) == 0
        return
    found = answers(compiled.grammar)
    assert compiled.count == len(found)
    assert any(
        answer != "reject"
        and len(found) == answer.get("language_size", len(found))
        and sorted(found) == sorted(answer.get("language", found))
        for answer in accepted
    )


def test_duplicates_are_refused() -> None:
    given = BY_ID["A26"]["input"]
    for item in given["items"][:2]:
        with pytest.raises(GrammarError, match="duplicate"):
            ActionGrammar.from_labels(item["labels"], item["k"])
    assert sorted(answers(ActionGrammar.from_regex(given["items"][2]["regex"]))) == ["A", "AB"]


def test_the_empty_regex_needs_no_model() -> None:
    given = BY_ID["A27"]["input"]["steps"][0]["send"]
    tokenizer = {"vocab": [{"id": 0, "t": "<eos>", "special": True}, {"id": 1, "t": "a"}], "stop_ids": [0]}
    for spelling in ("canonical", "any"):
        compiled = compile_grammar(ActionGrammar.from_regex(given["regex"]), info_of(tokenizer), spelling)  # type: ignore[arg-type]
        assert compiled.answer(compiled.automaton.start).text == ""
        assert not compiled.unfold(compiled.automaton.start, decisions_ahead(1), 10).rows


def test_an_empty_label_is_refused_and_an_empty_string_is_not() -> None:
    given = BY_ID["A28"]["input"]
    with pytest.raises(GrammarError, match="empty"):
        grammar_of(given)
    answer, decided, decisions, _ = choose(given, ActionGrammar.from_regex("(?:A|B)?"), info_of(given["tokenizer"]))
    assert (answer.text, decided) == ("", [])
    assert decisions[0].token == 0


@pytest.mark.parametrize("request_body", [body for body in BY_ID["A29"]["input"]["requests"] if body])
def test_bad_label_lists_are_refused(request_body: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        body = SelectRequest(prompt="x", **request_body)
        ActionGrammar.from_labels(body.labels or [], body.k)


def test_counts_of_slots() -> None:
    given, check = BY_ID["A30"]["input"], BY_ID["A30"]["check"]
    for item, expected in zip(given["items"], check["items"], strict=True):
        if isinstance(item["k"], list):
            # Several sizes are one grammar as a schema.
            schema = {
                "type": "array",
                "items": {"enum": item["labels"]},
                "uniqueItems": True,
                "minItems": 1,
                "maxItems": 2,
            }
            assert ActionGrammar.from_json_schema(schema).form().count == expected["ok"][0]["language_size"]
            continue
        try:
            found = answers(grammar_of({**given, **item}))
        except GrammarError:
            assert "reject" in expected["ok"]
            continue
        assert {"language_size": len(found)} in expected["ok"]


def test_one_whitespace_for_each_template() -> None:
    given, check = BY_ID["A37"]["input"], BY_ID["A37"]["check"]
    for variant in check["variants"]:
        comma, colon = variant["separators"]
        template = Template('{"sections"' + colon + '["', f'"{comma}"', '"]}', "json")
        grammar = ActionGrammar.from_labels(given["labels"], given["k"], order="list", template=template)
        assert answers(grammar) == [variant["text"]]


def test_compiled_grammars_belong_to_a_tokenizer() -> None:
    given, check = BY_ID["A45"]["input"], BY_ID["A45"]["check"]
    compilers = [GrammarCompiler(info_of(tokenizer)) for tokenizer in given["tokenizers"]]
    for order in ((0, 1), (1, 0)):
        for index in order:
            case = {**given, "tokenizer": given["tokenizers"][index]}
            compilers[index].compile(grammar_of(given), "any")
            answer = choose(case, grammar_of(given), compilers[index].info)[0]
            assert [answer.text] == check["selected"][index]


def test_answers_are_whole() -> None:
    """A46: token limits and stop strings are no fields of a request, so no answer can be cut."""
    given = BY_ID["A46"]["input"]
    for extra in ({"max_new_tokens": 1}, {"stop": ["carb"]}):
        with pytest.raises(ValueError, match="Extra inputs"):
            SelectRequest(prompt=given["prompt"], labels=given["labels"], **extra)


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


# Requests that must not hurt a server, as far as the grammar goes.


def test_nul_is_a_character() -> None:
    for step in BY_ID["E01"]["input"]["steps"][:3]:
        given = step["send"]
        if "regex" in given:
            assert sorted(answers(ActionGrammar.from_regex(given["regex"]))) == ["\0A", "B"]
        else:
            key = json.dumps(given["serialize"]["key"])[1:-1]
            found = answers(grammar_of({**given, "serialize": {"kind": "json_object", "key": key}}))
            assert json.loads(found[0]) == {given["serialize"]["key"]: ["a\0b"]}


@pytest.mark.parametrize("pattern", [*BY_ID["E02"]["input"]["bad_regexes"], "(" * 1_000_000])
def test_bad_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(GrammarError):
        compile_regex(pattern)


def test_the_cache_of_grammars_is_bounded() -> None:
    load = BY_ID["E07"]["input"]["load"]
    tokenizer = {
        "vocab": [{"id": i, "t": t, "special": i == 0} for i, t in enumerate(["<eos>", *"0123456789-"])],
        "stop_ids": [0],
    }
    compiler = GrammarCompiler(info_of(tokenizer), capacity=32)
    first = ActionGrammar.from_labels([f"0-{j}" for j in range(load["labels_each"])], template="raw")
    held = compiler.compile(first)
    for i in range(1, 200):
        compiler.compile(ActionGrammar.from_labels([f"{i}-{j}" for j in range(load["labels_each"])], template="raw"))
        assert len(compiler._cache) <= 32
    assert compiler.compile(first) is not held
    assert held.count == load["labels_each"]  # what is in use outlives its place in the cache


def test_callers_keep_their_objects() -> None:
    labels = list(BY_ID["E10"]["input"]["p1"]["labels"])
    first = ActionGrammar.from_labels(labels)
    second = ActionGrammar.from_labels(labels)
    assert first == second
    labels.append("C")
    assert first.labels == ("A", "B")
    assert len(answers(ActionGrammar.from_labels(labels))) == 3


@pytest.mark.parametrize("made", BY_ID["E11"]["input"]["regex_generated"])
def test_size_is_no_stack(made: dict[str, Any]) -> None:
    if "depth" in made:
        pattern = made["open"] * made["depth"] + made["body"] + made["close"] * made["depth"]
    elif "join" in made:
        pattern = made["join"].join(made["format"].format(i=i) for i in range(made["n"]))
    else:
        pattern = made["repeat"] * made["times"]
    try:
        automaton = require_finite(compile_regex(pattern))
    except GrammarTooLargeError as error:
        assert re.search(r"limit|did not compile within", str(error))
    else:
        assert automaton.count(10**6) in (1, 50_000)


def test_texts_of_cases_are_the_languages() -> None:
    """Every label case: the grammar's answers are the case's strings."""
    checked = 0
    for case in CASES:
        given = case["input"]
        if "labels" not in given or case["id"] in ("A15", "A26", "A28", "A29", "A30") or given["op"] == "server":
            continue
        if "serialize" not in given or isinstance(given.get("k"), list):
            continue
        found = answers(grammar_of(given))
        assert sorted(found) == sorted(set(texts({**given, "k": given.get("k", 1)})))
        checked += 1
    assert checked > 20
