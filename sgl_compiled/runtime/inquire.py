"""Questions about whole answers, put to the server pass by pass until they are answered or the budget ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np

from sgl_compiled.control.evidence import Evidence
from sgl_compiled.control.expand import expansion
from sgl_compiled.control.inquiry import Distribution, Draws, Inquiry, TopSequences
from sgl_compiled.control.leaves import leaves
from sgl_compiled.control.mapset import SetPosterior, SetSearch
from sgl_compiled.control.node import FloatArray, Node, Objective, Path
from sgl_compiled.control.options import Options, options
from sgl_compiled.control.outcomes import Outcomes
from sgl_compiled.control.sample import Samples
from sgl_compiled.control.sequences import Ranking, ranking
from sgl_compiled.control.walk import Decision, Row, decide
from sgl_compiled.errors import RequestError, ServerError
from sgl_compiled.grammar.compile import CompiledGrammar
from sgl_compiled.grammar.layout import TreeLayout
from sgl_compiled.plan.passes import Plan
from sgl_compiled.runtime.engine import SelectEngine, Selection

__all__ = ["Findings", "Question", "inquire", "look_back"]

FIRST_BATCH = 16
"""Prefixes of the first pass behind the root; each further pass takes twice as many, so that passes stay few and at
most about half of what is evaluated was not needed."""

_outcomes: WeakKeyDictionary[CompiledGrammar, Outcomes] = WeakKeyDictionary()


@dataclass(frozen=True)
class Question:
    """What to find out about the answers behind a prompt.

    Attributes
    ----------
    decide : {"greedy", "map", "map_set", "sample"}
    objective : {"policy", "conditional"}
    n : int
        How many answers, sets or draws.
    temperature, seed
        For draws.
    max_states : int
        Decision states to evaluate at most; those on the way to one whole answer come on top where that is needed.
    prior : tuple of int or None
        Token ids of a neutral prompt.
    """

    decide: Literal["greedy", "map", "map_set", "sample"]
    objective: Objective = "policy"
    n: int = 1
    temperature: float = 1.0
    seed: int = 0
    max_states: int = 512
    prior: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Findings:
    """A question, and the evaluated tree that answers it; ``None`` stands for what was not asked."""

    question: Question
    selection: Selection
    evidence: Evidence
    outcomes: Outcomes
    ranking: Ranking | None = None
    sets: SetPosterior | None = None
    samples: Samples | None = None
    neutral: Options | None = None

    @property
    def expanded(self) -> int:
        """Decision states evaluated."""
        return SetSearch(self.evidence, self.outcomes).expanded


async def inquire(
    engine: SelectEngine, compiled: CompiledGrammar, prompt: Sequence[int], question: Question, http: Any = None
) -> Findings:
    """Answer a question that is not ``"greedy"``.

    Raises
    ------
    RequestError
        Prompt empty or too long, or a question that this grammar or budget does not allow.
    GrammarTooLargeError
        Looking one action ahead does not fit into one pass.
    NumericalError
        The model returned NaN.
    """
    outcomes = await asyncio.to_thread(_outcomes_of, compiled)
    _check(question, compiled, outcomes)
    tree = _Tree(engine, compiled, prompt, http)
    inquiry = _inquiry(question, tree.evidence, outcomes)
    neutral: Options | None = None
    engine.active += 1
    try:
        await tree.resolve(inquiry, outcomes, question.max_states)
        if question.decide in ("map", "map_set"):
            await tree.reach_an_answer(question.objective)
        if question.prior is not None:
            other = _Tree(engine, compiled, question.prior, http)
            await other.resolve(_inquiry(question, other.evidence, outcomes), outcomes, question.max_states)
            tree.selection.passes += other.selection.passes
            neutral = options(other.evidence, outcomes, question.objective)
    finally:
        engine.active -= 1
    return await asyncio.to_thread(_conclude, question, tree, inquiry, outcomes, neutral)


def look_back(question: Question, selection: Selection) -> Findings:
    """Read a greedy choice's own passes; nothing is sent."""
    compiled = selection.compiled
    evidence = Evidence(compiled.automaton, compiled.stop_ids)
    for path, layout, rows in selection.seen:
        evidence.absorb(layout, rows, path)
    outcomes = _outcomes_of(compiled)
    return Findings(question, selection, evidence, outcomes, ranking(evidence, question.n, question.objective))


