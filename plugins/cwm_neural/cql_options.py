"""Options of conservative Q-learning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from cwm_cli.presets import FROM_PRESET, WithPresets


@dataclass
class CqlOptions(WithPresets):
    """Sizes of the networks, and weights of the losses."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {"batch": 64, "width": 64, "layers": 1, "channels": 16, "rate": 1e-3},
        "small": {"batch": 256, "width": 256, "layers": 2, "channels": 32, "rate": 3e-4},
    }

    preset: Literal["tiny", "small"] = "tiny"
    """tiny for vectors and small boards, small for pictures."""
    updates: float = 1.0
    """Updates for each step."""
    batch: int = FROM_PRESET
    """Rows of an update."""
    width: int = FROM_PRESET
    """Units of each layer."""
    layers: int = FROM_PRESET
    """Layers above what was observed."""
    channels: int = FROM_PRESET
    """Channels of the first two convolutions of a picture; the others have twice as many."""
    rate: float = FROM_PRESET
    """Learning rate of Adam."""
    discount: float = 0.99
    """What a reward is worth a step later."""
    conservatism: float = 1.0
    """Weight of the values of all actions, less those that rows did."""
    follow: float = 0.01
    """Share by which the slow values follow the others with each update."""
    clip: float = 10.0
    """The largest norm of a gradient."""
