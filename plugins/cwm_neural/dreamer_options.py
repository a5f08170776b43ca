"""Options of DreamerV3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from cwm_cli.presets import FROM_PRESET, WithPresets


@dataclass
class DreamerOptions(WithPresets):
    """Sizes of the networks, and the schedule of their training."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {
            "units": 64,
            "belief": 128,
            "categoricals": 8,
            "classes": 8,
            "layers": 1,
            "blocks": 1,
            "channels": 8,
            "batch": 8,
            "length": 24,
            "imagined": 10,
            "updates": 0.25,
            "rate": 6e-4,
            "warmup": 50,
            "entropy": 0.01,
            "actor_from": 250,
        },
        "small": {
            "units": 256,
            "belief": 1024,
            "categoricals": 16,
            "classes": 16,
            "layers": 2,
            "blocks": 8,
            "channels": 24,
            "batch": 16,
            "length": 64,
            "imagined": 15,
            "updates": 0.125,
            "rate": 1e-4,
            "warmup": 500,
            "entropy": 3e-4,
            "actor_from": 0,
        },
    }
    MULTIPLIERS: ClassVar[tuple[int, ...]] = (1, 2, 3, 4)
    """Channels of each halving of a picture, in units of `channels`."""

    preset: Literal["tiny", "small"] = "tiny"
    """Size of the model: tiny for a CPU, small for a GPU."""
    units: int = FROM_PRESET
    """Width of the hidden layers."""
    belief: int = FROM_PRESET
    """Size of the recurrent state."""
    categoricals: int = FROM_PRESET
    """Number of categorical variables in the stochastic state."""
    classes: int = FROM_PRESET
    """Number of classes of each categorical variable."""
    layers: int = FROM_PRESET
    """Hidden layers of each network."""
    blocks: int = FROM_PRESET
    """Number of blocks of the recurrent weights."""
    channels: int = FROM_PRESET
    """Channels of the first convolution for images."""
    batch: int = FROM_PRESET
    """Sequences per update."""
    length: int = FROM_PRESET
    """Steps of a sequence."""
    imagined: int = FROM_PRESET
    """Steps of each imagined rollout; one starts at each step of a sequence."""
    updates: float = FROM_PRESET
    """Updates per environment step."""
    rate: float = FROM_PRESET
    """Learning rate."""
    warmup: int = FROM_PRESET
    """Number of updates until the learning rate has risen from 0."""
    horizon: float = 333.0
    """Discount horizon in steps: the discount factor is 1 - 1/horizon."""
    entropy: float = FROM_PRESET
    """Weight of the actor's entropy in the loss."""
    actor_from: int = FROM_PRESET
    """Number of updates before the actor starts to learn; until then it acts almost randomly."""
    recent: bool = False
    """Draw half of the sequences from the newest quarter of the episodes."""
