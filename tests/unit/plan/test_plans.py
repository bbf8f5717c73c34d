"""Plans and their predicted times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_compiled.plan.cost import CostModel, OnlineCost, Sample, fit
from sgl_compiled.plan.memory import PrefixMemory, RankMemory
from sgl_compiled.plan.narrow import SlotRanking
from sgl_compiled.plan.passes import CHUNKED, Plan, compositions, even_compositions, fixed_plan
from sgl_compiled.plan.planner import PassSize, choose, predict


def test_compositions() -> None:
    assert [plan.passes for plan in compositions(3)] == [(3,), (1, 2), (2, 1), (1, 1, 1)]
    assert len(list(compositions(6))) == 2**5
    many = [plan.passes for plan in even_compositions(10, 4)]
    assert (10,) in many and (2,) * 5 in many and (3, 3, 3, 1) in many and (1, 2, 2, 2, 2, 1) in many
    assert all(sum(passes) == 10 for passes in many)


@pytest.mark.parametrize(
    ("name", "actions", "expected"),
    [
        ("root+probe", 4, Plan("root+probe", (1, 3))),
        ("root+probe", 1, Plan("root+probe", (1,))),
        ("[2,2]", 4, Plan("[2,2]", (2, 2))),
        ("2, 1", 3, Plan("[2,1]", (2, 1))),
        ("chunked", 5, CHUNKED),
    ],
)
def test_named_plans(name: str, actions: int, expected: Plan) -> None:
    assert fixed_plan(name, actions) == expected


@pytest.mark.parametrize(("name", "message"), [("fast", "unknown plan"), ("[2,2]", "add up"), ("[0,3]", "add up")])
def test_bad_plans(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fixed_plan(name, 3)


def paper_sizes(plan: Plan, k: int = 20, m: int = 3, n: int = 4) -> tuple[PassSize, ...]:
    """Sizes of the paper's slots: k labels, m tokens each, one decision a slot."""
    passes = (1,) * n if plan.name == "chunked" else plan.passes
    out, done = [], 0
    for count in passes:
        width, tree = 1, 0
        for level in range(count - 1):
            width *= k - done - level
            tree += m * width
        # A path's tokens that an earlier pass evaluated as tree are in the cache already; the others are new.
        out.append(PassSize(m * done, tree))
        done += count
    return tuple(out)


def test_h200_plans_lookahead_two_two_at_four_slots() -> None:
    """Qwen2.5-7B in bf16 on one H200, roofline: [2,2] against chunked at a cached prompt of 1,400 tokens."""
    h200 = CostModel.roofline(
        weight_bytes=15.2e9, flop_per_token=15.2e9, bandwidth_bytes_s=4.3e12, flops=790e12, overhead_ms=0.5
    )
    assert h200.floor_ms == pytest.approx(3.53, abs=0.01)
    best, all_plans = choose(4, paper_sizes, h200, cached=1_399, fresh=1)
    assert best.plan.passes == (2, 2)
    times = {candidate.plan.name: candidate.ms for candidate in all_plans}
    assert times["chunked"] / best.ms >= 1.6
    paper = predict(paper_sizes(Plan("root+probe", (1, 3))), h200, cached=1_399, fresh=1)
    assert paper > times["chunked"]


def test_h200_plans_pairs_at_ten_slots() -> None:
    """Beyond eight actions not every composition is looked at; what is good there still is."""
    h200 = CostModel(a_ms=2.0, b_ms=0.02, floor_ms=3.5)
    best, considered = choose(10, lambda plan: paper_sizes(plan, n=10), h200, cached=1_399, fresh=1)
    assert best.plan.passes == (2,) * 5
    (chunked,) = (candidate for candidate in considered if candidate.plan is CHUNKED)
    assert chunked.ms > 1.6 * best.ms


def test_under_load_width_is_not_free() -> None:
    h200 = CostModel(a_ms=0.5, b_ms=0.0193, floor_ms=3.5)
    alone, _ = choose(3, lambda plan: paper_sizes(plan, n=3), h200, cached=1_399, fresh=1)
    assert len(alone.plan.passes) == 2
    crowded, _ = choose(3, lambda plan: paper_sizes(plan, n=3), h200, cached=1_399, fresh=1, load=16)
    assert sum(size.tree for size in crowded.sizes) < sum(size.tree for size in alone.sizes)


def test_plans_that_do_not_fit_are_left_out() -> None:
    sizes = (PassSize(0, 0),)
    best, found = choose(3, lambda plan: sizes if plan is CHUNKED else None, CostModel(1, 1), cached=10, fresh=1)
    assert best.plan is CHUNKED
    assert len(found) == 1


costs = st.builds(
    CostModel,
    a_ms=st.floats(0.1, 50),
    b_ms=st.floats(0.001, 5),
    c_ms=st.floats(1e-6, 1e-3),
    d_ms=st.floats(0.001, 5),
)


@given(costs, st.randoms(use_true_random=False))
def test_fit_finds_the_model_that_made_the_samples(model: CostModel, rng: object) -> None:
    samples = [
        Sample(tokens, prefix, rows, model.pass_ms(tokens, prefix, rows))
        for tokens, rows in ((1, 1), (4, 1), (60, 21), (60, 2), (300, 40))
        for prefix in (0, 700, 1400)
    ]
    fitted = fit(samples)
    for sample in samples:
        assert fitted.pass_ms(sample.tokens, sample.prefix, sample.rows) == pytest.approx(sample.ms, rel=1e-3)


