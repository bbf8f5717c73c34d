"""Records: a killed run goes on without losing or repeating, and the report reads what was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.common import environment
from bench.rag.records import Question, ResultsError, Round, Run, Store, read
from bench.rag.tables import differences, groups, row, saving
from bench.report import main


def run(name: str, model: str = "model") -> Run:
    return Run(run=name, settings={"model": model}, environment=environment(model))


def question(
    number: int, arm: str, picks: list[int] | None, ms: float = 10.0, options: str = "ABC", quality: bool = False
) -> Question:
    one = Round(
        options=list(options),
        k=2,
        picks=picks,
        text=str(picks),
        ms=ms,
        output_tokens=1,
        passes=2,
        positions=3,
        min_margin=0.25,
    )
    return Question(
        run="r1",
        dataset="qasper",
        nesting="true",
        question=str(number),
        cluster=str(number // 2),
        arm=arm,
        status="error" if picks is None else "ok",
        load_average=1.0,
        rounds=[one],
        quality={"AllEvidence@512": quality},
    )


def test_goes_on_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "rag.jsonl"
    store = Store(path, run("r1"))
    store.add(question(0, "serial", [0, 1]))
    store.add(question(0, "compiled", [0, 1]))
    # The kill came while a third line was being written.
    with path.open("a") as sink:
        sink.write('{"kind":"question","run":"r1","data')
    again = Store(path, run("r2"))
    assert again.done == {("qasper", "true", "0", "serial"), ("qasper", "true", "0", "compiled")}
    again.add(question(1, "serial", [1, 0]))
    records = [record for _, record in read(path)]
    assert [record.kind for record in records] == ["run", "question", "question", "run", "question"]
    with pytest.raises(AssertionError):
        again.add(question(1, "serial", [1, 0]))


def test_every_cut_of_the_file_is_survived(tmp_path: Path) -> None:
    path = tmp_path / "rag.jsonl"
    store = Store(path, run("r1"))
    for number in range(2):
        store.add(question(number, "serial", [0, 1]))
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        again = Store(path, run("r2"))
        assert len(again.done) == max(0, whole[:size].count(b"\n") - 1)
        for number in range(2):
            record = question(number, "serial", [0, 1])
            if record.key not in again.done:
                again.add(record)
        keys = [record.key for _, record in read(path) if isinstance(record, Question)]
        assert sorted(keys) == [question(number, "serial", None).key for number in range(2)]


def test_other_settings_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rag.jsonl"
    Store(path, run("r1")).add(question(0, "serial", [0, 1]))
    with pytest.raises(ResultsError, match="write to another file with --out"):
        Store(path, run("r2", "another"))
    path.write_text("{}\n")
    with pytest.raises(ResultsError, match="line 1: not a record of this evaluation"):
        read(path)


def test_row() -> None:
    serial = [question(number, "serial", [0, 1], ms=20.0) for number in range(4)]
    mine = [
        question(0, "free", [0, 1], ms=10.0, quality=True),
        question(1, "free", [1, 0], ms=10.0),
        question(2, "free", None, ms=10.0),
        question(3, "free", [0, 1], ms=30.0, options="ABD"),
    ]
    (group,) = groups([*serial, *mine])
    got = row(group, "free")
    assert (got.questions, got.errors) == (4, 1)
    assert got.same_questions == (1, 4)
    assert got.same_rounds == (1, 4)
    assert got.same_sets == (2, 4)
    assert (got.median_ms, got.mean_ms) == (10.0, 15.0)
    # The fourth was asked something else.
    assert got.saved is not None and got.saved[0] == pytest.approx(0.5)
    assert got.quality["AllEvidence@512"][0] == 0.25
    assert row(group, "serial").saved is None
    against = saving(group, "free", "serial")
    assert against is not None and against[0] == pytest.approx(0.5)
    assert saving(group, "free", "chunked") is None


def test_differences_name_line_and_margin() -> None:
    records = [
        question(0, "serial", [0, 1]),
        question(0, "compiled", [0, 1]),
        question(1, "serial", [0, 1]),
        question(1, "compiled", [1, 0]),
        question(1, "free", [1, 0]),
    ]
    (only,) = differences(enumerate(records, start=1))
    assert (only.line, only.number, only.mine.min_margin) == (4, 0, 0.25)


def test_report_of_a_file_without_answers(tmp_path: Path) -> None:
    path, out = tmp_path / "rag.jsonl", tmp_path / "docs" / "report.md"
    path.write_text(run("r1").model_dump_json() + "\n")
    out.parent.mkdir()
    main([path], out)
    assert "No answers yet." in out.read_text()


def test_report_from_records_only(tmp_path: Path) -> None:
    path = tmp_path / "rag.jsonl"
    store = Store(path, run("r1"))
    for number in range(10):
        store.add(question(number, "serial", [0, 1], ms=20.0, quality=True))
        store.add(question(number, "compiled", [0, 1], ms=10.0, quality=True))
        store.add(question(number, "free", None))
    skipped = question(0, "letters", None).model_copy(
        update={"status": "skipped", "detail": "no letters", "rounds": []}
    )
    store.add(skipped)
    out = tmp_path / "docs" / "report.md"
    out.parent.mkdir()
    main([path], out)
    text = out.read_text()
    assert "`compiled`: 10 of 10 questions exactly as serial decoding; 0 protocol errors" in text
    assert "No exceptions." in text
    assert "| `free` | 10 | 10 | 0 of 10 |" in text
    assert "| `letters` | skipped: no letters |" in text
    assert "50 % [50, 50]" in text
    images = {image.name for image in (tmp_path / "docs" / "report").iterdir()}
    assert images == {f"rag-qasper-true-{kind}.png" for kind in ("latency", "agreement", "work")}
    assert all(f"(report/{name})" in text for name in images)
