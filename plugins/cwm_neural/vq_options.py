"""Options of the image tokenizer, without networks, so that listing them imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
"""Presets: tiny for two CPU cores, small for a GPU, iris as in Micheli et al. (2023)."""


@dataclass
class VqOptions(WithPresets):
    """Options of the image tokenizer."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = VQ_PRESETS

    preset: Literal["tiny", "small", "iris"] = "tiny"
    """Sizes and rates: `tiny` for two CPU cores, `small` for a GPU, `iris` as published."""
    vq_frame: int = FROM_PRESET
    """Side length in pixels that images are scaled to, by averaging."""
    vq_side: int = FROM_PRESET
    """Tokens per side (an image has its square); `vq_frame` is this times a power of two."""
    vq_codes: int = FROM_PRESET
    """Number of codes: the size of the vocabulary."""
    vq_width: int = FROM_PRESET
    """Size of a code's embedding."""
    vq_channels: int = FROM_PRESET
    """Channels of the convolutions."""
    vq_blocks: int = FROM_PRESET
    """Residual blocks per resolution; the decoder has one more. 0: plain convolutions."""
    vq_batch: int = FROM_PRESET
    """Images per update."""
    vq_rate: float = FROM_PRESET
    """Learning rate of Adam."""
    vq_squared: float = FROM_PRESET
    """Weight of the squared error in addition to the absolute error; with it, small objects on a
    plain background are learned much sooner. Published: 0, with a perceptual network."""
    vq_commitment: float = 1.0
    """Weight of the commitment loss of the encoder (beta)."""
    vq_restart: int = FROM_PRESET
    """Number of first updates during which unused codes are reset, ten times, if something was
    encoded. Later resets would change the tokens of known images. Published: 0."""
    vq_perceptual: float = 0.0
    """Weight of the loss of edges and local structure (SSIM), which needs no weights of LPIPS."""
    vq_lpips: str = field(default="", metadata={"identity": "changed"})
    """Folder with `vgg16-397923af.pth` of torchvision and `vgg.pth` of lpips. With it, the loss
    includes LPIPS with weight 1, as published."""
    vq_critic: float = 0.0
    """Weight of predicting the discounted return of an image from its codes."""
    vq_discount: float = 0.99
    """Discount factor of that return."""
