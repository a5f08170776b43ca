"""Small worlds whose rules are to be found in words: a door, and a playground."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cwm_cli import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cwm_cli.envs.spec import EnvironmentSpec


@hookimpl
def cwm_environments() -> Mapping[str, Callable[[], EnvironmentSpec]]:
    """Offer the door; what it takes is imported when it is asked for."""
    return {"Door-v0": _door}


def _door() -> EnvironmentSpec:
    from cwm_playground.door import specify

    return specify("Door-v0")
