"""Epsilon, flip risk and the parity dial."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_compiled.control.calibration import load, save
from sgl_compiled.control.dial import Recorded, cost_curve, gated, parity_theta
from sgl_compiled.control.parity import Deviation, Epsilon, Replay, Setting, measure
from sgl_compiled.errors import ModelError

SETTING = Setting("smol", "bfloat16", "cpu", "torch_native", "0.5.15")
logits = st.lists(st.floats(-5, 5).map(lambda x: round(x, 2)), min_size=2, max_size=5)


@st.composite
def replays(draw: st.DrawFn) -> list[Replay]:
    out = []
    for _ in range(draw(st.integers(1, 20))):
        serial = np.array(draw(logits))
        noise = draw(st.lists(st.floats(-0.3, 0.3), min_size=len(serial), max_size=len(serial)))
        out.append(Replay(serial, serial + np.array(noise)))
    return out


@given(replays())
def test_every_flip_lies_inside_two_epsilon(records: list[Replay]) -> None:
    epsilon = measure(SETTING, records)
    flips = [record for record in records if record.flipped]
    assert epsilon.flips == len(flips) and epsilon.rows == len(records)
    for record in flips:
        assert epsilon.flip_risk(record.margins[0])
        probe = np.sort(record.probe)
        assert epsilon.flip_risk(float(probe[-1] - probe[-2]))
    assert epsilon.margins.max <= 2 * epsilon.logits.max + 1e-9
    assert epsilon.largest_flip_margin == max((record.margins[0] for record in flips), default=0.0)


def test_numbers_of_a_calibration() -> None:
    serial = np.array([3.0, 1.0, -np.inf])
    epsilon = measure(SETTING, [Replay(serial, np.array([2.75, 1.5, -np.inf])), Replay(np.zeros(1), np.ones(1))])
    assert epsilon.rows == 1 and epsilon.flips == 0
    assert (epsilon.logits.mean, epsilon.logits.max) == (0.375, 0.5)
    assert epsilon.margins.max == 0.75
    assert epsilon.flip_risk(1.0) and not epsilon.flip_risk(1.001)
    quantiles = Deviation.of(np.arange(101) / 100)
    assert (quantiles.mean, quantiles.p95, quantiles.p99, quantiles.max) == pytest.approx((0.5, 0.95, 0.99, 1.0))


def test_nothing_to_measure() -> None:
    for records in ([], [Replay(np.zeros(1), np.zeros(1))], [Replay(np.array([0.0, np.nan]), np.zeros(2))]):
        with pytest.raises(ModelError, match="no decision with finite logits"):
            measure(SETTING, records)


def test_tie_keeps_the_lower_id_first() -> None:
    replay = Replay(np.array([1.0, 1.0]), np.array([0.9, 1.1]))
    assert replay.flipped and replay.margins == pytest.approx((0.0, -0.2))


def test_files_keep_other_settings(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "epsilon.json"
    first = measure(SETTING, [Replay(np.array([1.0, 0.0]), np.array([0.5, 0.0]))])
    other = Epsilon(Setting("smol", "float32", "cpu", "torch_native", "0.5.15"), 1, first.logits, first.margins, 0, 0.0)
    save(path, [first])
    save(path, [other])
    assert load(path) == {SETTING: first, other.setting: other}
    newer = measure(SETTING, [Replay(np.array([1.0, 0.0]), np.array([0.25, 0.0]))])
    save(path, [newer])
    assert load(path) == {SETTING: newer, other.setting: other}


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"setting": {}}]', "{}x", '{"a": 1}'])
def test_files_that_are_not_ours(tmp_path: Path, text: str) -> None:
    path = tmp_path / "epsilon.json"
    path.write_text(text)
    with pytest.raises(ModelError, match="calibrate"):
        load(path)


@pytest.mark.parametrize(
    "margin, theta, expected", [(0.0, 0.0, False), (0.0, 0.1, True), (0.1, 0.1, False), (1, 9, True)]
)
def test_gate(margin: float, theta: float, expected: bool) -> None:
    assert gated(margin, theta) is expected


RECORDS = [
    Recorded(0, 0.1, True, 20.0),
    Recorded(0, 2.0, False, 20.0),
    Recorded(1, 0.3, True, 40.0),
    Recorded(1, 0.2, False, 40.0),
    Recorded(2, 5.0, False, 50.0),
]


def test_cost_curve() -> None:
    curve = cost_curve(RECORDS)
    assert len(curve) == 6
    assert curve[0] == (0.0, 0.0, 0.0, pytest.approx(1 / 3), 0.0)
    assert curve[-1][1:] == pytest.approx((1.0, 1.0, 1.0, 110 / 3))
    # The doubtful decision at 0.2 has its answer replayed, which mends the flip at 0.3 as well.
    assert cost_curve(RECORDS, [0.25])[0][1:] == pytest.approx((0.4, 2 / 3, 1.0, 20.0))
    assert cost_curve(RECORDS, [0.15])[0][1:] == pytest.approx((0.2, 1 / 3, 2 / 3, 20 / 3))


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0, 3), st.booleans()), min_size=1, max_size=30))
def test_agreement_is_complete_above_the_largest_flip(seen: list[tuple[int, float, bool]]) -> None:
    records = [Recorded(answer, margin, flipped, 1.0 + answer) for answer, margin, flipped in seen]
    theta = parity_theta(records)
    start, point = cost_curve(records, [0.0, theta])
    assert point.answer_agreement == 1.0
    assert (start.answer_agreement < 1.0) == any(record.flipped for record in records)
    curve = cost_curve(records)
    for one, other in zip(curve, curve[1:], strict=False):
        assert one.theta < other.theta and one.cost_ms <= other.cost_ms + 1e-9
        assert one.answer_agreement <= other.answer_agreement and one.gated_share < other.gated_share
