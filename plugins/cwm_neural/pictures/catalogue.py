"""Specifications of the games: constructor, description, and restoring of states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from cwm_cli.envs.simulators import Values
from cwm_cli.envs.spec import EnvironmentSpec, making
from cwm_neural.pictures.games import MAX_SPEED, RED, WHITE, Catch, MovingDots, PictureGame

if TYPE_CHECKING:
    import gymnasium as gym

REVISION = "1"
"""Increase it if the behaviour of a game changes."""

CATCH = """# {name}

A ball falls on a board of {game.rows} rows and {game.columns} columns of cells, and a paddle in \
the last row has to be where it lands.

## Observation
A picture: an array of bytes of shape {shape}, red, green and blue of every pixel. A cell is a \
square of {game.tile} pixels. The ball is {white}, the paddle {red}, all else black; the ball \
hides the paddle where both are in one cell.

## Actions
0 left, 1 stay, 2 right: the paddle moves by one cell, and stays where it is at a side.

## Rules
The state is the ball's column b and row r, from 0 at the top, and the paddle's column p. An \
episode begins with r = 0, b and p anywhere. A step sets p to p + action - 1, kept from 0 to \
{last}, and then r to r + 1.

## Reward and end
The episode terminates when r is {bottom}: with reward 1 where p = b, else -1. Every other step \
rewards 0."""

DOTS = """# {name}

{game.dots} dots of {game.dot} x {game.dot} pixels fly in a picture, and one of them can be nudged.

## Observation
A picture: an array of bytes of shape {shape}, red, green and blue of every pixel. The first dot \
is {red} and hides the others, which are {white}; all else is black. Velocities \
are not observed.

## Actions
0 nothing; 1 left, 2 right, 3 up, 4 down: the nudge.

## Rules
The state is of every dot its upper left corner (x, y), x to the right and y down, and its \
velocity, all in pixels and whole. An episode begins with corners anywhere and velocities from \
-{fastest} to {fastest} in each direction. A step adds the nudge, of one pixel a step, to the \
velocity of the first dot, kept from -{fastest} to {fastest}; then every velocity to its corner. \
A dot bounces off the sides: x below 0 becomes -x, x above {game.far} becomes 2 * {game.far} - x, \
and its velocity in that direction turns round; so with y. Dots pass each other.

## Reward and end
A step rewards 1 if the first dot overlaps another one after it, else 0. An episode is cut off \
after {most} steps, which the observation does not count."""


class _Game(NamedTuple):
    """The constructor, options, description, action names and time limit of a game."""

    kind: Callable[..., PictureGame]
    options: frozenset[str]
    description: str
    action_names: tuple[str, ...]
    max_steps: int | None


GAMES = {
    "Catch-v0": _Game(
        Catch, frozenset({"rows", "columns", "tile"}), CATCH, ("left", "stay", "right"), None
    ),
    "MovingDots-v0": _Game(
        MovingDots,
        frozenset({"size", "dots", "dot", "max_episode_steps"}),
        DOTS,
        ("nothing", "left", "right", "up", "down"),
        50,
    ),
}


def specify(name: str) -> EnvironmentSpec:
    """Return the specification of an environment."""
    game = GAMES[name]
    return EnvironmentSpec(
        id=name,
        make=partial(_make, name),
        describe=partial(_describe, name),
        versions=_versions,
        rewinder=lambda env: Values(env, "state"),
        restore=_restore if game.kind is Catch else None,
        action_names=lambda env: game.action_names,
    )


def _make(name: str, /, **env_args: Any) -> gym.Env[Any, Any]:
    """Return a new environment; raise an error of one line for wrong arguments."""
    from gymnasium.envs.registration import EnvSpec
    from gymnasium.wrappers import TimeLimit

    game = GAMES[name]
    with making(name, env_args, {"render_mode", *game.options}):
        most = env_args.pop("max_episode_steps", game.max_steps)
        env = game.kind(**env_args)
        env.spec = EnvSpec(name, entry_point=game.kind, disable_env_checker=True)
        return env if most is None else TimeLimit(env, most)


def _describe(name: str, env: gym.Env[Any, Any]) -> str:
    """Return the description of the game with its parameters."""
    game, limit = cast(Any, env.unwrapped), env.spec and env.spec.max_episode_steps
    return GAMES[name].description.format(
        name=name,
        game=game,
        shape=game.observation_space.shape,
        red=f"red {RED}",
        white=f"white {WHITE}",
        last=getattr(game, "columns", 0) - 1,
        bottom=getattr(game, "rows", 0) - 1,
        fastest=MAX_SPEED,
        most=limit,
    )


def _versions() -> Mapping[str, str]:
    """Return the versions of everything that determines the behaviour of a game."""
    return {"pictures": REVISION} | {name: version(name) for name in ("gymnasium", "numpy")}


def _restore(env: gym.Env[Any, Any], observation: Any) -> bool:
    return cast(Catch, env.unwrapped).restore(observation)