def test_online_cost_follows_the_server() -> None:
    truth = CostModel(a_ms=5, b_ms=0.5)
    online = OnlineCost(CostModel(a_ms=50, b_ms=0.01))
    for index in range(64):
        tokens = (1, 7, 60, 200, 400)[index % 5]
        online.observe(Sample(tokens, 1_000, 1, truth.pass_ms(tokens, 1_000)))
    assert online.model.pass_ms(60, 1_000) == pytest.approx(truth.pass_ms(60, 1_000), rel=0.05)


def test_online_cost_of_passes_that_are_all_alike_keeps_the_shape() -> None:
    initial = CostModel(a_ms=50, b_ms=0.5, d_ms=1)
    online = OnlineCost(initial)
    for _ in range(64):
        online.observe(Sample(60, 1_000, 1, 2 * initial.pass_ms(60, 1_000)))
    for shape in ((60, 1_000, 1), (1, 500, 1), (30, 500, 20)):
        assert online.model.pass_ms(*shape) == pytest.approx(2 * initial.pass_ms(*shape), rel=0.05)


def test_online_cost_keeps_the_floor() -> None:
    """Passes that the reading of the weights hides do not make wide ones free, however many are seen."""
    initial = CostModel(a_ms=2.0, b_ms=0.02, floor_ms=3.5)
    online = OnlineCost(initial)
    for _ in range(320):
        online.observe(Sample(60, 1_400, 20, 1.2 * initial.pass_ms(60, 1_400, 20)))
    for shape in ((60, 1_400, 20), (1, 1_400, 1), (3_000, 1_400, 362)):
        assert online.model.pass_ms(*shape) == pytest.approx(1.2 * initial.pass_ms(*shape), rel=0.05)


def test_online_cost_tells_passes_from_rows() -> None:
    """Chunked passes read one row each, fresh prompts many tokens: alone they do not say what a second row costs."""
    truth = CostModel(a_ms=60, b_ms=3, d_ms=0.5)
    rng = np.random.default_rng(0)
    online = OnlineCost(CostModel(a_ms=80, b_ms=2.5, d_ms=0.6))
    for index in range(256):
        tokens, prefix = ((1, 1_400), (4, 1_400), (1_400, 0))[index % 3]
        online.observe(Sample(tokens, prefix, 1, truth.pass_ms(tokens, prefix) * rng.uniform(0.8, 1.3)))
    two_narrow, one_wide = 2 * online.model.pass_ms(1, 1_400, 1), online.model.pass_ms(3, 1_400, 3)
    assert one_wide < 0.7 * two_narrow


def test_narrowing_waits_until_winners_come_from_the_top() -> None:
    """Before anything was seen a narrow tree is a bad bet; when winners keep to the top ranks it pays."""
    slow = CostModel(a_ms=60, b_ms=4)

    def sizes(plan: Plan) -> tuple[PassSize, ...]:
        wide = paper_sizes(plan, n=3)
        if plan.width is None:
            return wide
        return tuple(PassSize(size.path, min(size.tree, 3 * plan.width)) for size in wide)

    ranks = RankMemory()
    before, _ = choose(3, sizes, slow, cached=1_399, fresh=1, ranks=ranks)
    assert before.plan.width is None
    for _ in range(60):
        ranks.observe(0)
        ranks.observe(1)
    after, _ = choose(3, sizes, slow, cached=1_399, fresh=1, ranks=ranks)
    assert after.plan.width is not None
    assert after.ms < before.ms
    for _ in range(200):
        ranks.observe(30)
    again, _ = choose(3, sizes, slow, cached=1_399, fresh=1, ranks=ranks)
    assert again.plan.width is None


def test_named_narrow_plans() -> None:
    assert fixed_plan("[1,2]~4", 3) == Plan("[1,2]~4", (1, 2), 4)
    for bad in ("[2,1]~4", "[3]~2", "[1,2]~0", "[1,2]~x"):
        with pytest.raises(ValueError, match="plan"):
            fixed_plan(bad, 3)


def test_prefix_memory() -> None:
    memory = PrefixMemory(capacity_tokens=640, block=64)
    prompt = list(range(200))
    assert memory.cached(prompt) == 0
    memory.add(prompt)
    assert memory.cached(prompt) == 199
    assert memory.cached([*prompt[:130], *[7] * 100]) == 128
    assert memory.cached(prompt[1:]) == 0
    for start in range(1_000, 3_000, 200):
        memory.add(list(range(start, start + 200)))
    assert memory.cached(prompt) == 0
    memory.add(prompt)
    memory.clear()
    assert memory.cached(prompt) == 0


def test_slot_ranking_keeps_the_best_of_the_first_slot() -> None:
    ranking = SlotRanking(lambda state: (state[0], state[1]), 2)
    ranking.add((0, "start"), (5, 6, 7, 8), np.array([0.1, 3.0, 2.0, -1.0]))
    ranking.add((1, "start"), (5, 7), np.array([9.0, 1.0]))
    children = {5: "a", 7: "b", 8: "c"}
    assert ranking.keep((1, "start"), children) == {5: "a", 7: "b"}
    assert ranking.keep((1, "elsewhere"), children) == children
    assert ranking.keep((0, "start"), children) == children
    assert ranking.rank((1, "start"), 5, (5, 7, 8)) == 1
    assert ranking.rank((0, "start"), 5, (5, 7, 8)) is None
    assert ranking.rank((1, "elsewhere"), 5, (5, 7)) is None
