"""Options of ensembles of probabilistic networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from cwm_cli.presets import FROM_PRESET, WithPresets


@dataclass
class EnsembleOptions(WithPresets):
    """Sizes of the networks, and how they are fitted."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {"members": 2, "width": 32, "layers": 1},
        "small": {"members": 5, "width": 64, "layers": 2},
        "iris": {"members": 5, "width": 200, "layers": 3},
    }

    preset: Literal["tiny", "small", "iris"] = "small"
    """Preset that gives the values of unset options. iris has the size of published ensembles."""
    members: Annotated[int, Field(ge=1)] = FROM_PRESET
    """Number of networks; each is trained on its own random sample of all rows (B)."""
    width: Annotated[int, Field(ge=1)] = FROM_PRESET
    """Units of each layer."""
    layers: Annotated[int, Field(ge=0)] = FROM_PRESET
    """Number of hidden layers."""
    ratio: Annotated[float, Field(gt=0)] = 5.0
    """Updates per environment step."""
    batch: Annotated[int, Field(ge=1)] = 64
    """Rows per update, for each network."""
    rate: Annotated[float, Field(gt=0)] = 1e-3
    """Learning rate of AdamW."""
    decay: Annotated[float, Field(ge=0)] = 1e-4
    """Weight decay."""
    discount: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Discount factor per step of the value at the end of a plan; 0: no such value."""
    noise: bool = False
    """Also plan with the noise that the networks predict, as published, at a higher cost. In both
    cases each plan runs in every network, and the networks differ."""
