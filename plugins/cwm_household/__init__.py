"""A household: tasks in words, from putting things away to cleaning, heating and cooling them."""

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
"""The environments by id, and the families of tasks that their missions are from."""


@hookimpl
def cwm_environments() -> Mapping[str, Callable[[], EnvironmentSpec]]:
    """Offer all tasks together, and each family of tasks alone."""
    return {name: partial(_specify, name) for name in TASKS}


def _specify(name: str) -> EnvironmentSpec:
    """Describe an environment; what that takes is imported when it is asked for."""
    from cwm_household.catalogue import specify

    return specify(name, TASKS[name])
