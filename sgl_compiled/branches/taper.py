"""TAPER: admit a branch only while the step it makes longer still fits every request that can be saved.

One step, in order:

1. Rank the rows of each request; row 0 is protected (:mod:`.admission`). ``T0`` is the predicted time of the protected
   rows alone, plus the mean time ``g`` that extends add to a step.
2. The pace ``p`` each request allows (:mod:`.slack`). A request with one row is *savable* if ``p >= T0``: one that is
   late even at the base pace must not hold back the rest.
3. Budget = the smallest ``p - z * sigma_g / sqrt(R)`` of the savable ones. ``sigma_g`` is the spread of extend time
   from step to step and ``R`` the tokens to come: over the rest of the answer the stalls sum to ``R * g`` on average
   and spread by ``sqrt(R) * sigma_g``, and that much slack is kept back.
4. A request needs ``T0 / p`` rows to meet its own target. Other rows queue by the width their request still lacks,
   ``T0 / p - rank``: a branch that a deadline needs comes before one that only uses idle capacity, and requests that no
   width can save come last.
5. Admit the longest prefix of that queue whose predicted step, with the safety margin, fits the budget. Its externality
   is the difference between two points of the predictor: zero up to the next captured batch size but for the KV reads.

Overload: once a request has missed its first token for want of memory (``blocked``), finishing groups soonest is worth
more than any pace, since what they hold is what the queue needs; the budget is lifted. Shorter waits do not lift it:
bursts pass, and widening every group during each of them costs more than it frees. The budget is lifted as well when
no one-row request can be saved.

Exploration: a predictor that has only seen one width cannot tell what a branch costs, and may hold requests for lost
that width 1 would save. So a few steps run the protected rows alone: once after the start, and now and then for as long
as nobody can be saved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .admission import MAX_WAIT_STEPS, rank_in_request
from .predictor import StepFeatures, StepTimePredictor
from .slack import allowed_pace_s
from .view import Decision, FloatArray, IntArray, StepView

__all__ = ["TaperPolicy", "TaperSettings"]

_EXPLORE_STEPS = 4  # enough in a row for the predictor to take them for a change, not for outliers
_EXPLORE_EVERY = 128
_LAST = 1e6  # rows short of any width: behind every row that can still help


@dataclass(frozen=True, slots=True)
class TaperSettings:
    """Constants of :class:`TaperPolicy`.

    Attributes
    ----------
    reserve_sigmas : float
        ``z`` above: slack kept back for extends to come.
    margin_sigmas : float
        Safety margin on a predicted step, in sigmas of the predictor.
    spend : float
        Share of the time ahead of a token target that steps may spend; the rest meets arrivals to come.
    max_wait_steps : int
        Steps after which a parked row is preferred inside its request.
    """

    reserve_sigmas: float = 2.0
    margin_sigmas: float = 0.5
    spend: float = 0.6
    max_wait_steps: int = MAX_WAIT_STEPS


class TaperPolicy:
    """Slack-bounded admission; between steps it only counts for how long nobody could be saved."""

    def __init__(self, settings: TaperSettings | None = None) -> None:
        self.settings = settings or TaperSettings()
        self._hopeless_steps = 0

    @property
    def name(self) -> str:
        """See :class:`sgl_compiled.branches.policy.Policy`."""
        return "taper"

    def decide(self, view: StepView, predictor: StepTimePredictor) -> Decision:
        """See :class:`sgl_compiled.branches.policy.Policy`."""
        rank, live = rank_in_request(view, self.settings.max_wait_steps)
        run = rank == 0
        extra = np.flatnonzero(rank)
        batch, context = len(rank) - len(extra), int(view.context_tokens[run].sum())
        base_s = predictor.predict(StepFeatures(batch, context))
        if not len(extra):
            return Decision(run, base_s, base_s)
        pace_s, budget_s, overload = self._budget(view, live, base_s + predictor.gap_s, predictor)
        self._hopeless_steps = self._hopeless_steps + 1 if overload and not view.blocked else 0
        if self._explores(predictor):
            return Decision(run, base_s, base_s, budget_s, overload)
        extra = self._queue(view, extra, rank, live, (base_s + predictor.gap_s) / np.maximum(pace_s, 1e-6))
        times_s = predictor.predict_widths(batch, context, view.context_tokens[extra])
        margin = 1.0 + self.settings.margin_sigmas * predictor.relative_sigma
        fit = int(np.searchsorted(times_s * margin + predictor.gap_s, budget_s, side="right"))
        run[extra[:fit]] = True
        return Decision(run, float(times_s[fit - 1]) if fit else base_s, base_s, budget_s, overload)

    def _budget(
        self, view: StepView, live: IntArray, base_s: float, predictor: StepTimePredictor
    ) -> tuple[FloatArray, float, bool]:
        """Return the pace every request allows, the budget of the step, and whether overload lifted it."""
        sums = np.bincount(view.owner, weights=view.remaining_tokens, minlength=view.requests)
        remaining = np.maximum(np.asarray(sums, dtype=np.float64), 1.0)
        pace_s = allowed_pace_s(
            view.now_s,
            view.line_s,
            view.tpot_s,
            view.deadline_s,
            remaining,
            view.after_tokens,
            base_s,
            self.settings.spend,
        )
        bound = (live == 1) & np.isfinite(pace_s)
        savable = bound & (pace_s >= base_s)
        if view.blocked or not savable.any():
            return pace_s, float("inf"), bool(view.blocked or bound.any())
        reserve_s = self.settings.reserve_sigmas * predictor.gap_sigma_s / np.sqrt(remaining[savable])
        return pace_s, float((pace_s[savable] - reserve_s).min()), False

    def _explores(self, predictor: StepTimePredictor) -> bool:
        first = 4 <= predictor.observations < 4 + _EXPLORE_STEPS
        return first or self._hopeless_steps % _EXPLORE_EVERY >= _EXPLORE_EVERY - _EXPLORE_STEPS

    @staticmethod
    def _queue(view: StepView, extra: IntArray, rank: IntArray, live: IntArray, need: FloatArray) -> IntArray:
        """Unprotected rows in the order of admission."""
        owner = view.owner[extra]
        lacking = need[owner] - rank[extra]
        lacking[need[owner] > live[owner]] -= _LAST
        ordered: IntArray = extra[np.argsort(-lacking, kind="stable")]
        return ordered
