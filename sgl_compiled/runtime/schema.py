"""The HTTP contract of ``POST /v1/select_k``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from rich.tree import Tree

from sgl_compiled.control.show import to_dot, to_tree
from sgl_compiled.errors import RequestError
from sgl_compiled.runtime.inference_schema import InferenceModel, ParityModel

__all__ = [
    "CalibrationModel",
    "CandidateModel",
    "CandidatePlanModel",
    "DecisionModel",
    "PassModel",
    "PlanModel",
    "SelectRequest",
    "SelectResponse",
    "TemplateModel",
    "UsageModel",
]


class TemplateModel(BaseModel):
    """How the chosen labels are written: ``prefix label separator label ... suffix``."""

    model_config = ConfigDict(extra="forbid")

    prefix: str = ""
    separator: str = ", "
    suffix: str = ""
    escape: Literal["json", "none"] = "none"


class SelectRequest(BaseModel):
    """Choose ``k`` labels, or one string of a regex, form, schema or tool list, behind a prompt."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"prompt": "Sections that answer the question: ", "labels": ["Intro", "Data", "Results"], "k": 2}
            ]
        },
    )

    prompt: str | list[int] | None = Field(None, description="Prompt as text or as token ids.")
    messages: list[dict[str, Any]] | None = Field(None, description="Chat messages, instead of a prompt.")
    labels: list[str] | None = Field(None, description="Literal texts to choose from.")
    regex: str | None = Field(None, description="A regex with a finite language, instead of labels.")
    form: list[str | list[str]] | None = Field(
        None, description="Literals (strings) and slots (lists of strings), instead of labels."
    )
    json_schema: dict[str, Any] | None = Field(
        None, description="A schema that admits finitely many values, instead of labels."
    )
    tools: list[dict[str, Any]] | None = Field(
        None, description="Tools as in the OpenAI API, with finite arguments, instead of labels."
    )
    max_tokens: int | None = Field(
        None,
        description="For a regex with spelling='any': cut the answer off after so many tokens; its language may then "
        "be infinite.",
    )
    k: int = Field(1, description="How many labels to choose; like the next three, for labels only.", strict=True)
    distinct: bool = Field(True, description="A chosen label leaves the later slots.")
    order: Literal["any", "list"] = Field("any", description="'list': only sequences in the order of the labels.")
    template: str | TemplateModel = Field("json", description="'json', 'raw', or prefix/separator/suffix/escape.")
    spelling: Literal["canonical", "any"] = Field(
        "canonical", description="'canonical': the tokenizer's own spelling of each answer."
    )
    plan: str = Field(
        "auto",
        description="'auto', 'root+probe', 'chunked', 'serial', or actions a pass like '[2,2]', narrowed '[1,2]~4'.",
    )
    model: str | None = Field(None, description="Must be the served model, if given.")
    decide: Literal["greedy", "map", "map_set", "sample"] = Field(
        "greedy", description="The reference policy, the most probable answers, the most probable sets, or draws."
    )
    objective: Literal["policy", "conditional"] = Field(
        "policy", description="Renormalised at every decision, or once over whole answers."
    )
    temperature: float | None = Field(None, ge=0, allow_inf_nan=False, description="For 'sample'; 1 by default.")
    seed: int | None = Field(None, ge=0, description="For 'sample'; 0 by default.")
    n: int | None = Field(None, ge=1, le=1000, description="How many answers, sets or draws; 1 by default.")
    max_states: int | None = Field(None, ge=1, le=10_000, description="Decision states to evaluate; 512 by default.")
    prior: str | None = Field(None, description="Neutral prompt that option probabilities are corrected by; k=1 only.")
    theta: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="Replay the answer serially if a margin is below this."
    )
    evidence: bool = Field(False, description="Return the evaluated tree and what follows from it; no extra forward.")

    @model_validator(mode="after")
    def _one_of(self) -> SelectRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either 'prompt' or 'messages'")
        grammars = (self.labels, self.regex, self.form, self.json_schema, self.tools)
        if sum(given is not None for given in grammars) != 1:
            raise ValueError("give either 'labels' or 'regex' (or 'form', 'json_schema' or 'tools'), and only one")
        return self

    @model_validator(mode="after")
    def _fits_the_decision(self) -> SelectRequest:
        for sentence in _misfits(self):
            raise ValueError(sentence)
        return self


def _misfits(body: SelectRequest) -> Iterator[str]:
    """Why fields of a request do not go together."""
    if body.max_tokens is not None and (body.regex is None or body.spelling != "any"):
        yield "max_tokens cuts the answer to a regex with spelling='any'; other answers are whole"
    if body.decide == "greedy":
        if body.objective == "conditional":
            yield "objective='conditional' needs decide='map', 'map_set' or 'sample'; greedy decoding is the policy"
        if body.n is not None and not body.evidence:
            yield "n needs decide='map', 'map_set' or 'sample', or evidence=true"
        if body.max_states is not None:
            yield "max_states needs decide='map', 'map_set' or 'sample'; greedy evaluates what its plan says"
    else:
        if body.plan != "auto":
            yield f"decide={body.decide!r} evaluates prefixes as it needs them; leave plan at 'auto'"
        if body.spelling == "any":
            yield f"decide={body.decide!r} needs spelling='canonical'; 'any' has too many spellings to sum"
    if body.decide != "sample" and (body.temperature is not None or body.seed is not None):
        yield "temperature and seed are for decide='sample'"
    if body.decide != "map" and body.prior is not None:
        yield "prior corrects the probabilities of options; use it with decide='map' and k=1"
    if body.theta is not None and (body.decide != "greedy" or body.plan == "serial"):
        yield "theta replays greedy choices serially; use it with decide='greedy' and a plan other than 'serial'"
    if body.evidence and (body.spelling == "any" or body.plan == "serial"):
        yield "evidence shows the evaluated tree; it needs spelling='canonical' and a plan other than 'serial'"


