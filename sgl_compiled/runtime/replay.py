"""Decisions taken both ways: the parity dial of one request, and the calibration of a server."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from sgl_compiled.control.dial import gated
from sgl_compiled.control.parity import Epsilon, Replay, measure
from sgl_compiled.errors import ServerError
from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.compile import CompiledGrammar
from sgl_compiled.plan.passes import SERIAL
from sgl_compiled.runtime.calibration import parity_setting, save_epsilon, setting
from sgl_compiled.runtime.engine import SelectEngine, Selection
from sgl_compiled.runtime.serial import reference_key

__all__ = ["Parity", "calibrate_parity", "replay_small_margins"]

LABELS = ("Introduction", "Related Work", "Method", "Method and Data", "Data", "Results", "Discussion", "Conclusion")
TEXT = "the model reads a long paper and picks sections that answer this question about data method and loss"
PLANS = ("[1,1,1]", "[1,2]", "[3]")


@dataclass(frozen=True)
class Parity:
    """What the dial did to one answer; ``agreed`` is ``None`` where no decision was gated."""

    theta: float
    gated_share: float
    replay_ms: float
    agreed: bool | None


async def replay_small_margins(engine: SelectEngine, selection: Selection, theta: float, http: Any) -> Parity:
    """Decode the answer serially if a decision's margin is below ``theta``; serial decoding's answer then holds."""
    doubtful = sum(gated(decision.margin, theta) for decision in selection.decisions)
    share = doubtful / len(selection.decisions) if selection.decisions else 0.0
    if not doubtful:
        return Parity(theta, share, 0.0, None)
    serial = Selection(selection.compiled, SERIAL, selection.prompt, selection.compiled.automaton.start)
    start = time.perf_counter()
    await engine.serial(serial, http)
    spent = 1e3 * (time.perf_counter() - start)
    selection.passes += serial.passes
    selection.decoded_tokens += serial.decoded_tokens
    agreed = serial.tokens == selection.tokens
    if not agreed:
        selection.tokens, selection.state = serial.tokens, serial.state
        # They are about another answer now.
        selection.decisions.clear()
    return Parity(theta, share, spent, agreed)


async def calibrate_parity(engine: SelectEngine, replays: int) -> Epsilon:
    """Take ``replays`` choices by compiled passes and by SGLang's own decoding, compare the legal log-probabilities.

    The server should be idle: others in the batch change the numbers, and so what is measured.

    Raises
    ------
    ServerError
        Other requests are under way.
    ModelError
        No decision with finite logits was seen.
    """
    compiled = (await engine.compiler()).compile(ActionGrammar.from_labels(LABELS, 3))
    rng = random.Random(0)
    seen: list[Replay] = []
    longest = engine.room - compiled.max_tokens - 8
    for index in range(replays):
        text = " ".join(rng.choices(TEXT.split(), k=rng.choice((16, 64, 256, 768)))) + "\nSections: "
        prompt = [int(token) for token in engine.manager.tokenizer.encode(text)][-longest:]
        selection = await engine.select(compiled, prompt, PLANS[index % len(PLANS)])
        seen += await _compare(engine, compiled, selection)
    epsilon = measure(parity_setting(setting(engine.manager.server_args)), seen)
    save_epsilon(epsilon)
    engine.epsilon = epsilon
    return epsilon


async def _compare(engine: SelectEngine, compiled: CompiledGrammar, selection: Selection) -> list[Replay]:
    """Decode the same answer serially and pair the decisions up to the first that differs."""
    if engine.manager.rid_to_state:
        raise ServerError("calibration needs an idle server, but other requests are under way; try again later")
    out = await engine.generate(
        {
            "regex": reference_key(compiled.grammar, compiled.spelling),
            "max_new_tokens": compiled.max_tokens + 1,
            "temperature": 0.0,
        },
        selection.prompt,
        None,
        return_logprob=True,
        # Behind the grammar's mask: all legal ids, renormalised, as a decision's own log-probabilities are. (Asked for
        # by id they would end the scheduler of 0.5.15 when a request without them shares the batch.)
        top_logprobs_num=max(len(decision.legal) for decision in selection.decisions),
    )
    rows = out["meta_info"]["output_top_logprobs"]
    tokens = list(out["output_ids"])
    replays = []
    for decision in selection.decisions:
        at = decision.position
        if tokens[:at] != selection.tokens[:at]:
            break
        serial = {int(entry[1]): float(entry[0]) for entry in rows[at]}
        replays.append(Replay(np.array([serial[token] for token in decision.legal]), decision.logprobs))
    return replays
