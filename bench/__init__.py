"""Benchmarks; run them from the repository's root, as in ``python -m bench.select_vs_serial``."""

from __future__ import annotations

import sys
from pathlib import Path

# The programs are scripts, not a package: they import each other by their bare names.
sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))
