"""Atari games with images of 64 x 64 pixels. The emulator is under the GPL: see the README."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from cwm_cli import hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cwm_cli.envs.spec import EnvironmentSpec

PREFIX, SUFFIX = "Atari-", "-v0"
"""Prefix and suffix of ids around the name of a game, as in ALE/NAME-v5."""

LISTED = ("Pong", "Breakout", "Freeway")
"""Listed games; all other games of the emulator are available, too."""

ARGUMENTS = ("size", "clip", "max_frames", "noops", "skip", "lives", "render_mode")


class Games(Mapping[str, "Callable[[], EnvironmentSpec]"]):
    """Games by id; the emulator is imported on first use."""

    def __getitem__(self, name: str) -> Callable[[], EnvironmentSpec]:
        if name not in self:
            raise KeyError(name)
        return partial(_specify, name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.startswith(PREFIX) and name.endswith(SUFFIX)

    def __iter__(self) -> Iterator[str]:
        return (f"{PREFIX}{game}{SUFFIX}" for game in LISTED)

    def __len__(self) -> int:
        return len(LISTED)


@hookimpl
def cwm_environments() -> Mapping[str, Callable[[], EnvironmentSpec]]:
    """Add the games of the emulator."""
    return Games()


def _specify(name: str) -> EnvironmentSpec:
    from cwm_atari.game import Emulator
    from cwm_cli.envs.spec import EnvironmentSpec

    return EnvironmentSpec(
        id=name,
        make=partial(_make, name),
        describe=_describe,
        versions=lambda: {each: version(each) for each in ("ale-py", "gymnasium", "numpy")},
        rewinder=Emulator,
        action_names=_action_names,
    )


def _make(name: str, /, **env_args: Any) -> Any:
    """Make a game; raise `CwmError` for invalid arguments."""
    from cwm_atari.game import AtariGame
    from cwm_cli.envs.spec import making

    with making(name, env_args, ARGUMENTS):
        return AtariGame(name, name.removeprefix(PREFIX).removesuffix(SUFFIX), **env_args)


def _action_names(env: Any) -> Sequence[str]:
    return [name.lower() for name in env.unwrapped.game.unwrapped.get_action_meanings()]


def _describe(env: Any) -> str:
    from cwm_atari.game import GUIDE

    game = env.unwrapped
    actions = ", ".join(f"{number} {name}" for number, name in enumerate(_action_names(env)))
    return GUIDE.format(name=game.name, game=game, actions=actions)
