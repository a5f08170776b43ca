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
    """Values of what is not set; iris is as large as published ensembles are."""
    members: Annotated[int, Field(ge=1)] = FROM_PRESET
    """Networks, each with rows of its own drawn from all (B)."""
    width: Annotated[int, Field(ge=1)] = FROM_PRESET
    """Units of a layer."""
    layers: Annotated[int, Field(ge=0)] = FROM_PRESET
    """Hidden layers."""
    ratio: Annotated[float, Field(gt=0)] = 5.0
    """Updates for each step of the environment."""
    batch: Annotated[int, Field(ge=1)] = 64
    """Rows of an update, for each member."""
    rate: Annotated[float, Field(gt=0)] = 1e-3
    """Learning rate of AdamW."""
    decay: Annotated[float, Field(ge=0)] = 1e-4
    """Weight decay."""
    discount: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """What a reward is worth a step later, where members value how plans end; 0: they do not."""
    noise: bool = False
    """Whether plans meet the noise that members foresee, too, as published, at a higher cost.

    Members differ either way, and each plan goes on in every one of them.
    """
