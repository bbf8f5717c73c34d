"""Hard time limits of stages."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StageTimeoutError(TimeoutError):
    """A stage took longer than it may."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`StageTimeoutError` in the main thread after ``seconds``, unless it runs an event loop."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise StageTimeoutError(f"took longer than its {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
