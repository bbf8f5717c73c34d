"""Every row of the table of targets against the installed SGLang, and every handler against its row."""

from __future__ import annotations

import inspect

import pytest

from sgl_compiled.compat import SGLANG_VERSION, TARGETS, Target, check_targets, load_handler, sglang_version


def test_the_table_was_written_for_the_installed_release() -> None:
    assert sglang_version() == SGLANG_VERSION


def test_every_target_has_the_expected_parameters() -> None:
    assert [str(mismatch) for mismatch in check_targets()] == []


def test_targets_are_unique() -> None:
    paths = [target.path for target in TARGETS]
    assert len(paths) == len(set(paths))


@pytest.mark.parametrize("path", [target.path for target in TARGETS])
def test_a_changed_signature_is_reported(path: str) -> None:
    target = next(target for target in TARGETS if target.path == path)
    changed = Target(path, (*target.params, "added_later"), target.hook)
    (mismatch,) = check_targets([changed])
    assert path in str(mismatch) and "added_later" in str(mismatch)


def test_a_missing_target_is_reported() -> None:
    owner = TARGETS[0].path.rsplit(".", 1)[0]
    (mismatch,) = check_targets([Target(f"{owner}.renamed_away", ("self",), "around")])
    assert "nothing" in mismatch.found
    (mismatch,) = check_targets([Target("sglang.srt.no_such_module.function", (), "around")])
    assert "nothing" in mismatch.found


HOOKED = [target for target in TARGETS if target.handler]


@pytest.mark.parametrize("target", HOOKED, ids=[target.path for target in HOOKED])
def test_handlers_take_what_their_hook_passes(target: Target) -> None:
    """SGLang passes a target's arguments on: behind the original function, behind the result, or alone."""
    handler = load_handler(target)
    first = {"around": ["original"], "after": ["result"], "before": []}[target.hook]
    inspect.signature(handler).bind(*first, *target.params)
    assert target.hook != "around" or not inspect.iscoroutinefunction(handler)
