"""Order of the rows inside a request: which one is protected, which come next.

Row 0 of a request always runs. Among its rows come first those that waited too long, then those with the least
progress (counted in quanta, so that rows do not change places at every token), then those that ran in the last step.
A row therefore never waits more than ``max_wait_steps`` plus one step for each row of its request that is also overdue,
whatever the slack: the protected place goes round.
"""

from __future__ import annotations

import numpy as np

from .view import IntArray, StepView

__all__ = ["MAX_WAIT_STEPS", "rank_in_request"]

MAX_WAIT_STEPS = 256
QUANTUM_TOKENS = 32
_PROGRESS_BITS = 30


def rank_in_request(view: StepView, max_wait_steps: int) -> tuple[IntArray, IntArray]:
    """Rank the rows of every request.

    Returns
    -------
    rank : ndarray, shape (n,), int64
        0 for the protected row of a request, then 1, 2, ... in the order of admission.
    live : ndarray, shape (g,), int64
        Rows of each request.
    """
    rows = len(view.owner)
    waited = view.waited_steps
    overdue = waited >= max_wait_steps
    # Among overdue rows the longest wait leads; that field reuses the place of progress.
    within = np.where(
        overdue,
        np.maximum((1 << 20) - waited, 0) * 2,
        (1 << _PROGRESS_BITS) + (view.progress_tokens // QUANTUM_TOKENS) * 2 + (waited > 0),
    )
    order = np.argsort((view.owner << (_PROGRESS_BITS + 2)) + within, kind="stable")
    live = np.bincount(view.owner, minlength=view.requests)
    first = np.cumsum(live) - live
    rank = np.empty(rows, dtype=np.int64)
    rank[order] = np.arange(rows) - first[view.owner[order]]
    return rank, live
