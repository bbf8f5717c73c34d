"""Each request's own deadline line, and the pace it still allows.

A token target is a line: token ``i`` (from 0) is due at ``first token + i * tpot``. An end-to-end target is a point:
all tokens are due at ``deadline``. Both become one number, the *pace* ``p`` in seconds a token that just meets the
target from now on, ``R`` being the tokens still expected and ``S = line - now`` the time ahead of the line::

    a token:     p = tpot + S / R
    end to end:  p = (deadline - now - A * T0) / R

``A`` are tokens that follow the branches one by one (the answer after a join), ``T0`` the time of a step without extra
branches. A request can have both targets, then the smaller pace counts; without any, ``p`` is infinite. A pace below
``T0 / rows`` cannot be met even when every row of the request runs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["allowed_pace_s", "expected_remaining", "request_slack_s"]

FloatArray = NDArray[np.float64]


def request_slack_s(now_s: float, line_s: FloatArray, deadline_s: FloatArray) -> FloatArray:
    """Time ahead of the nearest target, seconds, shape (g,); negative when late, inf without a target."""
    slack: FloatArray = np.minimum(line_s, deadline_s) - now_s
    return slack


def allowed_pace_s(
    now_s: float,
    line_s: FloatArray,
    tpot_s: FloatArray,
    deadline_s: FloatArray,
    remaining_tokens: FloatArray,
    after_tokens: FloatArray,
    base_step_s: float,
) -> FloatArray:
    """Seconds a token that each request may take from now on and still meet its targets.

    Parameters
    ----------
    now_s, base_step_s : float
        Clock, and the time of a step without extra branches, seconds.
    line_s, tpot_s, deadline_s : ndarray, shape (g,), float64
        When the next token is due by the token target, that target, and the end-to-end deadline; inf where absent.
    remaining_tokens, after_tokens : ndarray, shape (g,), float64
        Tokens still expected from the live rows (> 0), and those that follow them serially.

    Returns
    -------
    ndarray, shape (g,), float64
        Pace in seconds; may be negative (already late), inf without a target.
    """
    with np.errstate(invalid="ignore"):
        token_pace = tpot_s + (line_s - now_s) / remaining_tokens
    end_pace = (deadline_s - now_s - after_tokens * base_step_s) / remaining_tokens
    pace: FloatArray = np.minimum(token_pace, end_pace)
    return pace


def expected_remaining(expected_tokens: FloatArray, done_tokens: NDArray[np.int64]) -> FloatArray:
    """Tokens still to come, shape (n,): the declared rest, but never less than a quarter of what is done.

    Declared lengths are wrong by some factor; a row that outlives its declaration goes on for a while rather than
    ending at the next token.
    """
    remaining: FloatArray = np.maximum(expected_tokens - done_tokens, np.maximum(0.25 * done_tokens, 1.0))
    return remaining
