"""The HTTP contract of ``POST /v1/select_k``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

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
    """Choose ``k`` labels, or one string of a regex, behind a prompt."""

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
    k: int = Field(1, description="How many labels to choose.", strict=True)
    distinct: bool = Field(True, description="A chosen label leaves the later slots.")
    order: Literal["any", "list"] = Field("any", description="'list': only sequences in the order of the labels.")
    template: str | TemplateModel = Field("json", description="'json', 'raw', or prefix/separator/suffix/escape.")
    spelling: Literal["canonical", "any"] = Field(
        "canonical", description="'canonical': the tokenizer's own spelling of each answer."
    )
    plan: str = Field("auto", description="'auto', 'root+probe', 'chunked', 'serial', or actions a pass like '[2,2]'.")
    model: str | None = Field(None, description="Must be the served model, if given.")

    @model_validator(mode="after")
    def _one_of(self) -> SelectRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either 'prompt' or 'messages'")
        if (self.labels is None) == (self.regex is None):
            raise ValueError("give either 'labels' or 'regex'")
        return self


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
    passes: int = Field(description="Passes that were timed.")
    error: float = Field(description="Median relative error of the fit on them.")


class UsageModel(BaseModel):
    """Token counts in the terms of SGLang's usage."""

    prompt_tokens: int
    cached_tokens: int = Field(description="Prompt tokens that the first pass found in the radix cache.")
    completion_tokens: int = Field(description="Tokens of the answer.")
    decoded_tokens: int = Field(description="Tokens decoded one by one: 0 unless the plan is 'serial'.")


class SelectResponse(BaseModel):
    """The choice, and the evidence for it."""

    object: Literal["select_k"] = "select_k"
    model: str
    labels: list[str]
    indices: list[int]
    text: str
    token_ids: list[int]
    groups: list[str | None] = []
    named_groups: dict[str, str | None] = {}
    spelling: str
    logprob: float | None = Field(description="Of the whole answer under the constrained policy; null for 'serial'.")
    min_margin: float | None = Field(description="Smallest margin on the way; null without decisions.")
    decisions: list[DecisionModel]
    plan: PlanModel
    usage: UsageModel
