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
    """Preset: tiny for vectors and small boards, small for images."""
    updates: float = 1.0
    """Updates per step."""
    batch: int = FROM_PRESET
    """Rows per update."""
    width: int = FROM_PRESET
    """Units of each layer."""
    layers: int = FROM_PRESET
    """Number of layers above the encoder of observations."""
    channels: int = FROM_PRESET
    """Channels of the first two convolutions for images; later convolutions have twice as many."""
    rate: float = FROM_PRESET
    """Learning rate of Adam."""
    discount: float = 0.99
    """Discount factor per step."""
    conservatism: float = 1.0
    """Weight of the conservative loss: values of all actions minus values of recorded actions."""
    follow: float = 0.01
    """Update rate of the target network (tau)."""
    clip: float = 10.0
    """Maximum norm of a gradient."""
