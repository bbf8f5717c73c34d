"""The reference policy, read off rows of logits: the highest legal logit, the lowest id on a tie, until the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sgl_compiled.errors import NumericalError
from sgl_compiled.grammar.layout import ROOT, TreeLayout, legal_ids
from sgl_compiled.grammar.tokens import State, TokenAutomaton

__all__ = ["Decision", "Row", "Walk", "decide", "forced", "greedy", "walk"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """Logits of one decision row.

    Attributes
    ----------
    logits : ndarray of float64, shape (n_legal,)
        Raw logits of the legal ids, in the order of ``DecisionRow.legal``.
    lse : float
        Log-sum-exp of the whole vocabulary's logits in that row.
    """

    logits: FloatArray
    lse: float


@dataclass(frozen=True)
class Decision:
    """One decision of the walk.

    Attributes
    ----------
    position : int
        Index in the answer's tokens of the token decided here (one past the end if a stop id won).
    action : int
        Action that the decision belongs to.
    legal : tuple of int
        Legal ids, ascending.
    token : int
        The id taken.
    logprobs : ndarray of float64, shape (n_legal,)
        Renormalised over the legal ids: the constrained policy's distribution.
    margin : float
        Logit of the best legal id minus that of the second best; 0 on a tie.
    label_mass : float
        Share of the full-vocabulary probability that falls on the legal ids.
    state : State
        Automaton state in which the decision was taken.
    """

    position: int
    action: int
    legal: tuple[int, ...]
    token: int
    logprobs: FloatArray
    margin: float
    label_mass: float
    state: State = None

    @property
    def logprob(self) -> float:
        """Log-probability of the token taken, under the constrained policy."""
        return float(self.logprobs[self.legal.index(self.token)])


@dataclass(frozen=True)
class Walk:
    """The part of an answer that one pass resolves.

    Attributes
    ----------
    tokens : tuple of int
        Answer tokens, without stop ids.
    state : State
        Where the walk stands; the next pass starts here unless ``complete``.
    decisions : tuple of Decision
    nodes : tuple of int
        Tree positions of those leading ``tokens`` that the tree holds.
    complete : bool
    """

    tokens: tuple[int, ...]
    state: State
    decisions: tuple[Decision, ...]
    nodes: tuple[int, ...]
    complete: bool


Choose = Callable[[FloatArray], int]
"""From the renormalised log-probabilities of a decision to the index of the candidate taken."""


def greedy(logprobs: FloatArray) -> int:
    """Index of the maximum; candidates are in ascending id order, so the lowest id wins a tie."""
    return int(np.argmax(logprobs))


def decide(
    row: Row,
    legal: tuple[int, ...],
    *,
    position: int = 0,
    action: int = 0,
    state: State = None,
    choose: Choose = greedy,
) -> Decision:
    """Take one decision.

    Raises
    ------
    NumericalError
        A legal logit is NaN or plus infinity, or none is finite: no choice can be made from such a row.
    """
    logits = row.logits
    assert len(logits) == len(legal) > 0
    if np.isnan(logits).any() or np.isnan(row.lse):
        raise NumericalError(
            "the model returned NaN logits at a decision, so no choice was made; check the model and dtype"
        )
    best = float(logits.max())
    if best == np.inf:
        raise NumericalError(
            "the model returned a logit of +inf for a legal token, so no choice was made; check the model and dtype"
        )
    if not np.isfinite(best):
        raise NumericalError("no legal token has a finite logit at a decision; no choice was made")
    local = best + float(np.log(np.exp(logits - best).sum()))
    logprobs = logits - local
    # The choice is made on raw logits: subtracting a constant must not create or break ties.
    index = greedy(logits) if choose is greedy else choose(logprobs)
    top = np.partition(logits, -2)[-2:] if len(logits) > 1 else np.array([-np.inf, best])
    mass = float(np.exp(min(local - row.lse, 0.0)))
    return Decision(position, action, legal, legal[index], logprobs, float(top[1] - top[0]), mass, state)


def forced(automaton: TokenAutomaton, state: State) -> tuple[tuple[int, ...], State]:
    """Follow the states that leave no choice; return the tokens on the way and where they end."""
    tokens: list[int] = []
    while True:
        following = automaton.step(state)
        if len(following) != 1 or automaton.accepts(state):
            return tuple(tokens), state
        ((token, state),) = following.items()
        tokens.append(token)


def walk(
    automaton: TokenAutomaton,
    state: State,
    layout: TreeLayout,
    rows: Sequence[Row],
    stop_ids: frozenset[int],
    *,
    position: int = 0,
    choose: Choose = greedy,
) -> Walk:
    """Walk from ``state`` as far as the evaluated rows reach.

    A winner that the tree does not follow (a miss) is taken all the same; the walk then ends, and the next pass
    continues behind it.

    Parameters
    ----------
    automaton, state, layout
        The tree, unfolded from ``state``.
    rows : sequence of Row
        One for each of ``layout.rows``, in order.
    stop_ids : frozenset of int
    position : int
        Answer tokens already taken by earlier passes.
    choose : callable
        Decision rule; :func:`greedy` is the reference policy.
    """
    assert len(rows) == len(layout.rows)
    tokens: list[int] = []
    nodes: list[int] = []
    decisions: list[Decision] = []
    node: int | None = ROOT
    while True:
        legal = legal_ids(automaton, state, stop_ids)
        if not legal:
            return Walk(tuple(tokens), state, tuple(decisions), tuple(nodes), True)
        if len(legal) == 1:
            token = legal[0]
        else:
            index = None if node is None else layout.row_at(node)
            if index is None:
                return Walk(tuple(tokens), state, tuple(decisions), tuple(nodes), False)
            decision = decide(
                rows[index],
                legal,
                position=position + len(tokens),
                action=automaton.actions(state),
                state=state,
                choose=choose,
            )
            decisions.append(decision)
            token = decision.token
            if token in stop_ids and token not in automaton.step(state):
                return Walk(tuple(tokens), state, tuple(decisions), tuple(nodes), True)
        tokens.append(token)
        state = automaton.step(state)[token]
        node = None if node is None else layout.child(node, token)
        if node is not None:
            nodes.append(node)