class _Tree:
    """An answer tree that grows with every pass."""

    def __init__(self, engine: SelectEngine, compiled: CompiledGrammar, prompt: Sequence[int], http: Any) -> None:
        engine.check_prompt(compiled, prompt)
        engine.prefixes.add(prompt)
        self.evidence = Evidence(compiled.automaton, compiled.stop_ids)
        root = self.evidence.root
        self.selection = Selection(compiled, Plan("batches"), list(prompt), root.state, list(root.path))
        self._engine = engine
        self._http = http

    async def resolve(self, inquiry: Inquiry, outcomes: Outcomes, max_states: int) -> None:
        """Evaluate what the inquiry asks for until it asks no more or ``max_states`` decision states are known."""
        batch = 1
        while True:
            left = max_states - SetSearch(self.evidence, outcomes).expanded
            # Other requests share this event loop.
            prefixes = await asyncio.to_thread(inquiry.next, min(batch, left)) if left > 0 else ()
            if not prefixes:
                return
            await self._evaluate(prefixes, inquiry.objective)
            batch = max(FIRST_BATCH, 2 * batch)

    async def reach_an_answer(self, objective: Objective) -> None:
        """Where the budget ended before any answer did, go on from the deepest prefix until one does."""
        cells = leaves(self.evidence, objective)
        while not any(cell.complete for cell in cells):
            deepest = max(cells, key=lambda cell: (len(cell.path), cell.mass(objective)))
            await self._evaluate((deepest.path,), objective)
            cells = leaves(self.evidence, objective)

    async def _evaluate(self, prefixes: tuple[Path, ...], objective: Objective) -> None:
        room = self._engine.positions(len(self.selection.prompt) + len(self.selection.tokens))
        layout: TreeLayout = await asyncio.to_thread(
            expansion, self.evidence, prefixes, max_positions=room, objective=objective
        )
        rows = await self._engine.evaluate(self.selection, layout, self._http)
        if rows is None:
            raise ServerError("the prompt did not stay in the radix cache between two passes; the server is too full")
        new = self.evidence.absorb(layout, rows)
        assert new == len(layout.rows) > 0


def _outcomes_of(compiled: CompiledGrammar) -> Outcomes:
    known = _outcomes.get(compiled)
    if known is None:
        known = _outcomes[compiled] = Outcomes.of(compiled)
    return known


def _check(question: Question, compiled: CompiledGrammar, outcomes: Outcomes) -> None:
    if question.decide == "map_set" and not compiled.grammar.labels:
        raise RequestError("decide='map_set' finds sets of labels; send 'labels', or use decide='map'")
    if question.prior is not None and outcomes.n_slots != 1:
        raise RequestError("prior corrects the options of a single choice; use it with k=1")
    if question.decide == "sample" and question.objective == "conditional" and question.temperature > 0:
        _require(outcomes.states, question, "drawing from the conditional needs the whole tree")


def _require(states: int, question: Question, why: str) -> None:
    if states > question.max_states:
        raise RequestError(
            f"{why}: {states} decision states, but max_states is {question.max_states}; raise it, use fewer labels or "
            "draws, or objective='policy'"
        )


def _inquiry(question: Question, evidence: Evidence, outcomes: Outcomes) -> Inquiry:
    if question.decide == "map_set":
        return SetSearch(evidence, outcomes, question.objective)
    if question.decide == "sample":
        return Draws(evidence, question.n, question.temperature, question.seed, question.objective)
    # One slot of labels is one pass in any case; a regex may be a deep tree of which only the top is wanted.
    if question.prior is not None or (outcomes.labelled and outcomes.n_slots == 1):
        return Distribution(evidence, question.objective)
    return TopSequences(evidence, question.n, question.objective)


def _conclude(
    question: Question, tree: _Tree, inquiry: Inquiry, outcomes: Outcomes, neutral: Options | None
) -> Findings:
    """Take the first answer found as the choice."""
    evidence = tree.evidence
    found = Findings(question, tree.selection, evidence, outcomes, neutral=neutral)
    if isinstance(inquiry, Draws):
        samples = inquiry.result()
        if not samples.complete:
            _require(question.max_states + len(samples.missing), question, "the draws need more states")
        found = Findings(question, tree.selection, evidence, outcomes, samples=samples)
        path = samples.draws[0].path
    elif isinstance(inquiry, SetSearch):
        sets = inquiry.posterior(question.n)
        found = Findings(question, tree.selection, evidence, outcomes, sets=sets)
        assert sets.top[0].best is not None
        path = sets.top[0].best
    else:
        ranked = ranking(evidence, question.n, question.objective)
        found = Findings(question, tree.selection, evidence, outcomes, ranking=ranked, neutral=neutral)
        path = ranked.top[0].path
    selection, end = tree.selection, evidence.node(path)
    selection.decisions = _decisions(evidence, path)
    selection.tokens, selection.state, selection.complete = list(path), end.state, True
    return found


def _decisions(evidence: Evidence, path: Path) -> list[Decision]:
    """Return the decisions along an answer, each with the token that the answer takes."""
    node: Node = evidence.root
    out: list[Decision] = []
    for token in (*path[len(node.path) :], None):
        if len(node.legal) > 1 and node.logits is not None:
            out.append(
                decide(
                    Row(node.logits, node.lse),
                    node.legal,
                    position=len(node.path),
                    action=evidence.automaton.actions(node.state),
                    state=node.state,
                    choose=partial(_taken, node, token),
                )
            )
        if token is not None:
            node = evidence.child(node, token)
    return out


def _taken(node: Node, token: int | None, logprobs: FloatArray) -> int:
    """Index of a token among the legal ids; the end of the answer is its most probable stop id."""
    if token is not None:
        return node.legal.index(token)
    ends = np.array([legal not in node.following for legal in node.legal])
    return int(np.where(ends, logprobs, -np.inf).argmax())
