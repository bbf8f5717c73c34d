from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_compiled.branches import StepFeatures, StepTimePredictor, TaperPolicy, make_policy
from sgl_compiled.branches.admission import MAX_WAIT_STEPS, rank_in_request
from sgl_compiled.branches.slack import allowed_pace_s
from sgl_compiled.errors import RequestError

from .views import make_view, trained, views

ALL = ["taper", "eager", "off", "cap:2", "cap:5"]


@pytest.mark.parametrize("name", ALL)
def test_policy_keeps_its_name(name):
    assert make_policy(name).name == name


@pytest.mark.parametrize("name", ["", "cap", "cap:0", "cap:-1", "cap:2.5", "TAPER", "on", "cap:99999999"])
def test_unknown_policy_is_refused_with_the_names_that_exist(name):
    with pytest.raises(RequestError, match="taper, eager, off or cap:N"):
        make_policy(name)


@given(views(), st.sampled_from(ALL), st.booleans())
@settings(max_examples=40, deadline=None)
def test_every_request_runs_and_no_policy_exceeds_its_width(view, name, warm):
    predictor = trained() if warm else StepTimePredictor()
    decision = make_policy(name).decide(view, predictor)
    width = np.bincount(view.owner[decision.run], minlength=view.requests)
    live = np.bincount(view.owner, minlength=view.requests)
    assert (width >= 1).all()
    assert (width <= live).all()
    if name == "eager":
        assert decision.run.all()
    if name in ("off", "cap:2", "cap:5"):
        cap = 1 if name == "off" else int(name[4:])
        assert (width == np.minimum(live, cap)).all()


def externality(view, predictor, step_s, base_s):
    """Requests that a step of `step_s` costs, one neighbour at a time by the documented formula."""
    live = np.bincount(view.owner, minlength=view.requests)
    lost, neighbours = 0.0, 0
    for request in np.flatnonzero(live == 1):
        remaining = float(view.remaining_tokens[view.owner == request][0])
        to_line, to_end = view.line_s[request] - view.now_s, view.deadline_s[request] - view.now_s
        token = view.tpot_s[request] + to_line / remaining if np.isfinite(view.tpot_s[request]) else np.inf
        pace = min(token, (to_end - view.after_tokens[request] * (base_s + predictor.gap_s)) / remaining)
        if not np.isfinite(pace):
            continue
        neighbours += 1

        def chance(seconds, pace=pace, remaining=remaining):
            stalls = predictor.gap_sigma_s**2 / remaining
            sigma = (stalls + (predictor.relative_sigma * seconds / 2) ** 2 + 1e-18) ** 0.5
            return min(max((pace - seconds - predictor.gap_s) / (2 * sigma), 0.0), 1.0)

        lost += chance(base_s) - chance(step_s)
    return lost, neighbours


@given(views())
@settings(max_examples=35, deadline=None)
def test_taper_admits_as_much_as_the_tolerated_externality_allows(view):
    predictor = trained()
    decision = TaperPolicy().decide(view, predictor)
    assert decision.base_s <= decision.predicted_s + 1e-12
    expected = predictor.predict(StepFeatures(int(decision.run.sum()), int(view.context_tokens[decision.run].sum())))
    assert decision.predicted_s == pytest.approx(expected)
    if decision.overload:
        assert decision.run.all()
        return
    lost, neighbours = externality(view, predictor, decision.predicted_s, decision.base_s)
    assert lost <= max(0.1, neighbours / 100) + 1e-9
    if np.isfinite(decision.refused_s):
        refused, _ = externality(view, predictor, decision.refused_s, decision.base_s)
        assert refused > max(0.1, neighbours / 100) - 1e-9


@given(views())
@settings(max_examples=30, deadline=None)
def test_decisions_are_functions_of_the_view(view):
    first = TaperPolicy().decide(view, trained())
    again = TaperPolicy().decide(view, trained())
    assert (first.run == again.run).all()