class CandidateModel(BaseModel):
    """One legal token of a decision."""

    token_id: int
    text: str = Field(description="The token's text; bytes that are no character of their own show as U+FFFD.")
    probability: float = Field(description="Under the constrained policy: renormalised over the legal ids.")
    stop: bool = False


class DecisionModel(BaseModel):
    """One state with two or more legal tokens, as the walk met it."""

    position: int = Field(description="Index in token_ids of the token decided here.")
    slot: int = Field(description="Slot (of labels) or decision number (of a regex).")
    token_id: int
    margin: float = Field(description="Logit of the best legal token minus that of the second best.")
    logprob: float = Field(description="Of the token taken, under the constrained policy.")
    label_mass: float = Field(description="Full-vocabulary probability of all legal tokens together.")
    flip_risk: bool | None = Field(
        None, description="Serial decoding may decide differently: margin <= 2 epsilon; null before 'calibrate'."
    )
    candidates: list[CandidateModel] = Field(description="The legal tokens by id; the 1,000 most probable at most.")


class PassModel(BaseModel):
    """One extend."""

    positions: int = Field(description="Answer tokens evaluated: the path taken so far, and the tree.")
    rows: int = Field(description="Decision rows read.")
    cached_tokens: int = Field(description="Tokens taken from the radix cache.")
    ms: float = Field(description="From sending the pass to having its numbers, in milliseconds.")


class CandidatePlanModel(BaseModel):
    """A plan that was considered."""

    name: str
    predicted_ms: float
    positions: int = Field(description="Answer tokens it evaluates, path and trees together.")


class PlanModel(BaseModel):
    """How the answer was found."""

    name: str
    why: list[CandidatePlanModel] = Field([], description="For 'auto': the best candidates, fastest first.")
    requested: str
    passes: list[PassModel]
    tree_positions: int
    serial_forwards: int = Field(description="Forwards that token-by-token decoding of this answer takes.")
    forwards: int


class CalibrationModel(BaseModel):
    """What passes cost on this server, in milliseconds (see ``plan.cost.CostModel``)."""

    a_ms: float
    b_ms: float
    c_ms: float
    d_ms: float
    wide_ms: float
    passes: int = Field(description="Passes that were timed.")
    error: float = Field(description="Median relative error of the fit on them.")
    parity: dict[str, Any] | None = Field(
        None, description="With 'replays': deviation from serial decoding (see ``control.parity.Epsilon``)."
    )


class UsageModel(BaseModel):
    """Token counts in the terms of SGLang's usage."""

    prompt_tokens: int
    cached_tokens: int = Field(description="Prompt tokens that the first pass found in the radix cache.")
    completion_tokens: int = Field(description="Tokens of the answer.")
    decoded_tokens: int = Field(
        description="Tokens decoded one by one: 0 unless the plan is 'serial' or theta replayed the answer."
    )


class SelectResponse(BaseModel):
    """The choice, and the evidence for it."""

    object: Literal["select_k"] = "select_k"
    model: str
    labels: list[str] = Field(description="The chosen labels; empty for a regex.")
    indices: list[int] = Field(description="Their places in the list of labels.")
    text: str
    token_ids: list[int]
    finish_reason: Literal["stop", "length"] = Field("stop", description="'length': cut off by max_tokens.")
    groups: list[str | None] = Field([], description="What the regex's groups match in the text.")
    named_groups: dict[str, str | None] = {}
    spelling: str
    logprob: float | None = Field(
        description="Of the whole answer under the constrained policy; null where it was decoded serially."
    )
    min_margin: float | None = Field(description="Smallest margin on the way; null without decisions.")
    decisions: list[DecisionModel]
    plan: PlanModel
    usage: UsageModel
    inference: InferenceModel | None = None
    parity: ParityModel | None = None
    evidence: dict[str, Any] | None = Field(
        default=None, description="The evaluated tree (see ``control.show.to_dict``)."
    )

    def to_dict(self) -> dict[str, Any]:
        """Return the evaluated tree as nested dictionaries (:func:`sgl_compiled.control.show.to_dict`).

        Raises
        ------
        RequestError
            The request did not ask for it.
        """
        if self.evidence is None:
            raise RequestError("this answer carries no tree; ask with evidence=True")
        return self.evidence

    def tree(self) -> Tree:
        """Return the evaluated tree for ``rich.print``, most probable branches first."""
        return to_tree(self.to_dict())

    def to_dot(self) -> str:
        """Return the evaluated tree in Graphviz's language."""
        return to_dot(self.to_dict())
