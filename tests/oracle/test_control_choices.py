"""The worked examples of docs/probabilities.md, SGLang's three methods among them, recomputed."""

from __future__ import annotations

from math import log
from pathlib import Path

import numpy as np
import pytest

from sgl_compiled.control.conditional import compare
from sgl_compiled.control.evidence import Evidence
from sgl_compiled.control.expand import expansion
from sgl_compiled.control.node import Objective
from sgl_compiled.control.options import Options, corrected, options
from sgl_compiled.control.outcomes import Outcomes
from sgl_compiled.control.walk import Row
from sgl_compiled.grammar.trie import TrieAutomaton

PAGE = (Path(__file__).parents[2] / "docs" / "probabilities.md").read_text()
HERE = {"skill": [0.6, 0.01], "cloud": [0.3]}
NEUTRAL = {"skill": [0.02, 0.05], "cloud": [0.2]}
LONG = {"yes": [0.6], "long": [0.1, *[0.99] * 5]}


def evaluate(chances: dict[str, list[float]]) -> Evidence:
    """Options without a common token."""
    spelled, token = [], 0
    for values in chances.values():
        spelled.append(list(range(token, token + len(values))))
        token += len(values)
    probability = {
        i: p for ids, values in zip(spelled, chances.values(), strict=True) for i, p in zip(ids, values, strict=True)
    }
    evidence = Evidence(TrieAutomaton(spelled), frozenset({99}))
    layout = expansion(evidence, [()], max_positions=99, actions=9, objective="conditional")
    evidence.absorb(layout, [Row(np.log([probability[t] for t in row.legal]), 0.0) for row in layout.rows])
    return evidence


def read(chances: dict[str, list[float]], objective: Objective) -> Options:
    evidence = evaluate(chances)
    return options(evidence, Outcomes(evidence.automaton), objective)


@pytest.mark.parametrize(
    "objective, plain, after",
    [
        ("policy", "**skill 0.667**, cloud 0.333", "**skill 0.952**, cloud 0.048"),
        ("conditional", "skill 0.020, **cloud 0.980**", "**skill 0.800**, cloud 0.200"),
    ],
)
def test_ours(objective: Objective, plain: str, after: str) -> None:
    found = read(HERE, objective)
    neutral = read(NEUTRAL, objective)
    values = [found.probabilities[label].lower for label in (0, 1)]
    assert plain.replace("*", "") == f"skill {values[0]:.3f}, cloud {values[1]:.3f}"
    values = [corrected(found, neutral)[label].lower for label in (0, 1)]
    assert after.replace("*", "") == f"skill {values[0]:.3f}, cloud {values[1]:.3f}"
    assert plain in PAGE and after in PAGE
    assert f"`skill` has {neutral.probabilities[0].lower:.3f} behind the neutral prompt" in PAGE


def test_distance() -> None:
    assert f"({compare(evaluate(HERE)).total_variation.lower:.3f} in the example)" in PAGE


def test_length_bias() -> None:
    values = [read(LONG, objective).probabilities[0].lower for objective in ("policy", "conditional")]
    assert f"The policy gives `yes` {values[0]:.3f}, the conditional {values[1]:.3f}" in PAGE


def score(
    method: str, chances: dict[str, list[float]], neutral: dict[str, list[float]] | None = None
) -> tuple[str, dict]:  # type: ignore[type-arg]
    choices = pytest.importorskip("sglang.lang.choices", reason="SGLang is not installed")
    inputs = [[[log(p), i, None] for i, p in enumerate(values)] for values in chances.values()]
    found = getattr(choices, method)(
        choices=list(chances),
        normalized_prompt_logprobs=[float(np.mean([t[0] for t in option])) for option in inputs],
        input_token_logprobs=inputs,
        output_token_logprobs=[[] for _ in chances],
        unconditional_token_logprobs=None
        if neutral is None
        else [[[None if i == 0 else log(p), i, None] for i, p in enumerate(v)] for v in neutral.values()],
    )
    return found.decision, found.meta_info


def test_sglang() -> None:
    decision, info = score("token_length_normalized", HERE)
    skill, cloud = info["normalized_prompt_logprobs"]
    assert decision == "cloud" and f"skill {skill:.3f}, **cloud {cloud:.3f}**" in PAGE
    assert score("greedy_token_selection", HERE)[0] == "skill"
    decision, info = score("unconditional_likelihood_normalized", HERE, NEUTRAL)
    skill, cloud = info["normalized_unconditional_prompt_logprobs"]
    assert decision == "skill" and f"**skill {skill:.3f}**, cloud {cloud:.3f}" in PAGE
    decision, info = score("token_length_normalized", LONG)
    yes, long = info["normalized_prompt_logprobs"]
    assert decision == "long" and f"({long:.3f} against {yes:.3f})" in PAGE
