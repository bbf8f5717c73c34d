"""How far the probe's numbers lie from serial decoding's, and which decisions that puts in doubt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sgl_compiled.errors import ModelError

__all__ = ["Deviation", "Epsilon", "Replay", "Setting", "measure"]


@dataclass(frozen=True)
class Setting:
    """What finite-precision differences depend on; a calibration holds for its own setting only."""

    model: str
    dtype: str
    device: str
    backend: str
    sglang: str

    def __str__(self) -> str:
        return " | ".join((self.model, self.dtype, self.device, self.backend, self.sglang))


@dataclass(frozen=True)
class Replay:
    """One decision evaluated both ways, behind the same tokens.

    Attributes
    ----------
    serial, probe : ndarray of float64, shape (n_legal,)
        Raw logits of the legal ids, in the same order.
    """

    serial: npt.NDArray[np.float64]
    probe: npt.NDArray[np.float64]

    @property
    def margins(self) -> tuple[float, float]:
        """Margin between serial decoding's two best ids, in its logits and in the probe's (negative: swapped)."""
        # Stable, so that the lower id stands first on a tie, as in the reference policy.
        best, second = np.argsort(-self.serial, kind="stable")[:2]
        return float(self.serial[best] - self.serial[second]), float(self.probe[best] - self.probe[second])

    @property
    def flipped(self) -> bool:
        """Whether the two decide differently."""
        return int(self.serial.argmax()) != int(self.probe.argmax())


@dataclass(frozen=True)
class Deviation:
    """Absolute differences between probe and serial decoding, in logits."""

    mean: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, differences: npt.NDArray[np.float64]) -> Deviation:
        """Summarise."""
        size = np.abs(differences)
        p95, p99 = np.quantile(size, [0.95, 0.99])
        return cls(float(size.mean()), float(p95), float(p99), float(size.max()))


@dataclass(frozen=True)
class Epsilon:
    """A calibration.

    Attributes
    ----------
    setting : Setting
    rows : int
        Decisions replayed.
    logits, margins : Deviation
        Of the legal ids' logits, and of the margins between serial decoding's two best ids.
    flips : int
        Decisions that came out differently.
    largest_flip_margin : float
        Largest serial margin among them; 0 without any.
    """

    setting: Setting
    rows: int
    logits: Deviation
    margins: Deviation
    flips: int
    largest_flip_margin: float

    def flip_risk(self, margin: float) -> bool:
        """Whether serial decoding may decide differently: ``margin <= 2 * epsilon``.

        With every logit within epsilon of its serial value, a difference of two is within 2 epsilon, so a larger
        margin cannot change sign. Epsilon is the largest deviation that the replays showed.
        """
        return margin <= 2 * self.logits.max

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Epsilon:
        """Inverse of :meth:`to_dict`."""
        return cls(
            Setting(**data["setting"]),
            int(data["rows"]),
            Deviation(**data["logits"]),
            Deviation(**data["margins"]),
            int(data["flips"]),
            float(data["largest_flip_margin"]),
        )


def measure(setting: Setting, replays: Sequence[Replay]) -> Epsilon:
    """Summarise calibration replays.

    Logits that are infinite on either side are left out: a forbidden id does not deviate.

    Raises
    ------
    ModelError
        No replay holds a finite number.
    """
    pairs = [np.stack([replay.probe, replay.serial]) for replay in replays if len(replay.serial) > 1]
    finite = [pair[:, np.isfinite(pair).all(axis=0)] for pair in pairs]
    margins = np.array([np.subtract(*replay.margins) for replay in replays if len(replay.serial) > 1])
    margins = margins[np.isfinite(margins)]
    if not len(margins) or not any(pair.size for pair in finite):
        raise ModelError("calibration saw no decision with finite logits; replay prompts whose answers leave a choice")
    flips = [replay.margins[0] for replay in replays if replay.flipped]
    return Epsilon(
        setting,
        len(pairs),
        Deviation.of(np.concatenate([pair[0] - pair[1] for pair in finite])),
        Deviation.of(margins),
        len(flips),
        max(flips, default=0.0),
    )
