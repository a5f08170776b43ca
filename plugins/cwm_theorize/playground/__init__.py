"""Small text environments with hidden rules: a door and a playground."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cwm_cli import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cwm_cli.envs.spec import EnvironmentSpec


@hookimpl
def cwm_environments() -> Mapping[str, Callable[[], EnvironmentSpec]]:
    """Register the door and the playground; their modules are imported on first use."""
    return {"Door-v0": _door, "PlaygroundText-v0": _playground}


def _door() -> EnvironmentSpec:
    from cwm_theorize.playground.door import specify

    return specify("Door-v0")


def _playground() -> EnvironmentSpec:
    from cwm_theorize.playground.words import specify

    return specify("PlaygroundText-v0")
