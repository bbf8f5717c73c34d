"""Sections on compiled choices: speed, plans, passes, compilation, precision, probabilities."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from bench.sections.markdown import Records, latest, place, table

__all__ = [
    "clients",
    "compile_speed",
    "decision_quality",
    "parity",
    "pass_overhead",
    "select_vs_serial",
    "work_depth",
]


def select_vs_serial(records: Records) -> Iterator[str]:
    """Every cell: times, and how much slower than ``auto`` the others are."""
    records = latest(records, lambda record: (record["grammar_backend"], *record["cell"].values()))
    yield from place(records)
    yield (
        "In brackets: how many times the median of `auto`. Same: answers with the serial reference's tokens. The arms "
        "took turns. Stock decoding spells freely, and its regex forbids repeats where there are up to 400 answers."
    )
    yield ""
    for backend in dict.fromkeys(record["grammar_backend"] for record in records):
        mine = [record for record in records if record["grammar_backend"] == backend]
        arms = list(dict.fromkeys(name for record in mine for name in record["arms"]))
        yield f"Grammar backend `{backend}`:"
        yield ""
        rows = []
        for record in mine:
            cell, found = record["cell"], record["arms"]
            kind = "cached" if cell["cached"] else "fresh"
            exact = [arm for arm in found.values() if arm["same_tokens"] is not None]
            same = min(arm["same_tokens"] for arm in exact)
            times = [
                f"{found[name]['median_ms']:.0f} ({record['times_faster_than'][name]:.1f})" if name in found else ""
                for name in arms
            ]
            rows.append(
                [f"{cell['k_labels']}", f"{cell['n_slots']}", f"{cell['prompt_tokens']} {kind}"]
                + [f"{found['auto']['median_ms']:.0f}", *times[1:], f"{same} of {record['repeats']}"]
            )
        yield from table(["labels", "slots", "prompt", *arms, "same"], rows)


def work_depth(records: Records) -> Iterator[str]:
    """``auto`` beside the best fixed plan, chunked and token-wise decoding."""
    records = latest(records, lambda record: (record["k_labels"], record["n_slots"], record["prompt_tokens"]))
    yield from place(records)
    rows = []
    for record in records:
        ways = record["ways"]
        fixed = {name: way for name, way in ways.items() if name not in ("auto", "serial", "outlines")}
        best = min(fixed, key=lambda name: fixed[name]["median_ms"])
        auto = ways["auto"]["median_ms"]
        stock = f"{ways['outlines']['median_ms'] / auto:.1f}" if "outlines" in ways else ""
        same = min(way["same_as_serial"] for name, way in ways.items() if name != "outlines")
        rows.append(
            [
                str(record["k_labels"]),
                str(record["n_slots"]),
                str(record["prompt_tokens"]),
                f"{auto:.0f}",
                ", ".join(dict.fromkeys(record["auto_chose"])),
                f"{best} {fixed[best]['median_ms']:.0f}",
                f"{record['auto_over_best_fixed']:.2f}",
                f"{auto / ways['chunked']['median_ms']:.2f}",
                f"{ways['serial']['median_ms'] / auto:.1f}",
                stock,
                f"{same} of {record['repeats']}",
            ]
        )
    near = sum(record["auto_over_best_fixed"] <= 1.1 for record in records)
    yield f"`auto` is within 10 % of the best fixed plan in {near} of {len(records)} cells."
    yield ""
    yield from table(
        ["labels", "slots", "prompt", "auto", "chose", "best fixed", "auto / best", "auto / chunked"]
        + ["serial / auto", "outlines / auto", "same"],
        rows,
    )


def clients(records: Records) -> Iterator[str]:
    """Many clients at once."""
    for record in latest(records, lambda record: (record["clients"], record["prompt_tokens"])):
        yield from place([record])
        yield (
            f"{record['clients']} clients, {record['decisions']} choices of {record['n_slots']} of "
            f"{record['k_labels']} labels, prompts of {record['prompt_tokens']} tokens:"
        )
        yield ""
        rows = [
            [
                f"`{name}`",
                f"{way['decisions_per_s']:.2f}",
                f"{way['p50_ms']:.0f}",
                f"{way['p95_ms']:.0f}",
                "" if way["same_as_serial"] is None else str(way["same_as_serial"]),
            ]
            for name, way in record["ways"].items()
        ]
        yield from table(["way", "choices a second", "p50 ms", "p95 ms", "same as serial"], rows)


def compile_speed(records: Records) -> Iterator[str]:
    """Grammars to their first mask."""
    records = latest(records, lambda record: (record["grammar"], record["engine"]))
    yield from place(records)
    engines = list(dict.fromkeys(record["engine"] for record in records))
    rows = []
    for grammar in dict.fromkeys(record["grammar"] for record in records):
        row = [grammar]
        for engine in engines:
            record = next(r for r in records if (r["grammar"], r["engine"]) == (grammar, engine))
            row.append(f"{record['median_ms']:,.1f}" if record["median_ms"] is not None else str(record["refused"]))
        rows.append(row)
    yield from table(["grammar", *engines], rows)


def pass_overhead(records: Records) -> Iterator[str]:
    """What a pass costs beside its forward."""
    records = records[-1:]
    yield from place(records)
    rows = [
        [f"{r['pass_ms']:.1f}", f"{r['between_ms']:.2f}", f"{r['fixed_ms']:.1f}", f"{r['decoded_token_ms']:.1f}"]
        + [f"{r['same_as_serial']} of {r['answers']}"]
        for r in records
    ]
    yield from table(["ms a pass", "of it between passes", "ms a request", "ms a decoded token", "same"], rows)


def parity(records: Records) -> Iterator[str]:
    """How far reduced precision takes compiled choices from serial ones."""
    for record in latest(records, lambda record: (record["environment"]["model"], record["dtype"])):
        yield from place([record])
        logits = record["epsilon"]["logits"]
        yield (
            f"{record['environment']['model']}, {record['dtype']}: "
            f"{record['answers_that_differ']} of {record['answers']} answers differ "
            f"({len(record['flip_margins'])} first flips among {record['decisions']} decisions, "
            f"{record['flips_outside_two_epsilon']} of them outside 2 epsilon). Deviation of the legal "
            f"log-probabilities: mean {logits['mean']:.2g}, p95 {logits['p95']:.2g}, p99 {logits['p99']:.2g}, largest "
            f"{logits['max']:.2g}. From theta = {record['parity_theta']:.3g} on all answers agree."
        )
        yield ""
        step = max(1, len(record["curve"]) // 12)
        rows = [
            [f"{theta:.3f}", f"{gated:.0%}", f"{replayed:.0%}", f"{agree:.0%}", f"{cost:.0f}"]
            for theta, gated, replayed, agree, cost in record["curve"][::step]
        ]
        yield from table(["theta", "doubtful decisions", "replayed answers", "agreement", "replay, ms an answer"], rows)


def decision_quality(records: Records) -> Iterator[str]:
    """What certified probabilities cost and say."""
    summaries = latest([r for r in records if r["kind"] == "summary"], lambda record: record["dataset"])
    yield from place(summaries)
    for found in summaries:
        questions = [r for r in records if r["kind"] == "question" and r["dataset"] == found["dataset"]]
        yield (
            f"{found['dataset']}: {found['questions']} questions, {100 * found['certified_share']:.0f} % certified; "
            f"decision states evaluated, median {found['states_expanded_median']:.0f} of {found['states_median']:.0f}."
        )
        if found["time_ratio_median"] is not None:
            yield f"The set search took {found['time_ratio_median']:.2f} times the full probe's time (median)."
        if found["interaction_quartiles"] is not None:
            quartiles = ", ".join(f"{value:.3f}" for value in found["interaction_quartiles"])
            yield f"Interaction mass in nats, least, quartiles, largest: {quartiles}."
        shares = (
            ("unary_is_greedy_share", "the unary policy chooses the greedy sequence"),
            ("greedy_is_set_share", "the greedy labels are the most probable set"),
            ("conditional_differs_share", "policy and conditional prefer different answers (where both are certified)"),
        )
        parts = [f"{says}: {found[name]:.0%}" for name, says in shares if found[name] is not None]
        variations = sorted(q["total_variation"] for q in questions if q["total_variation"])
        low, high = (statistics.median(bound) for bound in zip(*variations, strict=True))
        parts.append(f"total variation between the two, medians of the bounds: {low:.3f} to {high:.3f}")
        yield "; ".join(parts).capitalize() + "."
        yield ""
