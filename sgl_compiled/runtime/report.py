"""Findings as the models of the HTTP contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_compiled.control.conditional import compare
from sgl_compiled.control.interaction import interaction
from sgl_compiled.control.leaves import TINY, Masses, leaves
from sgl_compiled.control.node import Bounds, Path
from sgl_compiled.control.options import corrected, options
from sgl_compiled.control.show import to_dict
from sgl_compiled.errors import RequestError
from sgl_compiled.grammar.compile import Answer, CompiledGrammar
from sgl_compiled.grammar.form import SlotForm
from sgl_compiled.grammar.tokenizer import TokenizerInfo
from sgl_compiled.grammar.trie import TrieAutomaton
from sgl_compiled.runtime.inference_schema import (
    AnswerModel,
    BoundsModel,
    ComparisonModel,
    DisagreementModel,
    InferenceModel,
    InteractionModel,
    OptionModel,
    SampleModel,
    SetModel,
)
from sgl_compiled.runtime.inquire import Findings

__all__ = ["check_evidence", "evidence_tree", "write_inference"]

MAX_OPTIONS = 1_000
MAX_TREE_TOKENS = 64
"""Longest answers whose tree is sent: JSON readers limit how deep values nest."""

LEAST_SHOWN = 1e-6
"""Branches of the tree with a smaller probability are only counted."""


def write_inference(found: Findings, *, details: bool) -> InferenceModel:
    """Return what was found; ``details`` adds the interaction mass and the comparison of the two objectives."""
    question = found.question
    certified, gap = _certificate(found)
    label_mass, choices = _options(found)
    return InferenceModel(
        decide=question.decide,
        objective=question.objective,
        certified=certified,
        gap=gap,
        states_expanded=found.expanded,
        states=found.outcomes.states,
        answers=_answers(found),
        sets=_sets(found),
        samples=_samples(found),
        options=choices,
        label_mass=label_mass,
        interaction=_interaction(found) if details else None,
        comparison=_comparison(found) if details or question.objective == "conditional" else None,
    )


def check_evidence(compiled: CompiledGrammar) -> None:
    """Refuse, before anything is sent, to show the tree of answers that are too long to nest.

    Raises
    ------
    RequestError
        They have more than ``MAX_TREE_TOKENS`` tokens.
    """
    if compiled.max_tokens > MAX_TREE_TOKENS:
        raise RequestError(
            f"answers have up to {compiled.max_tokens} tokens, and evidence is shown for {MAX_TREE_TOKENS} at most; "
            "send the request without 'evidence'"
        )


def evidence_tree(found: Findings, info: TokenizerInfo) -> dict[str, Any]:
    """Return the evaluated tree; see :func:`check_evidence`."""
    check_evidence(found.selection.compiled)
    texts = info.vocabulary.token_bytes
    return to_dict(
        found.evidence, lambda token: (texts[token] or b"").decode(errors="replace"), min_probability=LEAST_SHOWN
    )


def _bounds(bounds: Bounds) -> BoundsModel:
    return BoundsModel(lower=bounds.lower, upper=bounds.upper)


def _reader(found: Findings) -> Callable[[Path], Answer]:
    compiled, evidence = found.selection.compiled, found.evidence
    return lambda path: compiled.answer(evidence.node(path).state, path)


def _certificate(found: Findings) -> tuple[bool | None, float | None]:
    if found.sets is not None:
        return found.sets.certified, found.sets.gap
    ranked = found.ranking
    if ranked is None or found.question.decide == "greedy":
        return None, None
    whole = len(ranked.top) == found.question.n or not ranked.open
    if whole and ranked.certified == len(ranked.top):
        return True, 0.0
    least = 1.0
    if ranked.objective == "conditional":
        least = Masses.of(leaves(found.evidence, "conditional"), "conditional").settled
    excess = max(0.0, ranked.open[0][1] - ranked.floor)
    return False, min(1.0, excess / least) if least >= TINY else 1.0


def _answers(found: Findings) -> list[AnswerModel]:
    read = _reader(found)
    out = []
    for sequence in found.ranking.top if found.ranking is not None else ():
        answer = read(sequence.path)
        out.append(
            AnswerModel(
                labels=list(answer.labels),
                indices=list(answer.indices),
                text=answer.text,
                token_ids=list(sequence.path),
                probability=_bounds(sequence.probability),
                logprob=max(sequence.logprob, -1e9),
                raw_logprob=None if sequence.raw_logprob is None else max(sequence.raw_logprob, -1e9),
            )
        )
    return out


def _sets(found: Findings) -> list[SetModel]:
    names = found.selection.compiled.grammar.labels
    read = _reader(found)
    return [
        SetModel(
            labels=[names[label] for label in one.labels],
            indices=list(one.labels),
            probability=_bounds(one.probability),
            best_order=None if one.best is None else list(read(one.best).indices),
        )
        for one in (found.sets.top if found.sets is not None else ())
    ]


def _samples(found: Findings) -> list[SampleModel]:
    read = _reader(found)
    out = []
    for draw in found.samples.draws if found.samples is not None else ():
        answer = read(draw.path)
        out.append(
            SampleModel(
                labels=list(answer.labels), indices=list(answer.indices), text=answer.text, logprob=draw.logprob
            )
        )
    return out


def _options(found: Findings) -> tuple[float | None, list[OptionModel]]:
    if found.outcomes.n_slots != 1:
        return None, []
    here = options(found.evidence, found.outcomes, found.question.objective)
    fixed = {} if found.neutral is None else corrected(here, found.neutral)
    texts = _option_texts(found)
    listed = sorted(here.probabilities.items(), key=lambda item: (-item[1].upper, item[0]))[:MAX_OPTIONS]
    return here.label_mass, [
        OptionModel(
            index=label,
            text=texts[label],
            probability=_bounds(bounds),
            corrected=_bounds(fixed[label]) if label in fixed else None,
        )
        for label, bounds in sorted(listed)
    ]


def _option_texts(found: Findings) -> dict[int, str]:
    compiled = found.selection.compiled
    form: SlotForm | None = getattr(compiled.automaton, "form", None)
    if form is not None:
        return dict(enumerate(compiled.grammar.labels or form.slots[0]))
    assert isinstance(compiled.automaton, TrieAutomaton)
    return {found.outcomes.labels(end)[0]: compiled.answer(end).text for end in compiled.automaton.ends()}


def _interaction(found: Findings) -> InteractionModel | None:
    if not found.selection.compiled.grammar.labels or found.outcomes.n_slots < 2:
        return None
    try:
        measured = interaction(found.evidence, found.outcomes)
    except RequestError:
        # Not defined for this order, or the first slot was not looked at as a whole.
        return None
    return InteractionModel(
        mass=BoundsModel(lower=min(measured.mass.lower, 1e9), upper=min(measured.mass.upper, 1e9)),
        utility_loss=measured.utility_loss,
        unary=list(measured.unary),
        greedy=None if measured.greedy is None else list(measured.greedy),
        same_sequence=measured.same_sequence,
        same_set=measured.same_set,
    )


def _comparison(found: Findings) -> ComparisonModel:
    both = compare(found.evidence)
    read = _reader(found)
    return ComparisonModel(
        policy_text=None if both.policy_map is None else read(both.policy_map).text,
        conditional_text=None if both.conditional_map is None else read(both.conditional_map).text,
        certified=both.certified,
        disagree=not both.agree if both.certified else None,
        total_variation=_bounds(both.total_variation),
        language_mass=_bounds(both.language_mass),
        disagreements=[
            DisagreementModel(
                position=len(one.path),
                token_id=one.token,
                instead=one.instead,
                policy=one.policy,
                conditional=one.conditional,
            )
            for one in both.disagreements
        ],
    )
