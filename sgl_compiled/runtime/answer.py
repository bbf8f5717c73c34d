"""Between the HTTP contract and the engine: request to grammar and prompt, selection to response."""

from __future__ import annotations

from typing import Any

import numpy as np

from sgl_compiled.control.parity import Epsilon
from sgl_compiled.control.walk import Decision
from sgl_compiled.errors import RequestError
from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.form import Template
from sgl_compiled.grammar.tokenizer import TokenizerInfo
from sgl_compiled.runtime.engine import Selection
from sgl_compiled.runtime.inquire import Question
from sgl_compiled.runtime.schema import (
    CandidateModel,
    CandidatePlanModel,
    DecisionModel,
    PassModel,
    PlanModel,
    SelectRequest,
    SelectResponse,
    TemplateModel,
    UsageModel,
)

__all__ = ["read_grammar", "read_prompt", "read_question", "write_response"]


SHOWN_PLANS = 6

MAX_CANDIDATES = 1_000
"""Legal ids of one decision that a response lists."""

MAX_LISTED = 20_000
"""Legal ids that a response lists in all."""


def read_grammar(body: SelectRequest) -> ActionGrammar:
    """Return the grammar that a request describes."""
    if body.regex is not None:
        return ActionGrammar.from_regex(body.regex, body.max_tokens)
    if body.form is not None:
        return ActionGrammar.from_form(body.form)
    if body.json_schema is not None:
        return ActionGrammar.from_json_schema(body.json_schema)
    if body.tools is not None:
        return ActionGrammar.from_tools(body.tools)
    template = Template(**body.template.model_dump()) if isinstance(body.template, TemplateModel) else body.template
    assert body.labels is not None
    return ActionGrammar.from_labels(body.labels, body.k, distinct=body.distinct, order=body.order, template=template)


def read_prompt(body: SelectRequest, tokenizer: Any) -> list[int]:
    """Return the prompt's token ids: encoded the way SGLang's ``/generate`` does, never joined with the answer's."""
    if isinstance(body.prompt, str):
        return [int(token) for token in tokenizer.encode(body.prompt)]
    if body.prompt is not None:
        return list(body.prompt)
    if not getattr(tokenizer, "chat_template", None):
        raise RequestError("this model's tokenizer has no chat template; send 'prompt' instead of 'messages'")
    try:
        text = tokenizer.apply_chat_template(body.messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:
        # Templates are programs that come with the model; whatever one raises is about these messages.
        raise RequestError(f"messages do not fit the model's chat template: {error}") from error
    # The template writes its own BOS.
    return [int(token) for token in tokenizer.encode(text, add_special_tokens=False)]


def read_question(body: SelectRequest, tokenizer: Any) -> Question:
    """Return what a request wants to know about the answers."""
    prior = None if body.prior is None else tuple(int(token) for token in tokenizer.encode(body.prior))
    given = {
        name: value for name in ("n", "temperature", "seed", "max_states") if (value := getattr(body, name)) is not None
    }
    return Question(body.decide, body.objective, prior=prior, **given)


def write_response(
    selection: Selection, body: SelectRequest, model: str, info: TokenizerInfo, epsilon: Epsilon | None = None
) -> SelectResponse:
    """Return the response for a complete selection; ``epsilon`` is the server's calibration, if it has one."""
    compiled = selection.compiled
    answer = compiled.answer(selection.state, selection.tokens)
    # A replay that agreed leaves the decisions in place.
    serial = selection.plan.name == "serial" or (selection.decoded_tokens > 0 and not selection.decisions)
    listed = max(1, min(MAX_CANDIDATES, MAX_LISTED // max(1, len(selection.decisions))))
    decisions = [_decision(decision, info, compiled.stop_ids, epsilon, listed) for decision in selection.decisions]
    passes = [
        PassModel(positions=p.positions, rows=p.rows, cached_tokens=p.cached_tokens, ms=round(p.ms, 3))
        for p in selection.passes
    ]
    serial_forwards = len(selection.tokens) + bool(compiled.automaton.step(selection.state))
    return SelectResponse(
        model=model,
        labels=list(answer.labels),
        indices=list(answer.indices),
        text=answer.text,
        token_ids=selection.tokens,
        finish_reason="stop" if answer.whole else "length",
        groups=list(answer.groups),
        named_groups=answer.named or {},
        spelling=compiled.spelling,
        logprob=None if serial else float(sum(decision.logprob for decision in selection.decisions)),
        min_margin=min((decision.margin for decision in decisions), default=None),
        decisions=decisions,
        plan=PlanModel(
            name="serial" if serial else selection.plan.name,
            requested=body.plan,
            why=[
                CandidatePlanModel(
                    name=candidate.plan.name,
                    predicted_ms=round(candidate.ms, 3),
                    positions=sum(size.path + size.tree for size in candidate.sizes),
                )
                for candidate in selection.considered[:SHOWN_PLANS]
            ],
            passes=passes,
            tree_positions=0 if serial else sum(p.positions for p in passes if p.rows),
            serial_forwards=serial_forwards,
            forwards=len(passes) + max(0, selection.decoded_tokens - 1),
        ),
        usage=UsageModel(
            prompt_tokens=len(selection.prompt),
            cached_tokens=min(selection.passes[0].cached_tokens if selection.passes else 0, len(selection.prompt)),
            completion_tokens=len(selection.tokens),
            decoded_tokens=selection.decoded_tokens,
        ),
    )


def _shown(decision: Decision, listed: int) -> list[tuple[int, float]]:
    """Legal ids and their probabilities, by id; only the most probable where there are very many."""
    pairs = list(zip(decision.legal, np.exp(decision.logprobs).tolist(), strict=True))
    if len(pairs) > listed:
        pairs = sorted(sorted(pairs, key=lambda pair: -pair[1])[:listed])
    return pairs


def _decision(
    decision: Decision, info: TokenizerInfo, stop_ids: frozenset[int], epsilon: Epsilon | None, listed: int
) -> DecisionModel:
    texts = info.vocabulary.token_bytes
    candidates = [
        CandidateModel(
            token_id=token,
            text="" if token in stop_ids else (texts[token] or b"").decode(errors="replace"),
            probability=float(probability),
            stop=token in stop_ids,
        )
        for token, probability in _shown(decision, listed)
    ]
    return DecisionModel(
        position=decision.position,
        slot=decision.action,
        token_id=decision.token,
        # A rival at minus infinity makes the margin infinite, which JSON cannot say.
        margin=min(decision.margin, 1e9),
        logprob=decision.logprob,
        label_mass=decision.label_mass,
        flip_risk=None if epsilon is None else epsilon.flip_risk(decision.margin),
        candidates=candidates,
    )
