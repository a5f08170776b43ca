"""All environments of Gymnasium, described by their own documentation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cwm_cli import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cwm_cli.envs.spec import EnvironmentSpec


@hookimpl
def cwm_environments() -> Mapping[str, Callable[[], EnvironmentSpec]]:
    """Add the environments of Gymnasium's registry, and of modules by `module:Id-v0`."""
    from cwm_gymnasium.catalogue import Environments

    return Environments()
