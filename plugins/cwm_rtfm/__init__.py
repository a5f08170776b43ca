"""Read to Fight Monsters, a game of words in which a manual says who beats whom."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cwm_cli import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cwm_cli.envs.spec import EnvironmentSpec

SHUFFLED = {"RTFM-v0": False, "RTFM-shuffled-v0": True}
"""The environments by id, and whether each episode has a manual and a goal of its own."""


@hookimpl
def cwm_environments() -> Mapping[str, Callable[[], EnvironmentSpec]]:
    """Offer the game that the paper plays, and the one in which the manual has to be read."""
    return {name: partial(_specify, name) for name in SHUFFLED}


def _specify(name: str) -> EnvironmentSpec:
    """Describe an environment; what that takes is imported when it is asked for."""
    from cwm_rtfm.catalogue import specify

    return specify(name, shuffled=SHUFFLED[name])
