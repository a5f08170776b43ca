"""Sokoban: boxes to push onto targets, on boards of our own, with and without teleporters."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from cwm_cli import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cwm_cli.envs.spec import EnvironmentSpec

GAMES: dict[str, dict[str, Any]] = {
    "Sokoban-v0": {"boxes": 1},
    "Sokoban-Two-v0": {"boxes": 2},
    "Sokoban-Teleport-v0": {"boxes": 1, "teleports": True},
}
"""The environments by id, and what is on their boards."""


@hookimpl
def cwm_environments() -> Mapping[str, Callable[[], EnvironmentSpec]]:
    """Offer one box, two boxes, and one box with two teleporters."""
    return {name: partial(_specify, name) for name in GAMES}


def _specify(name: str) -> EnvironmentSpec:
    """Describe an environment; what that takes is imported when it is asked for."""
    from cwm_sokoban.catalogue import specify

    return specify(name, **GAMES[name])
