"""Scenarios of the sweep: workload, server, targets and the loads at which each is simulated."""

from __future__ import annotations

from dataclasses import dataclass

from .cost import CostModel, RooflineCost
from .engine import Slo
from .workload import WorkloadSpec

__all__ = ["POLICIES", "SCENARIOS", "SLO_SETS", "Scenario"]

POLICIES = ("off", "cap:2", "cap:4", "eager", "taper")
SLO_SETS: dict[str, float | None] = {"e2e": 0.6, "e2e-0.4": 0.4, "tpot": None}
"""End-to-end target of forking requests as a share of their serial allowance; None counts tokens alone."""
_DECODE_SERVER = RooflineCost(colocated=False)
_WHOLE_SERVER = RooflineCost()


@dataclass(frozen=True, slots=True)
class Scenario:
    """One line of the sweep; `loads` in requests a second."""

    name: str
    workload: WorkloadSpec
    cost: CostModel
    tpot_s: float
    loads: tuple[float, ...]

    def slo(self, kind: str) -> Slo:
        """Targets of one of the `SLO_SETS`."""
        return Slo(ttft_s=2.0, tpot_s=self.tpot_s, e2e_factor=SLO_SETS[kind])


SCENARIOS = (
    Scenario("conv", WorkloadSpec("conv"), _DECODE_SERVER, 0.03, (1.0, 2.5, 4.0, 4.6, 5.2, 6.5)),
    Scenario("mixed", WorkloadSpec("mixed", share=0.2), _DECODE_SERVER, 0.03, (1.5, 3.0, 5.0, 6.5, 8.0, 10.0)),
    Scenario("code", WorkloadSpec("code", share=0.1, fanout=16), _DECODE_SERVER, 0.03, (3, 6, 9, 12, 18, 30)),
    Scenario("code-forks", WorkloadSpec("code"), _DECODE_SERVER, 0.03, (2, 4, 6, 9, 12, 18)),
    Scenario("conv-wide", WorkloadSpec("conv", share=0.15, fanout=16), _DECODE_SERVER, 0.03, (1.0, 2.5, 4.0, 5.2, 6.5)),
    Scenario("conv-prefill", WorkloadSpec("conv"), _WHOLE_SERVER, 0.05, (0.8, 1.4, 1.8, 2.2, 2.6, 3.4)),
    Scenario("conv-split", WorkloadSpec("conv", drawn=False), _DECODE_SERVER, 0.03, (6, 10, 14, 18, 21, 25)),
)
