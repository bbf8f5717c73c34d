from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_compiled.branches import StepFeatures, StepTimePredictor

from .views import trained

SIZES = (1, 2, 4, *range(8, 257, 8))
TRUTH = np.array([0.0155, 2e-5, 6e-8, 0.015, 8e-5])


def steps(rng, count, truth, noise=0.03, spikes=0.01):
    for i in range(count):
        batch = int(60 + 40 * np.sin(i / 50) + rng.integers(0, 30))
        passes = int(rng.random() < 0.1)
        features = StepFeatures(
            batch, batch * int(rng.integers(900, 1500)), passes, passes * int(rng.integers(100, 4000))
        )
        padded = next(size for size in SIZES if size >= batch)
        row = np.array([1, padded, features.context_tokens, features.extend_passes, features.extend_tokens])
        elapsed = float(truth @ row) * float(np.exp(noise * rng.standard_normal()))
        yield features, elapsed + (0.05 if rng.random() < spikes else 0.0)


def relative_errors(predictor, stream):
    return np.array([predictor.observe(features, elapsed) / elapsed for features, elapsed in stream])


@pytest.mark.parametrize("seed", range(5))
def test_error_reaches_the_noise_in_a_hundred_steps_and_again_after_a_shift(seed):
    rng, predictor = np.random.default_rng(seed), StepTimePredictor(capture_sizes=SIZES)
    before = relative_errors(predictor, steps(rng, 1500, TRUTH))
    assert np.abs(before[100:]).mean() < 0.04
    assert abs(before[100:].mean()) < 0.015
    after = relative_errors(predictor, steps(rng, 1500, TRUTH * np.array([1.6, 3, 1.5, 1.6, 1.5])))
    assert np.abs(after[:3]).mean() > 0.2
    assert np.abs(after[30:200]).mean() < 0.06
    assert np.abs(after[200:]).mean() < 0.04
    assert predictor.shifts >= 1


def test_outliers_do_not_move_the_prediction():
    predictor = deepcopy(trained())
    known = predictor.predict(StepFeatures(64, 64_000))
    for i in range(40):
        predictor.observe(StepFeatures(64, 64_000), 1.0 if i % 10 == 0 else known)
    assert predictor.predict(StepFeatures(64, 64_000)) == pytest.approx(known, rel=0.02)


def test_coefficients_are_found_exactly_without_noise():
    c0, c1, c2, c3, c4 = trained(0.012, 3e-4, 2e-8).coefficients
    assert (c0, c1, c2) == (
        pytest.approx(0.012, rel=0.01),
        pytest.approx(3e-4, rel=0.01),
        pytest.approx(2e-8, rel=0.03),
    )
    assert c3 == c4 == 0.0


@pytest.mark.parametrize(("batch", "padded"), [(1, 1), (3, 4), (4, 4), (5, 8), (255, 256), (256, 256), (257, 257)])
def test_padding(batch, padded):
    assert StepTimePredictor(capture_sizes=SIZES).padded(batch) == padded


@given(
    st.lists(
        st.tuples(
            st.integers(1, 300), st.integers(1, 10**6), st.integers(0, 4), st.integers(0, 9000), st.floats(1e-4, 30)
        ),
        min_size=1,
        max_size=60,
    ),
    st.integers(1, 300),
    st.lists(st.integers(1, 30000), min_size=1, max_size=20),
)
@settings(max_examples=30, deadline=None)
def test_any_history_leaves_finite_monotone_predictions(history, batch, extra):
    predictor = StepTimePredictor(capture_sizes=SIZES)
    for rows, context, passes, tokens, elapsed in history:
        error = predictor.observe(StepFeatures(rows, context, passes, tokens), elapsed)
        assert np.isfinite(error)
    assert all(np.isfinite(c) and c >= 0 for c in predictor.coefficients)
    base = predictor.predict(StepFeatures(batch, 1000))
    widths = predictor.predict_widths(batch, 1000, np.array(extra))
    assert (np.diff(np.concatenate([[base], widths])) >= -1e-12).all()
    for i in range(len(extra)):
        one = predictor.predict(StepFeatures(batch + i + 1, 1000 + sum(extra[: i + 1])))
        assert widths[i] == pytest.approx(one)
    assert predictor.relative_sigma >= 0
    assert predictor.gap_s >= 0 and predictor.gap_sigma_s >= 0


def test_time_must_pass():
    with pytest.raises(AssertionError):
        StepTimePredictor().observe(StepFeatures(1, 1), 0.0)
