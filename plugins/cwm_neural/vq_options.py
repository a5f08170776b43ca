"""Options of the tokenizer of pictures; no networks here, so that they can be listed at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from cwm_cli.presets import FROM_PRESET, WithPresets

VQ_PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "tiny": {
            "vq_frame": 32,
            "vq_side": 4,
            "vq_codes": 64,
            "vq_width": 64,
            "vq_channels": 64,
            "vq_blocks": 0,
            "vq_batch": 64,
            "vq_rate": 1e-3,
            "vq_squared": 5.0,
            "vq_restart": 1000,
        },
        "small": {
            "vq_frame": 64,
            "vq_side": 8,
            "vq_codes": 256,
            "vq_width": 128,
            "vq_channels": 64,
            "vq_blocks": 1,
            "vq_batch": 128,
            "vq_rate": 3e-4,
            "vq_squared": 5.0,
            "vq_restart": 5000,
        },
        "iris": {
            "vq_frame": 64,
            "vq_side": 4,
            "vq_codes": 512,
            "vq_width": 512,
            "vq_channels": 64,
            "vq_blocks": 2,
            "vq_batch": 256,
            "vq_rate": 1e-4,
            "vq_squared": 0.0,
            "vq_restart": 0,
        },
    }
)
"""Profiles: one for two cores, one for a GPU, and that of Micheli et al. (2023)."""


@dataclass
class VqOptions(WithPresets):
    """What decides how pictures become tokens."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = VQ_PRESETS

    preset: Literal["tiny", "small", "iris"] = "tiny"
    """Sizes and rates: `tiny` for two cores, `small` for a GPU, `iris` as published."""
    vq_frame: int = FROM_PRESET
    """Pixels of a side that pictures are scaled to, by the mean of what falls into a pixel."""
    vq_side: int = FROM_PRESET
    """Tokens of a side: a picture has its square; the frame is this times a power of two."""
    vq_codes: int = FROM_PRESET
    """How many codes there are: the vocabulary."""
    vq_width: int = FROM_PRESET
    """Numbers in a code."""
    vq_channels: int = FROM_PRESET
    """Channels of the convolutions."""
    vq_blocks: int = FROM_PRESET
    """Residual blocks of each resolution, and one more on the way back; 0: plain convolutions."""
    vq_batch: int = FROM_PRESET
    """Pictures of an update."""
    vq_rate: float = FROM_PRESET
    """Learning rate of Adam."""
    vq_squared: float = FROM_PRESET
    """Weight of the squared error beside the absolute one, with which little things on plain ground
    are seen much sooner; published: 0, beside a perceptual network."""
    vq_commitment: float = 1.0
    """Weight of the encoder keeping to its codes (beta)."""
    vq_restart: int = FROM_PRESET
    """First updates in which unused codes begin anew, ten times, where something was encoded: later
    ones would give pictures that are known other tokens; published: 0."""
    vq_perceptual: float = 0.0
    """Weight of the loss of edges and local structure (SSIM), which stands in for LPIPS."""
    vq_critic: float = 0.0
    """Weight of predicting the discounted return of a picture from its codes."""
    vq_discount: float = 0.99
    """Discount of that return."""
