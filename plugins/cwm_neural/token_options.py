"""Options of world models of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from cwm_cli.presets import FROM_PRESET
from cwm_neural.vq_options import VqOptions

LEARNING: Mapping[str, Mapping[str, Any]] = {
    "tiny": {
        "pictures": 10,
        "refilled": 0,
        "updates": 0.5,
        "tokenizer_updates": 0.5,
        "model_from": 0,
        "batch_tokens": 2720,
        "rate": 1e-3,
        "whole": False,
        "signs": False,
        "dropout": 0.0,
        "aligned": True,
    },
    "small": {
        "pictures": 16,
        "refilled": 0,
        "updates": 0.5,
        "tokenizer_updates": 0.5,
        "model_from": 0,
        "batch_tokens": 16384,
        "rate": 3e-4,
        "whole": False,
        "signs": False,
        "dropout": 0.1,
        "aligned": True,
    },
    "iris": {
        "pictures": 20,
        "refilled": 1,
        "updates": 1.0,
        "tokenizer_updates": 1.0,
        "model_from": 4000,
        "batch_tokens": 21760,
        "rate": 1e-4,
        "whole": True,
        "signs": True,
        "dropout": 0.1,
        "aligned": False,
    },
}
"""Training options of each preset. Two CPU cores process 16 segments of 170 tokens in 0.2 s.
Published: 64 segments of 340 tokens; the sequence model starts in epoch 25 of 200 steps, 20 epochs
after the tokenizer."""

NETWORK = (
    "preset",
    "layers",
    "width",
    "heads",
    "shape",
    "units",
    "unfrozen",
    "aligned",
    "embedding",
)
"""Options that must be equal in a saved network."""


@dataclass
class TokenOptions(VqOptions):
    """Options of all world models of tokens."""

    name: ClassVar[str] = ""
    """Name of the network."""

    tokenizer: Literal["auto", "grid", "vq"] = "auto"
    """Tokens: cells and numbers (grid), or codes of images (vq)."""
    contents: int = 256
    """Maximum number of different cell contents in a grid."""
    codes: int = 64
    """Number of bins for a real number."""
    reward_classes: int = 64
    """Maximum number of different rewards."""
    context: int = 0
    """Frames in the context, including the predicted one; 0: `pictures`, or 2 without images."""
    pictures: int = FROM_PRESET
    """Frames in a context of images."""
    refilled: int = FROM_PRESET
    """Frames that stay in the context of an imagined rollout when it is full; 0: half."""
    updates: float = FROM_PRESET
    """Updates of the sequence model per environment step."""
    tokenizer_updates: float = FROM_PRESET
    """Updates of the tokenizer per environment step, if it is a network."""
    model_from: int = FROM_PRESET
    """Number of environment steps after which the sequence model starts to learn."""
    batch_tokens: int = FROM_PRESET
    """Tokens per update, in segments of the context's length."""
    rate: float = FROM_PRESET
    """Learning rate of AdamW."""
    decay: float = 0.01
    """Weight decay, for the weights of linear layers only."""
    clip: float = 10.0
    """Maximum norm of a gradient."""
    whole: bool = FROM_PRESET
    """Also learn to predict the first frame of each segment."""
    signs: bool = FROM_PRESET
    """Learn only the sign of rewards."""
    dropout: float = FROM_PRESET
    """Dropout rate during training."""
    aligned: bool = FROM_PRESET
    """Predict each token also from the action and from nearby tokens of the previous frame."""
    recent: bool = False
    """Draw half of the segments from the newest quarter of the episodes."""

    def network(self) -> dict[str, Any]:
        """Return the options that determine the network."""
        names = {each.name for each in fields(self)}
        return {name: getattr(self, name) for name in NETWORK if name in names}
