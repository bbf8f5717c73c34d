"""TAPER: admit a branch only while the step it makes longer leaves the other requests' chances as they are.

One step, in order:

1. Rank the rows of each request; row 0 is protected (:mod:`.admission`). ``T0`` is the predicted time of the protected
   rows alone, plus the mean time ``g`` that extends add to a step.
2. The pace ``p`` each request allows (:mod:`.slack`). The *neighbours* are the requests with one row and a target:
   extra branches can only hurt them.
3. A neighbour's chance in steps of length ``T`` rises from 0, where its target is just met (``T + g = p``), to 1, where
   two sigmas ``s`` are to spare::

       c(T) = clip((p - T - g) / (2 * s), 0, 1),    s^2 = sigma_g^2 / R + (sigma * T / 2)^2

   ``sigma_g`` is the spread of extend time from step to step and ``R`` the tokens to come: over the rest of the answer
   the stalls sum to ``R * g`` on average and spread by ``sqrt(R) * sigma_g``. ``sigma`` is the predictor's relative
   error. A neighbour that is late even without extra branches has no chance to lose and holds nothing back.
4. A request needs ``T0 / p`` rows to meet its own target. Rows other than the protected ones queue by the width their
   request still lacks, ``T0 / p - rank``: a branch that a deadline needs comes before one that only uses idle capacity,
   and requests that no width can save come last.
5. The externality of a width is what the chances of all neighbours lose against the protected rows alone. Admit the
   longest prefix of the queue whose externality is at most a tenth of a request, or one in a hundred neighbours if that
   is more: in a large batch somebody always stands at the edge, and a step that is narrow for one neighbour alone costs
   all the others throughput. Up to the next captured batch size the externality is zero but for the KV reads.

Overload: once a request has missed its first token for want of memory (``blocked``), finishing groups soonest is worth
more than any pace, since what they hold is what the queue needs; every row runs. Shorter waits do not count: bursts
pass, and widening every group during each of them costs more than it frees. Every row runs as well when no neighbour
has a chance.

Exploration: a predictor that has only seen one width cannot tell what a branch costs, and may hold requests for lost
that width 1 would save. So a few steps run the protected rows alone: once after the start, and now and then for as long
as no neighbour has a chance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt

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
    sure_sigmas : float
        Time to spare, in sigmas, from which a request's chance counts as whole.
    externality : float
        Requests whose chances extra branches may cost in a step.
    externality_share : float
        The same as a share of the neighbours; the larger of both counts.
    max_wait_steps : int
        Steps after which a parked row is preferred inside its request.
    """

    sure_sigmas: float = 2.0
    externality: float = 0.1
    externality_share: float = 0.01
    max_wait_steps: int = MAX_WAIT_STEPS


class TaperPolicy:
    """Slack-bounded admission; between steps it only counts for how long no neighbour had a chance."""

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
        sums = np.bincount(view.owner, weights=view.remaining_tokens, minlength=view.requests)
        remaining = np.maximum(np.asarray(sums, dtype=np.float64), 1.0)
        alone_s = base_s + predictor.gap_s
        pace_s = allowed_pace_s(
            view.now_s, view.line_s, view.tpot_s, view.deadline_s, remaining, view.after_tokens, alone_s
        )
        bound = (live == 1) & np.isfinite(pace_s)
        chances = self._chances(pace_s[bound], remaining[bound], predictor)
        extra = self._queue(extra, view.owner[extra], rank, live, alone_s / np.maximum(pace_s, 1e-6))
        times_s = predictor.predict_widths(batch, context, view.context_tokens[extra])
        narrow, wide = chances(np.array((base_s, times_s[-1]))).tolist()
        share = self.settings.externality_share * np.count_nonzero(bound)
        least = narrow - max(self.settings.externality, share)
        overload = bool(view.blocked or (bound.any() and least <= 0.0))
        self._hopeless_steps = self._hopeless_steps + 1 if overload and not view.blocked else 0
        if self._explores(predictor):
            return Decision(run, base_s, base_s, float(times_s[0]), overload)
        fit = len(extra) if overload or wide >= least else _longest(times_s, chances, least)
        run[extra[:fit]] = True
        return Decision(
            run,
            float(times_s[fit - 1]) if fit else base_s,
            base_s,
            float(times_s[fit]) if fit < len(extra) else float("inf"),
            overload,
        )

    def _chances(
        self, pace_s: FloatArray, remaining: FloatArray, predictor: StepTimePredictor
    ) -> Callable[[FloatArray], FloatArray]:
        """Return the sum of the neighbours' chances as a function of step times, shape (m,), seconds."""
        stalls = predictor.gap_sigma_s**2 / remaining + 1e-18
        spare_s = pace_s - predictor.gap_s
        slope, sure = (0.5 * predictor.relative_sigma) ** 2, self.settings.sure_sigmas

        def chances(times_s: FloatArray) -> FloatArray:
            step_s = times_s[:, None]
            sigma_s = np.sqrt(stalls + slope * step_s * step_s)
            chance = np.minimum(np.maximum((spare_s - step_s) / (sure * sigma_s), 0.0), 1.0)
            total: FloatArray = chance.sum(axis=1)
            return total

        return chances

    def _explores(self, predictor: StepTimePredictor) -> bool:
        first = 4 <= predictor.observations < 4 + _EXPLORE_STEPS
        return first or self._hopeless_steps % _EXPLORE_EVERY >= _EXPLORE_EVERY - _EXPLORE_STEPS

    @staticmethod
    def _queue(extra: IntArray, owner: IntArray, rank: IntArray, live: IntArray, need: FloatArray) -> IntArray:
        """Unprotected rows in the order of admission."""
        lacking = need[owner] - rank[extra]
        lacking[need[owner] > live[owner]] -= _LAST
        ordered: IntArray = extra[np.argsort(-lacking, kind="stable")]
        return ordered


def _longest(times_s: FloatArray, chances: Callable[[FloatArray], FloatArray], least: float) -> int:
    """Return how many rows of the queue keep ``least``.

    Times ascend and chances only fall as steps get longer, so two looks suffice: at every so many rows, then between.
    """
    stride = isqrt(len(times_s))
    kept = stride * int(np.count_nonzero(chances(times_s[stride - 1 :: stride]) >= least))
    return kept + int(np.count_nonzero(chances(times_s[kept : kept + stride]) >= least))
