"""The hooks a plugin may implement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import pluggy

if TYPE_CHECKING:
    import typer

    from cwm_cli.envs.spec import EnvironmentSpec
    from cwm_cli.search.contracts import Backend, Strategy

hookspec = pluggy.HookspecMarker("cwm")


class Hooks(Protocol):
    """Every hook returns names and the factories behind them.

    The top level of a plugin imports nothing heavy (no numpy, no pydantic, no
    gymnasium), because `cwm --help` loads every plugin: instead of a class a
    hook may return its address, `"my_package.strategy:MyStrategy"`, which is
    imported when it is first used.
    """

    @hookspec
    def cwm_environments(self) -> Mapping[str, Callable[[], EnvironmentSpec]]:
        """Environments by id, such as `CartPole-v1`.

        The mapping may serve ids that it does not list, by its `__contains__`
        and `__getitem__`.
        """

    @hookspec
    def cwm_backends(self) -> Mapping[str, Callable[..., Backend] | str]:
        """Backends by name: dataclasses whose field `model` is `--model` and the others options."""

    @hookspec
    def cwm_strategies(self) -> Mapping[str, Callable[..., Strategy] | str]:
        """Search strategies by name: dataclasses whose fields are their options."""

    @hookspec
    def cwm_commands(self, app: typer.Typer) -> None:
        """Add commands to the `cwm` command line."""
