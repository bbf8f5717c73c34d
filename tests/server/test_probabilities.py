"""Probabilities, certified sets, draws and evidence on a running server, against separate forwards of 336 answers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from scipy.stats import chisquare

from sgl_compiled.client import Client
from sgl_compiled.errors import RequestError
from sgl_compiled.server import SGLangServer
from tests.server.conftest import ServerPool, client
from tests.server.enumerated import Oracle, Truth
from tests.server.grammars import SECTIONS

pytestmark = pytest.mark.server

PROMPT = "the model reads a long paper about data and method\nSections: "
TOLERANCE = 1e-4
OBJECTIVES = ["policy", "conditional"]


@pytest.fixture(scope="module")
def oracle(tiny_path: Path) -> Oracle:
    return Oracle(tiny_path)


@pytest.fixture(scope="module")
def truth(oracle: Oracle) -> Truth:
    return oracle.truth(PROMPT, SECTIONS, 3)


@pytest.fixture
def api(tiny: SGLangServer) -> Iterator[Client]:
    with client(tiny) as api:
        yield api


def ask(api: Client, **options: Any) -> Any:
    return api.select_k(PROMPT, SECTIONS, 3, **options)


def brackets(bounds: Any, value: float) -> bool:
    return bool(bounds.lower - TOLERANCE * value <= value <= bounds.upper + TOLERANCE * value)


def best(table: dict[tuple[int, ...], float], n: int) -> list[tuple[int, ...]]:
    return sorted(table, key=lambda key: -table[key])[:n]


def test_every_answer_of_one_pass(api: Client, truth: Truth) -> None:
    found = ask(api, plan="[3]", evidence=True, n=336)
    assert len(found.inference.answers) == len(truth.policy) == 336
    assert sum(answer.probability.lower for answer in found.inference.answers) == pytest.approx(1, abs=1e-9)
    for answer in found.inference.answers:
        key = tuple(answer.indices)
        assert answer.probability.lower == answer.probability.upper
        assert answer.logprob == pytest.approx(truth.policy[key], abs=1e-3)
        assert answer.probability.lower == pytest.approx(math.exp(truth.policy[key]), rel=1e-3, abs=1e-9)
        assert answer.text == json.dumps(answer.labels)
    assert found.inference.states_expanded == found.inference.states == 65


def test_a_plain_choice_pays_nothing(api: Client) -> None:
    for plan in ("[3]", "root+probe", "chunked"):
        plain, rich = ask(api, plan=plan), ask(api, plan=plan, evidence=True)
        assert rich.labels == plain.labels
        assert [(p.positions, p.rows) for p in rich.plan.passes] == [(p.positions, p.rows) for p in plain.plan.passes]
        assert rich.plan.forwards == plain.plan.forwards
        assert plain.inference is plain.parity is plain.evidence is None
        assert brackets(rich.inference.answers[0].probability, math.exp(rich.inference.answers[0].logprob))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_most_probable_answers(api: Client, truth: Truth, objective: str) -> None:
    found = ask(api, decide="map", objective=objective, n=4)
    table = truth.probabilities(objective)
    assert [tuple(answer.indices) for answer in found.inference.answers] == best(table, 4)
    assert tuple(found.indices) == best(table, 1)[0]
    assert (found.inference.certified, found.inference.gap) == (True, 0)
    assert all(brackets(answer.probability, table[tuple(answer.indices)]) for answer in found.inference.answers)
    assert found.usage.decoded_tokens == 0
    assert found.plan.forwards == len(found.plan.passes)
    assert found.logprob == pytest.approx(truth.policy[tuple(found.indices)], abs=1e-3)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_most_probable_set(api: Client, truth: Truth, objective: str) -> None:
    found = ask(api, decide="map_set", objective=objective, n=56)
    table = truth.sets(objective)
    assert found.inference.certified
    assert found.inference.gap == 0
    assert tuple(found.inference.sets[0].indices) == best(table, 1)[0]
    assert tuple(sorted(found.indices)) == best(table, 1)[0]
    assert all(brackets(one.probability, table[tuple(one.indices)]) for one in found.inference.sets)
    orders = {key: value for key, value in truth.policy.items() if sorted(key) == sorted(found.indices)}
    assert found.inference.sets[0].best_order == found.indices
    assert tuple(found.indices) in orders


@pytest.mark.parametrize("decide", ["map", "map_set"])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("max_states", [1, 3, 9])
def test_small_budgets_stay_honest(api: Client, truth: Truth, decide: str, objective: str, max_states: int) -> None:
    found = ask(api, decide=decide, objective=objective, n=5, max_states=max_states)
    shown = found.inference.answers if decide == "map" else found.inference.sets
    table = truth.probabilities(objective) if decide == "map" else truth.sets(objective)
    assert shown
    assert found.inference.states_expanded <= max_states + 2
    assert all(brackets(one.probability, table[tuple(one.indices)]) for one in shown)
    first = table[tuple(shown[0].indices)]
    if decide == "map_set":
        assert max(table.values()) <= first + found.inference.gap + TOLERANCE
        assert found.inference.certified == (found.inference.gap == 0)
    if found.inference.certified:
        assert max(table.values()) <= first * (1 + TOLERANCE)


def test_draws(api: Client) -> None:
    greedy = ask(api)
    cold = ask(api, decide="sample", temperature=0, n=3)
    assert [draw.indices for draw in cold.inference.samples] == [greedy.indices] * 3
    assert cold.token_ids == greedy.token_ids
    one, two, other = (ask(api, decide="sample", seed=seed, n=20) for seed in (7, 7, 8))
    assert one.inference.samples == two.inference.samples
    assert one.inference.samples != other.inference.samples
    assert one.indices == one.inference.samples[0].indices


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_draws_follow_the_distribution(api: Client, truth: Truth, objective: str) -> None:
    found = ask(api, decide="sample", objective=objective, n=1000, seed=1)
    table = truth.probabilities(objective)
    common = [key for key, value in table.items() if value >= 0.01]
    draws = [tuple(draw.indices) for draw in found.inference.samples]
    counts = [draws.count(key) for key in common]
    expected = [1000 * table[key] for key in common]
    rest = 1000 - sum(expected)
    if rest > 5:
        counts.append(1000 - sum(counts))
        expected.append(rest)
    else:
        expected = [value * sum(counts) / sum(expected) for value in expected]
    assert chisquare(counts, expected).pvalue > 1e-3


def test_interaction_and_the_two_objectives(api: Client, truth: Truth) -> None:
    policy, conditional = truth.probabilities("policy"), truth.probabilities("conditional")
    first = [sum(value for key, value in policy.items() if key[0] == label) for label in range(len(SECTIONS))]
    unary = {}
    for key in policy:
        share, left = 1.0, 1.0
        for label in key:
            share *= first[label] / left
            left -= first[label]
        unary[key] = share
    divergence = sum(value * math.log(value / unary[key]) for key, value in policy.items() if value > 0)
    seen = ask(api, plan="[3]", evidence=True).inference
    assert seen.interaction.mass.lower == pytest.approx(divergence, abs=1e-3)
    assert seen.interaction.mass.upper == pytest.approx(divergence, abs=1e-3)
    assert tuple(seen.interaction.unary) == tuple(sorted(range(len(SECTIONS)), key=lambda label: -first[label])[:3])
    # Drawing from the conditional evaluates everything, forced tokens too.
    whole = ask(api, decide="sample", objective="conditional", evidence=True).inference
    distance = sum(abs(policy[key] - conditional[key]) for key in policy) / 2
    assert whole.comparison.certified
    assert whole.comparison.total_variation.lower == pytest.approx(distance, abs=TOLERANCE)
    assert whole.comparison.total_variation.upper == pytest.approx(distance, abs=TOLERANCE)
    assert whole.comparison.language_mass.upper == pytest.approx(sum(map(math.exp, truth.raw.values())), rel=1e-3)
    assert whole.comparison.disagree == (best(policy, 1) != best(conditional, 1))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_options_and_their_correction(api: Client, oracle: Oracle, objective: str) -> None:
    neutral = "Sections: "
    found = api.select_k(PROMPT, SECTIONS, 1, decide="map", objective=objective, prior=neutral)
    here, there = (oracle.truth(text, SECTIONS, 1).probabilities(objective) for text in (PROMPT, neutral))
    total = sum(here[key] / there[key] for key in here)
    assert [option.text for option in found.inference.options] == SECTIONS
    for option in found.inference.options:
        key = (option.index,)
        assert option.probability.lower == option.probability.upper == pytest.approx(here[key], rel=1e-3)
        assert option.corrected is not None
        assert option.corrected.lower == pytest.approx(here[key] / there[key] / total, rel=1e-3)
    assert 0 < found.inference.label_mass < 1
    assert len(found.plan.passes) == 2


def test_options_of_a_regex(api: Client) -> None:
    found = api.select_k(PROMPT, regex="(yes|no|maybe)( please)?", decide="map", n=6)
    assert {option.text for option in found.inference.options} >= {"yes", "no please", "maybe"}
    assert sum(answer.probability.lower for answer in found.inference.answers) == pytest.approx(1, abs=1e-6)
    assert found.text == found.inference.answers[0].text


def test_evidence_is_shown(api: Client) -> None:
    found = ask(api, plan="[3]", evidence=True)
    data = found.to_dict()
    assert sum(child["probability"] for child in data["children"]) == pytest.approx(1, abs=1e-3)
    console = Console(record=True, width=100)
    with console.capture() as shown:
        console.print(found.tree())
    assert "Method" in shown.get()
    assert found.to_dot().startswith("digraph")
    with pytest.raises(RequestError, match="evidence=True"):
        ask(api).tree()


def test_parity_dial(api: Client) -> None:
    plain = ask(api)
    off = ask(api, theta=0)
    assert (off.parity.gated_share, off.parity.agreed, off.plan.forwards) == (0, None, plain.plan.forwards)
    full = ask(api, theta=1e6)
    assert (full.parity.gated_share, full.parity.agreed) == (1, True)
    assert full.labels == plain.labels
    assert full.parity.replay_ms > 0
    assert full.usage.decoded_tokens > 0
    assert full.plan.forwards == plain.plan.forwards + full.usage.decoded_tokens


def test_calibration_marks_decisions(tiny: SGLangServer, api: Client, pool: ServerPool) -> None:
    assert all(decision.flip_risk is None for decision in ask(api).decisions)
    url = tiny.url + "/v1/select_k/calibrate"
    found = httpx.post(url, params={"replays": 6}, timeout=300, trust_env=False).json()["parity"]
    assert found["rows"] >= 18
    assert found["flips"] == 0
    assert 0 < found["logits"]["mean"] <= found["logits"]["p95"] <= found["logits"]["p99"] <= 1e-3
    for decision in ask(api).decisions:
        assert decision.flip_risk == (decision.margin <= 2 * found["logits"]["max"])
    assert (pool.cache / "calibration" / "parity.json").exists()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "greedy conditional": ({"objective": "conditional"}, "needs decide='map'"),
    "greedy n": ({"n": 3}, "evidence=true"),
    "greedy budget": ({"max_states": 5}, "max_states"),
    "temperature": ({"decide": "map", "temperature": 1}, "decide='sample'"),
    "seed": ({"seed": 1}, "decide='sample'"),
    "prior and greedy": ({"prior": "x"}, "decide='map'"),
    "prior and k": ({"decide": "map", "prior": "x"}, "k=1"),
    "theta and map": ({"decide": "map", "theta": 1}, "decide='greedy'"),
    "theta and serial": ({"plan": "serial", "theta": 1}, "other than 'serial'"),
    "plan": ({"decide": "map", "plan": "chunked"}, "plan at 'auto'"),
    "spelling": ({"decide": "map", "spelling": "any"}, "canonical"),
    "evidence of any spelling": ({"evidence": True, "spelling": "any"}, "canonical"),
    "evidence of serial": ({"evidence": True, "plan": "serial"}, "other than 'serial'"),
    "unknown rule": ({"decide": "argmax"}, "decide"),
    "unknown objective": ({"decide": "map", "objective": "joint"}, "objective"),
    "negative temperature": ({"decide": "sample", "temperature": -1}, "temperature"),
    "n zero": ({"decide": "map", "n": 0}, "n"),
    "too many draws": ({"decide": "sample", "n": 10**6}, "n"),
    "draws beyond the budget": ({"decide": "sample", "n": 1000, "max_states": 2}, "max_states"),
    "conditional draws": ({"decide": "sample", "objective": "conditional", "max_states": 9}, "whole tree"),
    "negative theta": ({"theta": -1}, "theta"),
    "empty prior": ({"decide": "map", "prior": "", "k": 1}, "no tokens"),
    "set of a regex": ({"decide": "map_set", "regex": "a|b", "labels": None, "k": 1}, "labels"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_sentence(tiny: SGLangServer, name: str) -> None:
    change, part = REFUSED[name]
    body = {"prompt": PROMPT, "labels": SECTIONS, "k": 3, **change}
    response = httpx.post(tiny.url + "/v1/select_k", json=body, timeout=60, trust_env=False)
    assert 400 <= response.status_code < 500, response.text[:300]
    message = response.json()["error"]["message"]
    assert part in message
    assert len(message) > 15
