"""What the branch scheduler reports: Prometheus metrics and a CSV line for every grouped decode step."""

from __future__ import annotations

import csv
import os
from dataclasses import asdict, dataclass, fields
from typing import Any, TextIO

import numpy as np

from .slack import request_slack_s
from .view import Decision, StepView

__all__ = ["StepRecord", "Telemetry"]

_BUCKETS_S = (0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)


@dataclass(slots=True)
class StepRecord:
    """One grouped decode step with the extends since the one before; times in seconds."""

    policy: str
    now_s: float
    rows: int
    parked: int
    context_tokens: int
    refused_s: float
    slack_p05_s: float
    slack_p50_s: float
    overload: bool
    extend_passes: int = 0
    extend_tokens: int = 0
    predicted_s: float = 0.0
    actual_s: float = 0.0


def make_record(policy: str, view: StepView, decision: Decision) -> StepRecord:
    """Record of a decision, before the step has run."""
    slack = request_slack_s(view.now_s, view.line_s, view.deadline_s)
    slack = slack[np.isfinite(slack)]
    low, middle = np.quantile(slack, (0.05, 0.5)) if len(slack) else (np.inf, np.inf)
    rows = int(np.count_nonzero(decision.run))
    return StepRecord(
        policy,
        view.now_s,
        rows,
        len(decision.run) - rows,
        int(view.context_tokens[decision.run].sum()),
        decision.refused_s,
        float(low),
        float(middle),
        decision.overload,
    )


class Telemetry:
    """Writes records out.

    Parameters
    ----------
    trace : str or None
        CSV file; ``{pid}`` in it is replaced by the process id.
    metrics : bool
        Register Prometheus metrics in this process, where SGLang's ``/metrics`` collects them.
    """

    def __init__(self, trace: str | None = None, metrics: bool = False) -> None:
        self._file: TextIO | None = None
        self._writer: Any = None
        self._metrics = _Metrics() if metrics else None
        if trace:
            self._file = open(trace.replace("{pid}", str(os.getpid())), "w", newline="")  # noqa: SIM115
            self._writer = csv.DictWriter(self._file, [item.name for item in fields(StepRecord)])
            self._writer.writeheader()

    @property
    def active(self) -> bool:
        """Whether anybody reads the records."""
        return self._writer is not None or self._metrics is not None

    def write(self, record: StepRecord) -> None:
        """Report one measured step."""
        if self._metrics is not None:
            self._metrics.write(record)
        if self._writer is not None:
            self._writer.writerow(asdict(record))

    def flush(self) -> None:
        """Hand buffered lines to the file."""
        if self._file is not None:
            self._file.flush()


class _Metrics:
    def __init__(self) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        name = "sgl_compiled_branch"
        self.predicted = Histogram(f"{name}_step_predicted_seconds", "Predicted step time", buckets=_BUCKETS_S)
        self.actual = Histogram(f"{name}_step_seconds", "Measured step time, extends included", buckets=_BUCKETS_S)
        self.admitted = Counter(f"{name}_rows", "Rows decoded in steps with a group")
        self.parked = Counter(f"{name}_rows_parked", "Rows left out of those steps")
        self.overload = Counter(f"{name}_overload_steps", "Steps admitted in overload mode")
        self.parked_now = Gauge(f"{name}_parked_now", "Rows parked in the last step", multiprocess_mode="mostrecent")
        self.slack = Gauge(
            f"{name}_slack_seconds", "Time ahead of the target", labelnames=["quantile"], multiprocess_mode="mostrecent"
        )

    def write(self, record: StepRecord) -> None:
        self.predicted.observe(record.predicted_s)
        self.actual.observe(record.actual_s)
        self.admitted.inc(record.rows)
        self.parked.inc(record.parked)
        self.overload.inc(record.overload)
        self.parked_now.set(record.parked)
        self.slack.labels("0.05").set(record.slack_p05_s)
        self.slack.labels("0.5").set(record.slack_p50_s)
