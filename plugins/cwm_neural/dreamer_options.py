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
    """How large it is: tiny for a CPU, small for a GPU."""
    units: int = FROM_PRESET
    """Width of its hidden layers."""
    belief: int = FROM_PRESET
    """Numbers that it remembers of an episode."""
    categoricals: int = FROM_PRESET
    """Choices that a state is drawn by."""
    classes: int = FROM_PRESET
    """Classes of each choice."""
    layers: int = FROM_PRESET
    """Hidden layers of each network."""
    blocks: int = FROM_PRESET
    """Blocks that the recurrent weights are divided into."""
    channels: int = FROM_PRESET
    """Channels of the first convolution of pictures."""
    batch: int = FROM_PRESET
    """Sequences of an update."""
    length: int = FROM_PRESET
    """Records of a sequence."""
    imagined: int = FROM_PRESET
    """Steps of a dream, one of which begins at each record."""
    updates: float = FROM_PRESET
    """Updates for each step of the environment."""
    rate: float = FROM_PRESET
    """Learning rate."""
    warmup: int = FROM_PRESET
    """Updates over which the learning rate rises from 0."""
    horizon: float = 333.0
    """Steps after which what is to come counts for a third: the discount is 1 - 1/horizon."""
    entropy: float = FROM_PRESET
    """How much it is worth that the actor stays undecided."""
    actor_from: int = FROM_PRESET
    """Updates before which the actor stays as it began, and so acts nearly at random."""
    recent: bool = False
    """Whether episodes of the last quarter are drawn in half of all cases."""
