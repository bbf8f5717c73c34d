"""Step views for tests: given by hand, or drawn by hypothesis."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from hypothesis import strategies as st

from sgl_compiled.branches import StepFeatures, StepTimePredictor, StepView


def make_view(
    live,
    *,
    now=10.0,
    progress=None,
    waited=None,
    remaining=50.0,
    line=None,
    tpot=None,
    deadline=None,
    context=1000,
    blocked=False,
):
    """View of requests with `live` rows each; scalars are spread over rows or requests."""
    owner = np.repeat(np.arange(len(live)), live)
    rows, requests = len(owner), len(live)

    def spread(value, size, default, dtype):
        return np.array(np.broadcast_to(default if value is None else value, size), dtype=dtype)

    view = StepView(
        now,
        owner,
        spread(context, rows, 0, np.int64),
        spread(progress, rows, 0, np.int64),
        spread(waited, rows, 0, np.int64),
        spread(remaining, rows, 0, np.float64),
        spread(line, requests, np.inf, np.float64),
        spread(tpot, requests, np.inf, np.float64),
        spread(deadline, requests, np.inf, np.float64),
        np.zeros(requests),
        blocked,
    )
    view.check_integrity()
    return view


@lru_cache
def trained(step_s=0.015, row_s=1e-4, context_s=1e-8, sizes=()):
    """Predictor (shared: do not teach it more) that has seen enough noiseless steps to know its coefficients."""
    predictor = StepTimePredictor(capture_sizes=sizes)
    rng = np.random.default_rng(0)
    for _ in range(200):
        batch = int(rng.integers(1, 200))
        context = batch * int(rng.integers(100, 3000))
        predictor.observe(StepFeatures(batch, context), step_s + row_s * predictor.padded(batch) + context_s * context)
    return predictor


@st.composite
def views(draw):
    """Any consistent view: late and early requests, with and without targets, grouped and not."""
    live = draw(st.lists(st.integers(1, 6), min_size=1, max_size=8))
    rows, requests = sum(live), len(live)
    target = st.one_of(st.just(np.inf), st.floats(1e-3, 1.0))
    tpot = draw(st.lists(target, min_size=requests, max_size=requests))
    slack = draw(st.lists(st.floats(-50, 50), min_size=requests, max_size=requests))
    end = draw(st.lists(st.one_of(st.just(np.inf), st.floats(-50, 50)), min_size=requests, max_size=requests))
    return make_view(
        live,
        progress=draw(st.lists(st.integers(0, 3000), min_size=rows, max_size=rows)),
        waited=draw(st.lists(st.integers(0, 600), min_size=rows, max_size=rows)),
        remaining=draw(st.lists(st.floats(1, 3000), min_size=rows, max_size=rows)),
        context=draw(st.lists(st.integers(1, 30000), min_size=rows, max_size=rows)),
        tpot=tpot,
        line=[10.0 + s if np.isfinite(t) else np.inf for s, t in zip(slack, tpot, strict=True)],
        deadline=[10.0 + e for e in end],
        blocked=draw(st.booleans()),
    )
