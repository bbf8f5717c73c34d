"""One question by one arm: descend the tree, time each choice, judge what was found."""

from __future__ import annotations

import os
import time

from papers import Section
from serving import console, serving

from bench.rag.arm import Arm, Choice, Engine, SkipArmError
from bench.rag.evidence import BUDGETS, all_evidence, pack
from bench.rag.records import Question, Round
from bench.rag.tasks import Ask, Task
from sgl_compiled.errors import SglCompiledError

__all__ = ["answer", "console", "judge", "serving"]


def answer(task: Task, arm: Arm, engine: Engine, run: str, nesting: str) -> Question:
    """Let ``arm`` answer ``task``; a protocol error or a refusal ends the descent and is part of the record.

    Raises
    ------
    httpx.HTTPError
        The server is gone; nothing is recorded, so that a later run asks again.
    """
    rounds: list[Round] = []
    chosen: list[Section] = []
    status, detail = "ok", None
    level = task.root.children
    while level:
        picks: list[int] | None = [0]
        # One open section is no choice.
        if len(level) > 1:
            ask = task.ask(level)
            try:
                arm.prepare(engine, ask)
                start = time.perf_counter()
                found = arm.choose(engine, ask)
            except SkipArmError as error:
                status, detail = "skipped", str(error)
                break
            except SglCompiledError as error:
                status, detail = "error", str(error)[:500]
                break
            rounds.append(_round(ask, found, 1e3 * (time.perf_counter() - start)))
            picks = found.picks
        if picks is None:
            status, detail = "error", rounds[-1].error
            break
        opened = [level[pick] for pick in picks]
        chosen += opened
        level = [child for section in opened for child in section.children]
    return Question(
        run=run,
        dataset=task.dataset,
        nesting=nesting,
        question=task.id,
        cluster=task.cluster,
        arm=arm.name,
        status=status,  # type: ignore[arg-type]
        detail=detail,
        load_average=round(os.getloadavg()[0], 2),
        rounds=rounds,
        quality={} if status == "skipped" else judge(task, chosen, engine, failed=status != "ok"),
    )


def _round(ask: Ask, found: Choice, ms: float) -> Round:
    return Round(
        options=ask.names,
        k=ask.k,
        picks=found.picks,
        text=found.text,
        token_ids=found.token_ids,
        error=found.error,
        ms=round(ms, 2),
        output_tokens=found.output_tokens,
        passes=found.passes,
        positions=found.positions,
        prompt_tokens=found.prompt_tokens,
        cached_tokens=found.cached_tokens,
        min_margin=found.min_margin,
    )


def judge(task: Task, chosen: list[Section], engine: Engine, *, failed: bool) -> dict[str, bool]:
    """Return what was found: evidence within budgets, or all the right labels; a failure finds nothing.

    A question without text evidence has no quality.
    """
    if task.gold:
        return {"AllGold": not failed and task.gold <= {section.name for section in chosen}}
    if not task.evidence:
        return {}
    return {
        f"AllEvidence@{budget}": not failed and all_evidence(task.evidence, pack(chosen, budget, engine.cut))
        for budget in BUDGETS
    }
