"""Two small environments with images as observations: a ball to catch, and bouncing dots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from cwm_cli import hookimpl

if TYPE_CHECKING:
    from cwm_cli.envs.spec import EnvironmentSpec

GAMES = ("Catch-v0", "MovingDots-v0")
"""The environments by id."""


@hookimpl
def cwm_environments() -> Mapping[str, Callable[[], EnvironmentSpec]]:
    """Add both environments, whose modules are imported on first use."""
    return {name: partial(_specify, name) for name in GAMES}


def _specify(name: str) -> EnvironmentSpec:
    from cwm_neural.pictures.catalogue import specify

    return specify(name)
