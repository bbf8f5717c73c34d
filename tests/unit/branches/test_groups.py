from __future__ import annotations

import numpy as np
import pytest

from sgl_compiled.branches import BranchTag, Group, GroupTable, Row, Slo, load_settings, parse_tag
from sgl_compiled.errors import RequestError

CLASSES = {"default": Slo(2.0, 0.05), "report": Slo(e2e_s=30.0)}


def test_tag_with_everything():
    raw = {"id": "a", "branch": 3, "parent": "p", "slo": "report", "expected_tokens": 7, "after_tokens": 9}
    assert parse_tag(raw, CLASSES) == BranchTag("a", CLASSES["report"], 3, "p", 7, 9)


def test_tag_with_an_id_only_has_the_default_class():
    assert parse_tag({"id": "a"}, CLASSES) == BranchTag("a", CLASSES["default"])


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        ("a", "give an object"),
        ({}, "id is None"),
        ({"id": ""}, "1 to 256"),
        ({"id": "x" * 257}, "1 to 256"),
        ({"id": 3}, "id is 3"),
        ({"id": "a", "branch": -1}, "branch"),
        ({"id": "a", "branch": True}, "branch"),
        ({"id": "a", "expected_tokens": 1.5}, "expected_tokens"),
        ({"id": "a", "after_tokens": 1 << 40}, "after_tokens"),
        ({"id": "a", "parent": ""}, "parent"),
        ({"id": "a", "slo": "fast"}, "default, report"),
        ({"id": "a", "slo": {"e2e": 3}}, "e2e_s, tpot_s, ttft_s"),
        ({"id": "a", "slo": {"e2e_s": 0}}, "positive"),
        ({"id": "a", "slo": {"e2e_s": float("nan")}}, "positive"),
        ({"id": "a", "slo": {"e2e_s": "3"}}, "positive"),
        ({"id": "a", "colour": 1}, "colour"),
    ],
)
def test_bad_tags_are_refused_by_field(raw, what):
    with pytest.raises(RequestError, match=what):
        parse_tag(raw, CLASSES)


def test_settings_from_toml(tmp_path, monkeypatch):
    path = tmp_path / "server.toml"
    path.write_text(
        '[branches]\npolicy = "cap:4"\n[branches.slo.default]\ntpot_s = 0.1\n[branches.slo.slow]\ne2e_s = 9\n'
    )
    monkeypatch.setenv("SGLCOMPILED_CONFIG", str(path))
    settings = load_settings()
    assert settings.policy == "cap:4"
    assert settings.slo == {"default": Slo(tpot_s=0.1), "slow": Slo(e2e_s=9)}


def test_settings_default_without_a_file(monkeypatch):
    monkeypatch.delenv("SGLCOMPILED_CONFIG", raising=False)
    assert load_settings().policy == "taper"
    assert load_settings().slo["default"].tpot_s == 0.05


@pytest.mark.parametrize("text", ["[branches]\ncolour = 1\n", "[branches\n", "[branches.slo.default]\nx = 1\n"])
def test_bad_settings_are_refused(tmp_path, text):
    path = tmp_path / "server.toml"
    path.write_text(text)
    with pytest.raises(RequestError):
        load_settings(str(path))


def test_missing_settings_file_is_named(tmp_path):
    with pytest.raises(RequestError, match="nowhere.toml"):
        load_settings(str(tmp_path / "nowhere.toml"))


def test_view_counts_the_tokens_of_all_branches_of_a_group():
    table = GroupTable()
    tag = parse_tag({"id": "g", "slo": {"tpot_s": 0.1, "e2e_s": 20.0}, "after_tokens": 5}, CLASSES)
    rows = [table.join(tag, 1.0 + i, 40) for i in range(3)]
    rows.append(Row(Group(CLASSES["default"], 4.0), 100))
    view = table.view(10.0, rows, [9, 8, 7, 6], [2, 3, 4, 10], blocked=False)
    view.check_integrity()
    table.check_integrity()
    assert view.owner.tolist() == [0, 0, 0, 1]
    assert view.remaining_tokens.tolist() == [38, 37, 36, 90]
    assert view.line_s.tolist() == pytest.approx([10.0 + 9 * 0.1, 10.0 + 10 * 0.05])
    assert view.deadline_s.tolist() == [21.0, np.inf]
    assert view.after_tokens.tolist() == [5, 0]
    # A branch ends, its tokens stay on the account of the group.
    view = table.view(11.0, rows[:2] + rows[3:], [10, 9, 7], [4, 4, 11], blocked=True)
    assert view.line_s.tolist() == pytest.approx([10.0 + 12 * 0.1, 10.0 + 11 * 0.05])
    assert view.blocked


def test_group_spans_requests_and_ends_after_idling():
    table = GroupTable()
    tag = parse_tag({"id": "g", "slo": "report", "parent": "rid-1"}, CLASSES)
    head = table.join(tag, 5.0, 10)
    table.view(6.0, [head], [1], [1], blocked=False)
    tail = table.join(tag, 50.0, 10)
    assert tail.group is head.group
    assert tail.group.start_s == 5.0
    table.forget_idle(500.0)
    assert table.groups
    table.forget_idle(700.0)
    assert not table.groups
