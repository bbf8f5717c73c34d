"""The paper's evaluation: tasks, arms, quality, statistics."""

from __future__ import annotations

import sys
from pathlib import Path

# The loaders live with the programs, which import one another by bare name as scripts do.
sys.path.insert(0, str(Path(__file__).parents[2] / "programs"))
