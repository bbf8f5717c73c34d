"""The programs import one another by bare name, as scripts beside one another do."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "programs"))
