"""Numbers of compiled grammars on a real tokenizer, against all answers encoded and multiplied out one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from itertools import permutations
from math import exp, log
from typing import Any, NamedTuple

import numpy as np
import pytest
from tokenizers_available import load

from sgl_compiled.control.conditional import compare
from sgl_compiled.control.evidence import Evidence
from sgl_compiled.control.expand import expansion
from sgl_compiled.control.interaction import interaction
from sgl_compiled.control.mapset import SetSearch
from sgl_compiled.control.node import Objective, Path
from sgl_compiled.control.options import options
from sgl_compiled.control.outcomes import Outcomes
from sgl_compiled.control.sequences import ranking
from sgl_compiled.control.walk import Row
from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.compile import CompiledGrammar, compile_grammar
from sgl_compiled.grammar.tokenizer import TokenizerInfo

SECTIONS = [
    "Introduction",
    "Related Work",
    "Data",
    "Data Collection",
    "Results",
    "Results and Discussion",
    "Model",
    "A",
]
NUMBERS = [str(number) for number in range(1, 21)]
CLASSES = 251
VOCABULARY = 49_152


class Model:
    """Full-vocabulary logits behind any tokens; ids that agree modulo CLASSES share one."""

    def __init__(self, seed: int, scale: float) -> None:
        self.seed, self.scale = seed, scale
        self._counts = np.bincount(np.arange(VOCABULARY) % CLASSES, minlength=CLASSES)

    @cache  # noqa: B019
    def classes(self, path: Path) -> tuple[np.ndarray[Any, np.dtype[np.float64]], float]:
        logits = self.scale * np.random.default_rng((self.seed, *path)).standard_normal(CLASSES)
        return logits, float(np.log((self._counts * np.exp(logits)).sum()))

    def row(self, path: Path, legal: Sequence[int]) -> Row:
        logits, lse = self.classes(path)
        return Row(logits[np.array(legal) % CLASSES], lse)

    def logprob(self, path: Path, token: int) -> float:
        logits, lse = self.classes(path)
        return float(logits[token % CLASSES]) - lse


class Truth(NamedTuple):
    policy: dict[tuple[int, ...], float]
    raw: dict[tuple[int, ...], float]
    paths: dict[tuple[int, ...], Path]


@cache
def tokenizer() -> TokenizerInfo:
    return TokenizerInfo.from_tokenizer(load("smollm2"), vocab_size=VOCABULARY, stop_ids=(2,))


def enumerate_by_encoding(labels: Sequence[str], k: int, template: str, model: Model) -> Truth:
    """Encode every answer; legal is what some answer continues with."""
    shape = {"json": ('["', '", "', '"]'), "raw": ("", ", ", "")}[template]
    sequences = list(permutations(range(len(labels)), k))
    texts = [shape[0] + shape[1].join(labels[i] for i in chosen) + shape[2] for chosen in sequences]
    spelled = [tuple(ids) for ids in load("smollm2")(texts, add_special_tokens=False)["input_ids"]]
    following: defaultdict[Path, set[int]] = defaultdict(set)
    for ids in spelled:
        for end in range(len(ids)):
            following[ids[:end]].add(ids[end])
    start = 0
    while len(following[spelled[0][:start]]) == 1 and spelled[0][:start] not in spelled:
        start += 1
    policy, raw = {}, {}
    for chosen, ids in zip(sequences, spelled, strict=True):
        p = q = 0.0
        for end in range(start, len(ids) + 1):
            head = ids[:end]
            legal = set(following.get(head, ()))
            if end == len(ids) and not legal:
                break
            if head in ends(spelled):
                legal.add(2)
            token = 2 if end == len(ids) else ids[end]
            q += model.logprob(head, token)
            p += model.logprob(head, token) - log(sum(exp(model.logprob(head, t)) for t in legal))
        policy[chosen], raw[chosen] = exp(p), exp(q)
    return Truth(policy, raw, dict(zip(sequences, spelled, strict=True)))


def ends(spelled: list[Path], _cache: dict[int, set[Path]] = {}) -> set[Path]:  # noqa: B006
    if id(spelled) not in _cache:
        _cache.clear()
        _cache[id(spelled)] = set(spelled)
    return _cache[id(spelled)]


def evaluate(
    evidence: Evidence, model: Model, prefixes: Sequence[Path], objective: Objective, actions: int = 1
) -> None:
    layout = expansion(evidence, prefixes, max_positions=10**6, actions=actions, objective=objective)
    paths: list[Path] = [evidence.root.path]
    for token, parent in zip(layout.tokens, layout.parents, strict=True):
        paths.append((*paths[parent + 1], token))
    evidence.absorb(layout, [model.row(paths[row.node + 1], row.legal) for row in layout.rows])


CASES = [
    pytest.param(SECTIONS, 3, "json", id="sections-json-3"),
    pytest.param(SECTIONS, 2, "raw", id="sections-raw-2"),
    pytest.param(SECTIONS, 1, "raw", id="sections-raw-1"),
    pytest.param(NUMBERS[:8], 3, "json", id="numbers-json-3"),
    pytest.param(NUMBERS, 3, "json", id="6840-sequences"),
]


def compiled(labels: Sequence[str], k: int, template: str) -> CompiledGrammar:
    return compile_grammar(ActionGrammar.from_labels(labels, k, template=template), tokenizer())


@pytest.mark.parametrize("labels, k, template", CASES)
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_all_numbers_equal_enumeration(labels: list[str], k: int, template: str, scale: float) -> None:
    model = Model(17, scale)
    truth = enumerate_by_encoding(labels, k, template, model)
    grammar = compiled(labels, k, template)
    outcomes = Outcomes.of(grammar)
    evidence = Evidence(grammar.automaton, grammar.stop_ids)
    evaluate(evidence, model, [evidence.root.path], "conditional", actions=k)
    total = sum(truth.raw.values())
    expected: dict[Objective, dict[tuple[int, ...], float]] = {
        "policy": truth.policy,
        "conditional": {chosen: mass / total for chosen, mass in truth.raw.items()},
    }
    assert sum(truth.policy.values()) == pytest.approx(1.0)
    for objective, distribution in expected.items():
        found = ranking(evidence, 10**6, objective)
        assert len(found.top) == len(distribution) == found.certified
        for sequence in found.top:
            chosen = outcomes.labels(sequence.state)
            assert sequence.path == truth.paths[chosen]
            assert sequence.probability.exact
            assert abs(sequence.probability.lower - distribution[chosen]) < 1e-6
            assert sequence.raw_logprob is not None
            assert sequence.raw_logprob == pytest.approx(log(truth.raw[chosen]))
        posterior: defaultdict[tuple[int, ...], float] = defaultdict(float)
        for chosen, probability in distribution.items():
            posterior[tuple(sorted(chosen))] += probability
        sets = SetSearch(evidence, outcomes, objective).posterior(10)
        assert sets.certified and sets.expanded == sets.states
        assert sets.top[0].labels == max(posterior, key=posterior.__getitem__)
        for entry in sets.top:
            assert abs(entry.probability.lower - posterior[entry.labels]) < 1e-6
        if k == 1:
            for label, bounds in options(evidence, outcomes, objective).probabilities.items():
                assert bounds.exact and abs(bounds.lower - distribution[(label,)]) < 1e-6
    found = compare(evidence)
    distance = sum(abs(expected["policy"][c] - expected["conditional"][c]) for c in truth.policy) / 2
    assert abs(found.total_variation.lower - distance) < 1e-6 and found.total_variation.exact
    first: defaultdict[int, float] = defaultdict(float)
    for chosen, probability in truth.policy.items():
        first[chosen[0]] += probability
    mass = 0.0
    for chosen, probability in truth.policy.items():
        projection = 1.0
        for slot, label in enumerate(chosen):
            projection *= first[label] / sum(w for other, w in first.items() if other not in chosen[:slot])
        mass += probability * log(probability / projection)
    assert interaction(evidence, outcomes).mass == pytest.approx((mass, mass), abs=1e-6)


@pytest.mark.parametrize("labels, k, template", CASES)
@pytest.mark.parametrize("objective", ["policy", "conditional"])
def test_staged_search_finds_the_set(labels: list[str], k: int, template: str, objective: Objective) -> None:
    for seed in range(3):
        model = Model(seed, 3.0)
        truth = enumerate_by_encoding(labels, k, template, model)
        masses = truth.policy if objective == "policy" else truth.raw
        posterior: defaultdict[tuple[int, ...], float] = defaultdict(float)
        for chosen, probability in masses.items():
            posterior[tuple(sorted(chosen))] += probability / sum(masses.values())
        grammar = compiled(labels, k, template)
        evidence = Evidence(grammar.automaton, grammar.stop_ids)
        search = SetSearch(evidence, Outcomes.of(grammar), objective)
        found = search.run(lambda p, e=evidence, m=model: evaluate(e, m, p, objective), batch=20, max_states=10**6)
        assert found.certified and found.expanded <= found.states
        assert found.top[0].labels == max(posterior, key=posterior.__getitem__)
        for entry in found.top:
            assert entry.probability.lower - 1e-6 <= posterior[entry.labels] <= entry.probability.upper + 1e-6
        if k == 3 and len(labels) == 20 and objective == "policy":
            assert found.states == 1 + 20 + 380 and found.expanded < found.states
