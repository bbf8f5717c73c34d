"""What a policy sees of one decode step, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Decision", "StepView"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class StepView:
    """The decodable rows of one step and the requests that own them.

    A *row* is one sequence; a *request* owns one row (ungrouped) or several (a group with its branches).

    Attributes
    ----------
    now_s : float
        Clock of the deciding rank, seconds.
    owner : ndarray, shape (n,), int64
        Index of each row's request, in ``[0, g)``.
    context_tokens, progress_tokens, waited_steps : ndarray, shape (n,), int64
        Prompt and output length, own output length, steps parked since the row last ran.
    remaining_tokens : ndarray, shape (n,), float64
        Tokens the row is still expected to produce, at least 1.
    line_s, tpot_s, deadline_s, after_tokens : ndarray, shape (g,), float64
        See :func:`sgl_compiled.branches.slack.allowed_pace_s`.
    blocked : bool
        A request has waited past its first-token target for memory that running ones hold.
    """

    now_s: float
    owner: IntArray
    context_tokens: IntArray
    progress_tokens: IntArray
    waited_steps: IntArray
    remaining_tokens: FloatArray
    line_s: FloatArray
    tpot_s: FloatArray
    deadline_s: FloatArray
    after_tokens: FloatArray
    blocked: bool = False

    @property
    def requests(self) -> int:
        """Length of the request axis."""
        return len(self.line_s)

    def check_integrity(self) -> None:
        """Assert that the arrays belong together; for tests and debugging, not for every step."""
        rows, requests = len(self.owner), len(self.line_s)
        for column in (self.context_tokens, self.progress_tokens, self.waited_steps, self.remaining_tokens):
            assert column.shape == (rows,), f"row column of shape {column.shape}, expected ({rows},)"
        for column in (self.tpot_s, self.deadline_s, self.after_tokens):
            assert column.shape == (requests,), f"request column of shape {column.shape}, expected ({requests},)"
        assert rows == 0 or (self.owner.min() >= 0 and self.owner.max() < requests), "owner outside the request axis"
        assert (self.remaining_tokens >= 1.0).all(), "a live row has at least one token to come"
        assert (self.waited_steps >= 0).all() and (self.progress_tokens >= 0).all()


@dataclass(frozen=True, slots=True)
class Decision:
    """Which rows run, and what the policy expected of it.

    Attributes
    ----------
    run : ndarray, shape (n,), bool
        True = the row decodes in this step.
    predicted_s, base_s, refused_s : float
        Predicted time of the step as admitted, of the protected rows alone, and with the first row that was refused;
        seconds (nan where the policy predicts nothing, inf where nothing was refused).
    overload : bool
        The step was admitted in overload mode.
    """

    run: BoolArray
    predicted_s: float = float("nan")
    base_s: float = float("nan")
    refused_s: float = float("inf")
    overload: bool = False
