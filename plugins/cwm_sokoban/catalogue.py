"""Specifications and descriptions of the Sokoban environments."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from cwm_cli.envs.simulators import Values
from cwm_cli.envs.spec import EnvironmentSpec, making
from cwm_sokoban.boards import ACTIONS, ACTIVATE, MAX_INNER_WALLS, SIZE
from cwm_sokoban.game import (
    CLASSES,
    MAX_STEPS,
    MISSION_TEXT,
    PIXELS,
    REVISION,
    REWARDS,
    SCHEMA,
    SUBSAMPLING,
    Sokoban,
)

if TYPE_CHECKING:
    import gymnasium as gym

GUIDE = """# {name}

Sokoban on a board of {size} x {size} cells: a player pushes {count} onto {targets}. Every episode \
has another board, and every board can be solved{how}.

## Observation
{observation}

## Actions
0 up (y - 1), 1 down (y + 1), 2 left (x - 1), 3 right (x + 1){activate}.

## Rules
- The agent moves by one cell. A wall in the cell ahead stops it.
- If a box is in the cell ahead, it is pushed on by one cell, in the same direction, and the agent \
takes its place. If a wall or another box is behind the box, neither moves. Boxes cannot be \
pulled.{rules}

## Reward and end
{rewards}
The episode terminates when every box is on a target. It is cut off after {most} steps. The \
observation does not contain the number of steps."""

TABLE = """A dict with two keys.
- `mission` is always the text {mission!r}.
- `objects` is an array of whole numbers of shape ({slots}, 3), a row for every object: its class, \
x and y. x is the column, from 0 at the left, y the row, from 0 at the top. Classes are {classes}. \
An object keeps its row for a whole episode: the agent, which is the player, has row 0, then come \
{order}, then walls. Rows of zeros are free. The outermost cells are walls, and at most {inner} \
other cells. The agent and a box can be in a cell with a target{also}; a cell with a wall contains \
nothing else."""

PICTURE = """A picture: an array of bytes of shape {shape}, red, green and blue of every pixel. A \
cell is a square of {tile} pixels; x is the column, from 0 at the left, y the row, from 0 at the \
top. Walls are grey bricks, the player is a blue disc, a box is brown with a cross, and green on a \
target; a target is a red diamond{ring}."""

STANDARD_REWARDS = (
    "Every step rewards {step:g}. Added to this are {on:g} if a box was pushed onto a target, "
    "{off:g} if a box was pushed off a target (a box pushed from a target onto another counts as "
    "neither), and {finish:g} if every box is on a target now."
)

SHIFTED_REWARDS = (
    "Every step rewards a small negative number, always the same. Added to this are a positive "
    "number if a box was pushed onto a target, a negative number if a box was pushed off a target "
    "(a box pushed from a target onto another counts as neither), and a large positive number if "
    "every box is on a target now. The numbers differ from other Sokoban games."
)

TELEPORT = (
    "\n- There are two teleporters. If the agent is on a teleporter, `activate` moves it to the "
    "other, unless a box is there: then nothing happens, as anywhere else. Boxes can be pushed "
    "onto teleporters and off them. `activate` does not move boxes."
)

MIN_CHANGE, MAX_CHANGE = 0.05, 0.25
"""Relative change of rewards by a shift, as in other environments."""


def specify(name: str, **game: Any) -> EnvironmentSpec:
    """Return the specification of a Sokoban environment; `game` are arguments of `Sokoban`."""
    return EnvironmentSpec(
        id=name,
        make=partial(_make, name, game),
        describe=_describe,
        versions=_versions,
        rewinder=lambda env: Values(env, "board", "position"),
        restore=lambda env, observation: _game(env).restore(observation),
        shift=_shift,
        objects=lambda env: SCHEMA if _game(env).view == "objects" else None,
        action_names=lambda env: ACTIONS[: ACTIVATE + _game(env).teleports],
    )


def _make(name: str, game: Mapping[str, Any], /, **env_args: Any) -> gym.Env[Any, Any]:
    """Make a game; raise `CwmError` for invalid arguments."""
    from gymnasium.envs.registration import EnvSpec
    from gymnasium.wrappers import TimeLimit

    most = env_args.pop("max_episode_steps", MAX_STEPS)
    known = {"render_mode", "max_episode_steps", "view"} | (
        {"teleport_share"} if "teleports" in game else set()
    )
    with making(name, env_args, known):
        env = Sokoban(**game, **env_args)
        env.spec = EnvSpec(name, entry_point=partial(Sokoban, **game), disable_env_checker=True)
        return TimeLimit(env, most)


def _game(env: gym.Env[Any, Any]) -> Sokoban:
    return cast(Sokoban, env.unwrapped)


def _describe(env: gym.Env[Any, Any]) -> str:
    """Return the rules of the game; the rules of a shifted game contain no changed number."""
    game = _game(env)
    several, teleports = game.boxes > 1, game.teleports
    observation = PICTURE if game.view == "pixels" else TABLE
    observation_text = observation.format(
        shape=game.observation_space.shape,
        tile=PIXELS // SUBSAMPLING,
        ring=", a teleporter a violet ring" if teleports else "",
        mission=MISSION_TEXT,
        slots=1 + 2 * game.boxes + 2 * teleports + 4 * (SIZE - 1) + MAX_INNER_WALLS,
        classes=", ".join(f"{number} {kind}" for number, kind in enumerate(CLASSES)),
        order=("boxes, targets" if several else "the box, the target")
        + (", the two teleporters" if teleports else ""),
        inner=MAX_INNER_WALLS,
        also=" or a teleporter" if teleports else "",
    )
    return GUIDE.format(
        name=env.spec.id if env.spec else "Sokoban",
        observation=observation_text,
        size=SIZE,
        count=f"{game.boxes} boxes" if several else "a box",
        targets=f"{game.boxes} targets, one each" if several else "a target",
        how=", some boards only by teleporting" if teleports and game.teleport_share else "",
        activate=", 4 activate" if teleports else "",
        rules=TELEPORT if teleports else "",
        rewards=STANDARD_REWARDS.format(**REWARDS) if game.rewards == REWARDS else SHIFTED_REWARDS,
        most=MAX_STEPS,
    )


def _versions() -> Mapping[str, str]:
    """Return the versions that determine the behaviour of the game."""
    return {"sokoban": REVISION} | {name: version(name) for name in ("gymnasium", "numpy")}


def _shift(env: gym.Env[Any, Any], rng: np.random.Generator) -> None:
    """Draw new rewards with three digits."""
    game = _game(env)
    for name, value in REWARDS.items():
        factor = 1 + rng.choice((-1, 1)) * rng.uniform(MIN_CHANGE, MAX_CHANGE)
        game.rewards[name] = float(f"{value * factor:.3g}")
