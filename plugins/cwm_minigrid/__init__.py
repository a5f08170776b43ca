"""MiniGrid environments: rooms with keys and doors, as tables of objects with a mission text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from cwm_cli import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable

    from cwm_cli.envs.spec import EnvironmentSpec

CURRICULUM = (
    "MiniGrid-Empty-5x5-v0",
    "MiniGrid-DoorKey-5x5-v0",
    "MiniGrid-Unlock-v0",
    "MiniGrid-Fetch-6x6-N2-v0",
    "MiniGrid-UnlockPickup-v0",
    "MiniGrid-BlockedUnlockPickup-v0",
)
"""The listed environments, from easy to difficult: each builds on earlier ones."""


class Grids(Mapping[str, "Callable[[], EnvironmentSpec]"]):
    """The curriculum by id; it contains every other MiniGrid id without listing it."""

    def __getitem__(self, name: str) -> Callable[[], EnvironmentSpec]:
        if name not in self:
            raise KeyError(name)
        return partial(_specify, name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.startswith("MiniGrid-")

    def __iter__(self) -> Iterator[str]:
        return iter(CURRICULUM)

    def __len__(self) -> int:
        return len(CURRICULUM)


@hookimpl
def cwm_environments() -> Mapping[str, Callable[[], EnvironmentSpec]]:
    """Add the environments of the package minigrid, which is imported on first use."""
    return Grids()


def _specify(name: str) -> EnvironmentSpec:
    from cwm_minigrid.catalogue import specify

    return specify(name)
