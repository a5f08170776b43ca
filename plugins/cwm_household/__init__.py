"""Household environments: missions in words to move, examine, clean, heat or cool things."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cwm_cli import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cwm_cli.envs.spec import EnvironmentSpec

TASKS: dict[str, tuple[str, ...]] = {
    "Household-v0": ("pick", "heat", "cool", "clean", "examine"),
    "Household-Pick-v0": ("pick",),
    "Household-Heat-v0": ("heat",),
    "Household-Cool-v0": ("cool",),
    "Household-Clean-v0": ("clean",),
    "Household-Examine-v0": ("examine",),
}
"""The families of missions of each environment id."""


@hookimpl
def cwm_environments() -> Mapping[str, Callable[[], EnvironmentSpec]]:
    """Add an environment with all families of missions, and one for each family."""
    return {name: partial(_specify, name) for name in TASKS}


def _specify(name: str) -> EnvironmentSpec:
    from cwm_household.catalogue import specify

    return specify(name, TASKS[name])
