"""Random automata, models that answer from a hash of the tokens before them, and enumeration as the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_compiled.control.evidence import Evidence
from sgl_compiled.control.expand import expansion
from sgl_compiled.control.leaves import leaves
from sgl_compiled.control.node import Objective, Path
from sgl_compiled.control.outcomes import Outcomes
from sgl_compiled.control.walk import Row, forced
from sgl_compiled.grammar.canonical import EnumeratedSlots
from sgl_compiled.grammar.form import SlotForm
from sgl_compiled.grammar.layout import TreeLayout, decisions_ahead, unfold
from sgl_compiled.grammar.slots import SegmentTrie, SlotAutomaton
from sgl_compiled.grammar.trie import TrieAutomaton

__all__ = [
    "STOPS",
    "VOCABULARY",
    "Answer",
    "Toy",
    "ToyModel",
    "brackets",
    "enumerate_answers",
    "enumerated_toys",
    "instances",
    "one_token_slots",
    "slot_toys",
    "sweep",
    "toys",
    "trie_toys",
]

VOCABULARY = 14
STOPS = frozenset({12, 13})


class ToyModel:
    """Logits of a full vocabulary behind any tokens, the same every time."""

    def __init__(self, seed: int, scale: float) -> None:
        self.seed, self.scale = seed, scale

    def logits(self, path: Path) -> np.ndarray[Any, np.dtype[np.float64]]:
        return self.scale * np.random.default_rng((self.seed, *path)).standard_normal(VOCABULARY)

    def rows(self, layout: TreeLayout, path: Path) -> list[Row]:
        paths: dict[int, Path] = {-1: path}
        for index, (token, parent) in enumerate(zip(layout.tokens, layout.parents, strict=True)):
            paths[index] = (*paths[parent], token)
        out = []
        for row in layout.rows:
            logits = self.logits(paths[row.node])
            out.append(Row(logits[list(row.legal)], float(np.log(np.exp(logits).sum()))))
        return out


class Answer(NamedTuple):
    """One answer with its probabilities by plain multiplication."""

    path: Path
    state: Any
    policy: float
    raw: float


def enumerate_answers(automaton: Any, model: ToyModel, stops: frozenset[int] = STOPS) -> list[Answer]:
    """Every answer behind the forced opening."""

    def below(path: Path, state: Any, policy: float, raw: float) -> Iterator[Answer]:
        following = automaton.step(state)
        if not following:
            yield Answer(path, state, policy, raw)
            return
        full = np.exp(model.logits(path))
        full /= full.sum()
        legal = sorted({*following, *stops}) if automaton.accepts(state) else sorted(following)
        allowed = sum(full[token] for token in legal)
        ending = sum(full[token] for token in legal if token not in following)
        if ending:
            yield Answer(path, state, policy * ending / allowed, raw * ending)
        for token, after in following.items():
            yield from below((*path, token), after, policy * full[token] / allowed, raw * full[token])

    opening, state = forced(automaton, automaton.start)
    return list(below(opening, state, 1.0, 1.0))


class Toy(NamedTuple):
    """An automaton with a model."""

    automaton: Any
    model: ToyModel

    def evidence(self) -> Evidence:
        return Evidence(self.automaton, STOPS)

    def outcomes(self) -> Outcomes:
        return Outcomes(self.automaton)

    def evaluate(
        self, evidence: Evidence, prefixes: Sequence[Path], objective: Objective = "policy", actions: int = 1
    ) -> None:
        layout = expansion(evidence, prefixes, max_positions=10**6, actions=actions, objective=objective)
        evidence.absorb(layout, self.model.rows(layout, evidence.root.path))

    def full(self, objective: Objective = "conditional") -> Evidence:
        """Everything evaluated."""
        evidence = self.evidence()
        self.evaluate(evidence, [evidence.root.path], objective, actions=10**6)
        return evidence

    def partly(self, seed: int, passes: int, objective: Objective = "conditional") -> Evidence:
        """Evaluate the first action and a few random open prefixes."""
        evidence, rng = self.evidence(), np.random.default_rng(seed)
        self.evaluate(evidence, [evidence.root.path], objective)
        for _ in range(passes):
            waiting = [leaf.path for leaf in leaves(evidence, objective) if not leaf.complete]
            if not waiting:
                break
            path = waiting[int(rng.integers(len(waiting)))]
            node = evidence.node(path)
            if len(node.legal) > 1 and rng.random() < 0.5:
                # One decision alone, as the chunked plan sends it: cells may then end inside a label.
                layout = unfold(self.automaton, node.state, decisions_ahead(1), stop_ids=STOPS, max_positions=10**6)
                evidence.absorb(layout, self.model.rows(layout, path), path)
            else:
                self.evaluate(evidence, [path], objective)
        return evidence

    def answers(self) -> list[Answer]:
        return enumerate_answers(self.automaton, self.model)


models = st.builds(ToyModel, st.integers(0, 2**32), st.sampled_from([0.3, 1.0, 3.0]))


@st.composite
def slot_toys(draw: st.DrawFn, max_labels: int = 5, max_slots: int = 3, constraints: tuple[str, ...] = ()) -> Toy:
    """Slot automata with overlapping multi-token labels, forced openings and separators."""
    n_slots = draw(st.integers(1, max_slots))
    constraint = draw(st.sampled_from(constraints or ("free", "distinct", "increasing", "nondecreasing")))
    least = n_slots if constraint in ("distinct", "increasing") else 1
    n_labels = draw(st.integers(least, max(least, max_labels if n_slots < 3 else max_labels - 1)))
    labels = tuple(f"label{index}" for index in range(n_labels))
    form = SlotForm(("",) * (n_slots + 1), (labels,) * n_slots, constraint)  # type: ignore[arg-type]
    head = draw(st.sampled_from([[], [10]]))
    word = st.lists(st.integers(0, draw(st.sampled_from([2, 5]))), min_size=1, max_size=3)
    words = draw(st.lists(word, min_size=n_labels, max_size=n_labels, unique_by=tuple))
    single = draw(st.booleans())
    tries = []
    for slot in range(n_slots):
        last = slot == n_slots - 1
        # A closing token that stands nowhere else makes any segments prefix-free.
        closing = [] if last and draw(st.booleans()) else [11]
        segments = [[*head, index] if single else [*head, *words[index], *closing] for index in range(n_labels)]
        trie = SegmentTrie.build(segments)
        assert trie is not None
        tries.append(trie)
    return Toy(SlotAutomaton(form, tries), draw(models))


def one_token_slots(n_labels: int, n_slots: int, seed: int, scale: float, constraint: Any = "distinct") -> Toy:
    """Slots of single-token labels: the decision states are the label prefixes."""
    form = SlotForm(("",) * (n_slots + 1), (tuple(map(str, range(n_labels))),) * n_slots, constraint)
    trie = SegmentTrie.build([[index] for index in range(n_labels)])
    assert trie is not None
    return Toy(SlotAutomaton(form, [trie] * n_slots), ToyModel(seed, scale))


@st.composite
def trie_toys(draw: st.DrawFn) -> Toy:
    """Answers without slots, some of them prefixes of others."""
    answers = draw(
        st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=9, unique_by=tuple)
    )
    return Toy(TrieAutomaton(answers), draw(models))


@st.composite
def enumerated_toys(draw: st.DrawFn) -> Toy:
    """Slots whose spellings do not factorise: random tokens for every sequence of labels."""
    n_labels, n_slots = draw(st.sampled_from([(2, 2), (3, 2), (3, 3), (4, 2)]))
    form = SlotForm(("",) * (n_slots + 1), (tuple(map(str, range(n_labels))),) * n_slots, "distinct")
    sequences = list(form.sequences())
    spellings = list(product(range(4), repeat=4))
    picked = draw(st.lists(st.sampled_from(spellings), min_size=len(sequences), max_size=len(sequences), unique=True))
    return Toy(EnumeratedSlots(form, sequences, [list(ids) for ids in picked]), draw(models))


toys = st.one_of(slot_toys(), trie_toys(), enumerated_toys())


instances = pytest.mark.parametrize("instances", [30, pytest.param(2_000, marks=pytest.mark.long)])
"""Size of a sweep: small by default, large with ``-m long``."""


def sweep(instances: int, check: Callable[..., None], **strategies: st.SearchStrategy[Any]) -> None:
    """Run ``check`` on so many random instances."""
    settings(max_examples=instances, deadline=None)(given(**strategies)(check))()


def brackets(bounds: tuple[float, float], truth: float, tolerance: float = 1e-9) -> bool:
    """Whether the truth lies within bounds, rounding aside."""
    return bounds[0] - tolerance <= truth <= bounds[1] + tolerance
