"""Options and fixtures shared by all tests."""

from __future__ import annotations

import pytest
from hypothesis import settings

# A busy machine is no failure; what must be fast is measured by the benchmarks. The large sweeps are marked "long".
settings.register_profile("sgl_compiled", deadline=None, max_examples=20)
settings.load_profile("sgl_compiled")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files instead of comparing")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    expression = config.getoption("-m") or ""
    if "long" not in expression:
        skip = pytest.mark.skip(reason="takes minutes; run with -m long")
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(skip)
