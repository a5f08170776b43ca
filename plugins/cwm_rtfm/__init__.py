"""Read to Fight Monsters (RTFM), a text game with a manual about items and monsters."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cwm_cli import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cwm_cli.envs.spec import EnvironmentSpec

SHUFFLED = {"RTFM-v0": False, "RTFM-shuffled-v0": True}
"""For each environment id, whether every episode has a new manual and goal."""


@hookimpl
def cwm_environments() -> Mapping[str, Callable[[], EnvironmentSpec] | str]:
    """Add the game of the paper, its published name, and a variant with random manuals."""
    return {name: partial(_specify, name) for name in SHUFFLED} | {"rtfm": "RTFM-v0"}


def _specify(name: str) -> EnvironmentSpec:
    from cwm_rtfm.catalogue import specify

    return specify(name, shuffled=SHUFFLED[name])
