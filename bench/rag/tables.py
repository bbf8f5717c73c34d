"""The numbers of the report, each from the records of one data set, nesting and arm."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.rag.records import Question, Round
from bench.rag.stats import mean_interval, ratio_interval

__all__ = ["REFERENCE", "Difference", "Group", "Row", "differences", "groups", "row", "saving"]

REFERENCE = "serial"
EXACT = ("serial", "compiled", "paper", "chunked")
"""Arms that promise the reference's answer."""

Interval = tuple[float, float, float]


@dataclass(frozen=True)
class Group:
    """The records of one data set under one nesting, by arm and question."""

    dataset: str
    nesting: str
    arms: dict[str, dict[str, Question]]


@dataclass(frozen=True)
class Row:
    """One arm of a group; a figure is None where nothing was measured."""

    arm: str
    questions: int
    errors: int
    skipped: str | None
    quality: dict[str, Interval]
    same_questions: tuple[int, int] | None
    same_rounds: tuple[int, int] | None
    same_sets: tuple[int, int] | None
    mean_ms: float | None
    median_ms: float | None
    saved: Interval | None
    output_tokens: float | None
    passes: float | None
    positions: float | None


@dataclass(frozen=True)
class Difference:
    """A round in which an exact arm and the reference differ."""

    line: int
    question: Question
    number: int
    mine: Round
    reference: Round | None


def groups(records: Iterable[Question]) -> list[Group]:
    """Return the groups, in the order of the file."""
    found: dict[tuple[str, str], dict[str, dict[str, Question]]] = defaultdict(lambda: defaultdict(dict))
    for record in records:
        found[record.dataset, record.nesting][record.arm][record.question] = record
    return [Group(dataset, nesting, dict(arms)) for (dataset, nesting), arms in found.items()]


def _sequences(question: Question) -> list[tuple[list[str], list[int] | None]]:
    return [(one.options, one.picks) for one in question.rounds]


def row(group: Group, arm: str) -> Row:
    """Return the figures of an arm; agreement and savings are over the questions that the reference answered too."""
    answered = [record for record in group.arms[arm].values() if record.status != "skipped"]
    skipped = [record.detail or "" for record in group.arms[arm].values() if record.status == "skipped"]
    reference = group.arms.get(REFERENCE, {})
    pairs = [(record, reference[record.question]) for record in answered if record.question in reference]
    rounds = [one for record in answered for one in record.rounds]
    return Row(
        arm=arm,
        questions=len(answered),
        errors=sum(record.status == "error" for record in answered),
        skipped=skipped[0] if skipped else None,
        quality=_quality(answered),
        same_questions=_count(_sequences(mine) == _sequences(other) for mine, other in pairs),
        same_rounds=_count(one for pair in pairs for one in _rounds_agree(*pair, sets=False)),
        same_sets=_count(one for pair in pairs for one in _rounds_agree(*pair, sets=True)),
        mean_ms=_mean([one.ms for one in rounds]),
        median_ms=statistics.median([one.ms for one in rounds]) if rounds else None,
        saved=saving(group, arm, REFERENCE) if arm != REFERENCE else None,
        output_tokens=_mean([one.output_tokens for one in rounds]),
        passes=_mean([one.passes for one in rounds]),
        positions=_mean([one.positions for one in rounds]),
    )


def saving(group: Group, arm: str, other: str) -> Interval | None:
    """Return the share of another arm's time that an arm does without, over the rounds that both reached."""
    theirs = group.arms.get(other, {})
    pairs = [(one, theirs[one.question]) for one in group.arms.get(arm, {}).values() if one.question in theirs]
    pairs = [pair for pair in pairs if _shared_ms(*pair)]
    return _saved(pairs) if pairs else None


def _quality(answered: Sequence[Question]) -> dict[str, Interval]:
    out = {}
    for name in dict.fromkeys(name for record in answered for name in record.quality):
        scored = [record for record in answered if name in record.quality]
        out[name] = mean_interval([record.quality[name] for record in scored], [record.cluster for record in scored])
    return out


def _rounds_agree(mine: Question, other: Question, *, sets: bool) -> list[bool]:
    """Return one truth a round of the reference; a round that offers other options, or is missing, does not agree."""
    out = []
    for index, theirs in enumerate(other.rounds):
        if index >= len(mine.rounds) or mine.rounds[index].options != theirs.options:
            out.append(False)
            continue
        ours, right = mine.rounds[index].picks, theirs.picks
        out.append(ours is not None and right is not None and (set(ours) == set(right) if sets else ours == right))
    return out


def _shared_ms(mine: Question, other: Question) -> list[tuple[float, float]]:
    """Return the times of both in the rounds that offered both the same options."""
    pairs = zip(mine.rounds, other.rounds, strict=False)
    return [(one.ms, two.ms) for one, two in pairs if one.options == two.options]


def _saved(pairs: Sequence[tuple[Question, Question]]) -> Interval:
    """Return the share of the reference's time that an arm does without, over the rounds that both reached."""
    both = [list(zip(*_shared_ms(*pair), strict=True)) for pair in pairs]
    mine = [sum(times[0]) for times in both]
    other = [sum(times[1]) for times in both]
    ratio, low, high = ratio_interval(mine, other, [pair[0].cluster for pair in pairs])
    return 1 - ratio, 1 - high, 1 - low


def _count(truths: Iterable[bool]) -> tuple[int, int] | None:
    values = list(truths)
    return (sum(values), len(values)) if values else None


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def differences(numbered: Iterable[tuple[int, Question]]) -> list[Difference]:
    """Return the first differing round of every question whose exact arm and reference differ."""
    records = list(numbered)
    reference = {record.key[:3]: record for _, record in records if record.arm == REFERENCE}
    out = []
    for line, record in records:
        other = reference.get(record.key[:3])
        if record.arm not in EXACT or other is None or _sequences(record) == _sequences(other):
            continue
        for index, one in enumerate(record.rounds):
            theirs = other.rounds[index] if index < len(other.rounds) else None
            if theirs is None or (one.options, one.picks) != (theirs.options, theirs.picks):
                out.append(Difference(line, record, index, one, theirs))
                break
    return out
