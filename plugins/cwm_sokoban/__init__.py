"""Sokoban environments on random solvable boards, with and without teleporters."""

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
"""Arguments of the game for each environment id."""


@hookimpl
def cwm_environments() -> Mapping[str, Callable[[], EnvironmentSpec]]:
    """Add Sokoban with one box, with two boxes, and with one box and two teleporters."""
    return {name: partial(_specify, name) for name in GAMES}


def _specify(name: str) -> EnvironmentSpec:
    from cwm_sokoban.catalogue import specify

    return specify(name, **GAMES[name])
