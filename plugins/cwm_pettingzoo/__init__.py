"""Games of two players from PettingZoo, and from any module with an AEC environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from cwm_cli import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable

    from cwm_cli.envs.spec import EnvironmentSpec

PREFIX = "pettingzoo:"
"""The beginning of ids; the name of a module follows."""

LISTED = ("pettingzoo:tictactoe_v3", "pettingzoo:connect_four_v3")
"""The ids that are listed; every other module is found by its name."""


class Games(Mapping[str, "Callable[[], EnvironmentSpec]"]):
    """Games by id, `pettingzoo:MODULE`."""

    def __getitem__(self, name: str) -> Callable[[], EnvironmentSpec]:
        if name not in self:
            raise KeyError(name)
        return partial(_specify, name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.startswith(PREFIX) and len(name) > len(PREFIX)

    def __iter__(self) -> Iterator[str]:
        return iter(LISTED)

    def __len__(self) -> int:
        return len(LISTED)


@hookimpl
def cwm_environments() -> Mapping[str, Callable[[], EnvironmentSpec]]:
    """Provide the AEC environments of importable modules; the package is imported on first use."""
    return Games()


def _specify(name: str) -> EnvironmentSpec:
    """Return the specification of a game."""
    from cwm_pettingzoo.catalogue import specify

    return specify(name)
