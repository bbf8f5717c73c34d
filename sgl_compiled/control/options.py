"""Probability of each option of a choice: what users of ``choices`` ask for, without a length bias."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from sgl_compiled.control.evidence import Evidence
from sgl_compiled.control.leaves import Masses, leaves, probability
from sgl_compiled.control.node import Bounds, FloatArray, Objective, log_sum
from sgl_compiled.control.outcomes import Outcomes
from sgl_compiled.control.sequences import language_mass
from sgl_compiled.errors import RequestError

__all__ = ["Options", "corrected", "options"]


@dataclass(frozen=True)
class Options:
    """Distribution over the options of one slot.

    Attributes
    ----------
    probabilities : dict
        By label index: of the whole option, summed over its spellings. They add up to 1 where all are exact.
    label_mass : float or None
        Full-vocabulary probability of the legal ids at the first decision; small values say that the model would
        rather write something else. ``None`` where there is no decision.
    language_mass : Bounds
        Full-vocabulary probability of writing any option to its end.
    """

    probabilities: Mapping[int, Bounds]
    label_mass: float | None
    language_mass: Bounds
    objective: Objective


def options(evidence: Evidence, outcomes: Outcomes, objective: Objective = "policy") -> Options:
    """Read the probability of each option off an evaluated tree.

    Raises
    ------
    RequestError
        The grammar has more than one slot.
    """
    if outcomes.n_slots != 1:
        raise RequestError("option probabilities are for single choices (k=1); use top sequences or decide='map_set'")
    lower: defaultdict[int, float] = defaultdict(float)
    upper: defaultdict[int, float] = defaultdict(float)
    cells = leaves(evidence, objective)
    everything = range(outcomes.n_labels)
    for cell in cells:
        mass = cell.mass(objective)
        if cell.complete:
            (label,) = outcomes.labels(cell.state)
            lower[label] += mass
            continue
        labels, among = outcomes.filled(cell.state)
        for label in labels or among or everything:
            upper[label] += mass
    total = Masses.of(cells, objective)
    bounds = {label: probability(Bounds(lower[label], lower[label] + upper[label]), total) for label in everything}
    root = evidence.root
    label_mass = None if root.logits is None else min(1.0, float(np.exp(log_sum(root.logits) - root.lse)))
    return Options(bounds, label_mass, language_mass(evidence), objective)


def corrected(here: Options, neutral: Options, strength: float = 1.0) -> dict[int, Bounds]:
    r"""Correct for what the model would say without the question.

    :math:`P_c(o) \propto P(o \mid \text{prompt}) / P(o \mid \text{neutral prompt})^{\text{strength}}`: with strength
    1 the option whose probability the prompt raised most wins, however frequent the words of the others are. Whole
    options are compared, not averages over their tokens.

    Parameters
    ----------
    here, neutral : Options
        Of the same grammar behind the prompt, and behind a prompt without the question (such as ``"Answer: "``).
    strength : float
        0 leaves the probabilities as they are.

    Raises
    ------
    RequestError
        The two are not of the same options, or ``strength`` is negative or not finite.
    """
    if here.probabilities.keys() != neutral.probabilities.keys() or here.objective != neutral.objective:
        raise RequestError("the neutral prompt must be evaluated with the same labels and objective")
    if not 0 <= strength < np.inf:
        raise RequestError(f"strength is {strength}; use a number from 0 (no correction) up, usually 1")
    # A probability that underflows to zero must not make its option infinitely surprising.
    floor = np.finfo(np.float64).tiny
    labels = list(here.probabilities)
    own = np.array([here.probabilities[label] for label in labels])
    prior = np.maximum([neutral.probabilities[label] for label in labels], floor)
    with np.errstate(divide="ignore"):
        scores = np.log(own) - strength * np.log(prior[:, ::-1])
    low, high = scores[:, 0], scores[:, 1]
    return {
        label: Bounds(float(a), float(b))
        for label, a, b in zip(labels, _share(low, high), _share(high, low), strict=True)
    }


def _share(own: FloatArray, others: FloatArray) -> FloatArray:
    """Share of each weight in a sum whose other terms are ``others``, all in logs: ``w / (w + sum of the others)``."""
    before = np.concatenate([[-np.inf], np.logaddexp.accumulate(others)[:-1]])
    after = np.concatenate([np.logaddexp.accumulate(others[::-1])[-2::-1], [-np.inf]])
    # Subtracting a term from the whole sum instead would lose the small ones.
    with np.errstate(invalid="ignore"):
        share: FloatArray = expit(own - np.logaddexp(before, after))
    return np.where(own == -np.inf, 0.0, share)