def brute_rank(view, bound):
    """Order by plain Python sorting of the documented rule."""
    rank = np.zeros(len(view.owner), dtype=int)
    for request in range(view.requests):
        rows = [i for i in range(len(view.owner)) if view.owner[i] == request]

        def key(i):
            waited = int(view.waited_steps[i])
            return (0, -waited, 0, i) if waited >= bound else (1, int(view.progress_tokens[i]) // 32, waited > 0, i)

        for place, row in enumerate(sorted(rows, key=key)):
            rank[row] = place
    return rank


@given(views())
@settings(max_examples=35, deadline=None)
def test_ranks_equal_brute_force(view):
    rank, live = rank_in_request(view, 256)
    assert rank.tolist() == brute_rank(view, 256).tolist()
    assert live.tolist() == np.bincount(view.owner, minlength=view.requests).tolist()


def test_slack_and_no_slack():
    predictor = trained(step_s=0.015, row_s=1e-3)
    tight = make_view([1, 8], tpot=[0.0175, np.inf], line=[10.0, np.inf])
    loose = make_view([1, 8], tpot=[0.05, np.inf], line=[10.0, np.inf])
    assert TaperPolicy().decide(tight, predictor).run.sum() == 2
    assert TaperPolicy().decide(loose, predictor).run.sum() == 9


def test_a_request_that_cannot_be_saved_holds_nothing_back():
    predictor = trained(step_s=0.015, row_s=1e-3)
    hopeless = make_view([1, 8], tpot=[0.010, np.inf], line=[9.0, np.inf])
    decision = TaperPolicy().decide(hopeless, predictor)
    assert decision.run.all()
    assert decision.overload
    both = make_view([1, 1, 8], tpot=[0.010, 0.020, np.inf], line=[9.0, 10.0, np.inf])
    assert TaperPolicy().decide(both, predictor).run.sum() < 6


def test_waiting_for_memory_admits_all():
    predictor = trained(step_s=0.015, row_s=1e-3)
    kwargs = {"tpot": [0.0175, np.inf], "line": [10.0, np.inf]}
    assert not TaperPolicy().decide(make_view([1, 8], **kwargs), predictor).overload
    blocked = TaperPolicy().decide(make_view([1, 8], **kwargs, blocked=True), predictor)
    assert blocked.overload
    assert blocked.run.all()


def test_width_goes_to_the_group_whose_deadline_needs_it():
    predictor = trained(step_s=0.015, row_s=1e-3)
    # Both groups have 4 rows of 50 tokens; 200 tokens in 1 s need about 4 rows at 19 ms, in 60 s one is plenty.
    view = make_view(
        [1, 4, 4], tpot=[0.0215, np.inf, np.inf], line=[10.0, np.inf, np.inf], deadline=[np.inf, 70.0, 11.2]
    )
    decision = TaperPolicy().decide(view, predictor)
    width = np.bincount(view.owner[decision.run], minlength=3)
    assert width.tolist() == [1, 1, 4]


@pytest.mark.parametrize("name", ["taper", "off", "cap:2"])
@pytest.mark.parametrize("fanout", [2, 5, 17])
def test_no_branch_starves_even_at_zero_slack(name, fanout):
    """A serial request that never has slack, a group that wants all: every branch advances within the bound."""
    predictor, policy = trained(step_s=0.015, row_s=1e-3), make_policy(name)
    live = [1, fanout]
    progress, waited = np.zeros(fanout + 1, dtype=np.int64), np.zeros(fanout + 1, dtype=np.int64)
    longest = 0
    for _ in range(1200):
        view = make_view(live, progress=progress, waited=waited, tpot=[0.0171, np.inf], line=[10.0, np.inf])
        run = policy.decide(view, predictor).run
        progress, waited = progress + run, np.where(run, 0, waited + 1)
        longest = max(longest, int(waited.max()))
    assert longest <= MAX_WAIT_STEPS + fanout
    assert progress[1:].min() > 0


def test_bounded_wait_with_a_broken_predictor():
    class Broken(StepTimePredictor):
        def predict(self, features):
            return 1e9

    policy, waited, longest = TaperPolicy(), np.zeros(9, dtype=np.int64), 0
    for _ in range(1200):
        view = make_view([1, 8], waited=waited, tpot=[0.02, np.inf], line=[-5.0, np.inf], deadline=[np.inf, 0.0])
        run = policy.decide(view, Broken()).run
        waited = np.where(run, 0, waited + 1)
        longest = max(longest, int(waited.max()))
    assert longest <= MAX_WAIT_STEPS + 8


def test_a_predictor_that_knows_one_width_explores_until_the_neighbour_is_saved():
    """7 rows take 17 ms and 2 take 12; the serial request needs 13.5: width must come down, from a cold start."""
    predictor, policy, widths = StepTimePredictor(), TaperPolicy(), []
    for step in range(400):
        view = make_view([1, 6], tpot=[0.0135, np.inf], line=[10.0, np.inf], context=100 + step)
        run = policy.decide(view, predictor).run
        predictor.observe(StepFeatures(int(run.sum()), int(view.context_tokens[run].sum())), 0.010 + 0.001 * run.sum())
        widths.append(int(run.sum()))
    assert max(widths) == 7
    assert max(widths[200:]) == 3


def pace(**kwargs):
    given_ = {"line": np.inf, "tpot": np.inf, "deadline": np.inf, "remaining": 100.0, "after": 0.0} | kwargs
    columns = {name: np.array([value], dtype=float) for name, value in given_.items()}
    return float(
        allowed_pace_s(
            10.0, columns["line"], columns["tpot"], columns["deadline"], columns["remaining"], columns["after"], 0.02
        )[0]
    )


def test_pace_by_hand():
    assert pace() == np.inf
    assert pace(line=10.0, tpot=0.05) == pytest.approx(0.05)
    assert pace(line=11.0, tpot=0.05) == pytest.approx(0.06)
    assert pace(line=9.0, tpot=0.05) == pytest.approx(0.04)
    assert pace(deadline=14.0) == pytest.approx(0.04)
    assert pace(deadline=14.0, after=100.0) == pytest.approx(0.02)
    assert pace(deadline=14.0, line=11.0, tpot=0.05) == pytest.approx(0.04)
    assert pace(deadline=9.0) < 0


@given(st.floats(0.001, 1), st.floats(0, 1000), st.floats(1, 1000))
def test_at_exactly_the_allowed_pace_the_last_token_is_on_its_line(tpot, start, remaining):
    """The formula inverted: `remaining` tokens at pace p end at line + remaining * tpot."""
    p = pace(line=start, tpot=tpot, remaining=remaining)
    assert 10.0 + remaining * p == pytest.approx(start + remaining * tpot)
