"""Arms that ask ``/v1/select_k``: the plans, the unary shortcut, and labels without JSON."""

from __future__ import annotations

import heapq
import json
import math
from collections import defaultdict
from typing import Any

from bench.rag.arm import Arm, Choice, Engine
from bench.rag.tasks import Ask
from sgl_compiled.client import Client
from sgl_compiled.runtime.schema import SelectResponse, TemplateModel

__all__ = ["PlanArm", "SequentialArm", "UnaryArm", "ranked"]


def _spent(answer: SelectResponse) -> tuple[int, int]:
    """Return forward passes and answer positions; decoding computes one position a token."""
    return answer.plan.forwards, sum(one.positions for one in answer.plan.passes) or answer.usage.decoded_tokens


class PlanArm(Arm):
    """The whole choice by one plan."""

    def __init__(self, name: str, plan: str) -> None:
        self.name = name
        self._plan = plan
        self._compiled: set[tuple[str, ...]] = set()

    def prepare(self, engine: Engine, ask: Ask) -> None:
        engine.warm(ask.prompt())
        # Behind another prompt: the plan's grammar gets compiled, and nothing of the answer gets cached.
        labels = tuple(ask.names)
        if labels not in self._compiled:
            with Client(engine.url) as client:
                client.select_k("-", ask.names, ask.k, plan=self._plan)
            self._compiled.add(labels)

    def choose(self, engine: Engine, ask: Ask) -> Choice:
        with Client(engine.url) as client:
            answer = client.select_k(ask.prompt(), ask.names, ask.k, plan=self._plan)
        passes, positions = _spent(answer)
        return Choice(
            picks=answer.indices,
            text=answer.text,
            output_tokens=answer.usage.decoded_tokens,
            passes=passes,
            positions=positions,
            token_ids=answer.token_ids,
            prompt_tokens=answer.usage.prompt_tokens,
            cached_tokens=answer.usage.cached_tokens,
            min_margin=answer.min_margin,
        )


class SequentialArm(Arm):
    """One label after the other, each on a line of its own, without JSON around them."""

    name = "sequential"

    def prepare(self, engine: Engine, ask: Ask) -> None:
        engine.warm(ask.prompt("one a line:\n").rstrip(" "))

    def choose(self, engine: Engine, ask: Ask) -> Choice:
        prompt = ask.prompt("one a line:\n").rstrip(" ")
        template = TemplateModel(separator="", suffix="\n").model_dump()
        left = list(ask.names)
        picks: list[int] = []
        passes = positions = 0
        with Client(engine.url) as client:
            for _ in range(ask.k):
                answer = client.select_k(prompt, left, 1, template=template)
                picks.append(ask.names.index(answer.labels[0]))
                left.remove(answer.labels[0])
                prompt += answer.text
                spent = _spent(answer)
                passes, positions = passes + spent[0], positions + spent[1]
        return Choice(picks, "".join(ask.names[pick] + "\n" for pick in picks), passes=passes, positions=positions)


class UnaryArm(Arm):
    """The k most probable labels of the *first* slot: what a score for each label by itself would choose.

    Labels that begin with the same token are told apart by asking again among them, the most probable group first, and
    only as far as the best ``k`` need it.
    """

    name = "unary"

    def prepare(self, engine: Engine, ask: Ask) -> None:
        engine.warm(ask.prompt())

    def choose(self, engine: Engine, ask: Ask) -> Choice:
        spent: list[tuple[int, int]] = []

        def score(names: list[str]) -> list[tuple[float, list[str]]]:
            with Client(engine.url) as client:
                answer = client.select_k(ask.prompt(), names, 1, plan="chunked")
            spent.append(_spent(answer))
            return _groups(answer, names, engine.tokenizer)

        order = ranked(ask.names, ask.k, score)
        passes, positions = (sum(column) for column in zip(*spent, strict=True))
        return Choice([ask.names.index(name) for name in order], ", ".join(order), passes=passes, positions=positions)


def ranked(names: list[str], k: int, score: Any) -> list[str]:
    """Return the ``k`` most probable names, where ``score(group)`` splits a group into parts with probabilities.

    Parameters
    ----------
    names : list of str
    k : int
    score : callable
        Takes two or more names, returns ``(probability, names)`` pairs that partition them.
    """
    # Lowest place in the list first on a tie.
    heap: list[tuple[float, int, list[str]]] = [(0.0, 0, list(names))]
    order: list[str] = []
    while heap and len(order) < k:
        cost, _, group = heapq.heappop(heap)
        if len(group) == 1:
            order += group
            continue
        for probability, part in score(group):
            part_cost = cost - math.log(probability) if probability > 0 else math.inf
            heapq.heappush(heap, (part_cost, names.index(part[0]), part))
    return order


def _groups(answer: SelectResponse, names: list[str], tokenizer: Any) -> list[tuple[float, list[str]]]:
    """Split the names by the token each takes at the first decision, with that token's probability."""
    decision = answer.decisions[0]
    parts: dict[int, list[str]] = defaultdict(list)
    for name in names:
        text = answer.text.replace(_json(answer.labels[0]), _json(name))
        ids = tokenizer.encode(text, add_special_tokens=False)
        parts[ids[decision.position]].append(name)
    probabilities = {candidate.token_id: candidate.probability for candidate in decision.candidates}
    assert set(parts) == set(probabilities), "the tokenizer is not the server's"
    return [(probabilities[token], part) for token, part in parts.items()]


def _json(label: str) -> str:
    return json.dumps(label, ensure_ascii=False)
