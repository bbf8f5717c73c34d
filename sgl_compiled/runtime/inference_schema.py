"""The part of the HTTP contract that says how probable answers are; meanings: ``docs/probabilities.md``."""

from __future__ import annotations

from pydantic import BaseModel, Field

__all__ = [
    "AnswerModel",
    "BoundsModel",
    "ComparisonModel",
    "DisagreementModel",
    "InferenceModel",
    "InteractionModel",
    "OptionModel",
    "ParityModel",
    "SampleModel",
    "SetModel",
]


class BoundsModel(BaseModel):
    """A number known to lie in [lower, upper]; equal ends mean exact."""

    lower: float
    upper: float


class AnswerModel(BaseModel):
    """A whole answer."""

    labels: list[str]
    indices: list[int]
    text: str
    token_ids: list[int]
    probability: BoundsModel = Field(description="Under the request's objective.")
    logprob: float = Field(description="Under the policy.")
    raw_logprob: float | None = Field(description="Over the full vocabulary; null where a forced token was not read.")


class SetModel(BaseModel):
    """A set of labels, the order summed out."""

    labels: list[str]
    indices: list[int]
    probability: BoundsModel
    best_order: list[int] | None = Field(description="Its most probable evaluated ordering.")


class SampleModel(BaseModel):
    """A draw."""

    labels: list[str]
    indices: list[int]
    text: str
    logprob: float = Field(description="Under the distribution drawn from, temperature included.")


class OptionModel(BaseModel):
    """One option of a single choice."""

    index: int
    text: str
    probability: BoundsModel = Field(description="Of the whole option, under the request's objective.")
    corrected: BoundsModel | None = Field(None, description="Divided by its probability behind 'prior'.")


class InteractionModel(BaseModel):
    """How much the labels depend on each other."""

    mass: BoundsModel = Field(description="KL(policy || Plackett-Luce projection) in nats.")
    utility_loss: float = Field(description="No expected utility in [0, 1] differs by more between the two.")
    unary: list[int] = Field(description="The projection's own greedy choice, as indices.")
    greedy: list[int] | None = Field(description="The reference policy's choice; null where not evaluated.")
    same_sequence: bool | None
    same_set: bool | None


class DisagreementModel(BaseModel):
    """A decision on the greedy path where the conditional prefers another token."""

    position: int
    token_id: int
    instead: int
    policy: tuple[float, float] = Field(description="The policy's probability of the two tokens.")
    conditional: tuple[float, float] = Field(description="The conditional's probability of the two tokens.")


class ComparisonModel(BaseModel):
    """The policy beside P(answer | answer in the language)."""

    policy_text: str | None = Field(description="The policy's most probable evaluated answer.")
    conditional_text: str | None = Field(description="The conditional's most probable evaluated answer.")
    certified: bool = Field(description="Both are certain.")
    disagree: bool | None = Field(description="Whether they differ; null where not certain.")
    total_variation: BoundsModel = Field(description="Largest difference in the probability of any event.")
    language_mass: BoundsModel = Field(description="Probability that the free model writes an answer of the grammar.")
    disagreements: list[DisagreementModel]


class InferenceModel(BaseModel):
    """What is known about the distribution over answers."""

    decide: str
    objective: str
    certified: bool | None = Field(None, description="The answers (or the best set) are certainly the best.")
    gap: float | None = Field(None, description="How much more probable another one can be; 0 when certified.")
    states_expanded: int = Field(description="Decision states evaluated.")
    states: int = Field(description="Decision states of the whole tree.")
    answers: list[AnswerModel] = Field([], description="The most probable answers, best first.")
    sets: list[SetModel] = Field([], description="For 'map_set': the most probable sets, best first.")
    samples: list[SampleModel] = Field([], description="For 'sample': the draws, in a fixed order.")
    options: list[OptionModel] = Field([], description="For single choices: the 1,000 most probable options at most.")
    label_mass: float | None = Field(None, description="Full-vocabulary probability of the first decision's legal ids.")
    interaction: InteractionModel | None = Field(None, description="With 'evidence', for two or more slots of labels.")
    comparison: ComparisonModel | None = Field(None, description="With 'evidence' or the conditional objective.")


class ParityModel(BaseModel):
    """What the parity dial did."""

    theta: float
    gated_share: float = Field(description="Share of the decisions with a margin below theta.")
    replay_ms: float = Field(description="Time that serial decoding took; 0 where nothing was gated.")
    agreed: bool | None = Field(description="Serial decoding gave the same answer; null where nothing was gated.")
