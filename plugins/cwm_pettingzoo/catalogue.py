"""Specifications of games: how they are found, checked and described."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from cwm_cli.envs.films import QUIET
from cwm_cli.envs.spec import EnvironmentSpec, TwoPlayers, import_module, making
from cwm_cli.errors import CwmError, install_command

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_pettingzoo.game import TwoPlayerGame

RESETS, GAMES, MOVES = 300, 20, 15
"""Number of resets, random games and moves of each game that are examined for hidden information
and chance."""

GUIDE = """# {title}

A game of two players with perfect information. Each step is one move. Player 0 is \
`{first}` and player 1 is `{second}`.

## Observation
A dict with two entries:
- `board`: what player 0 observes, in every step. Below, "the current agent" of an observation \
is always player 0.
- `player`: the player to move, 0 or 1.

## Reward and end
The player who moves gets the reward of the step; the other player gets the opposite. The \
episode terminates at the end of the game.

## The game, as its authors describe it
{text}
"""


def specify(name: str) -> EnvironmentSpec:
    """Return the specification of the game `pettingzoo:MODULE`."""
    from cwm_pettingzoo.game import TURN, GameRewinder

    return EnvironmentSpec(
        id=name,
        make=partial(_make, name),
        describe=_describe,
        versions=partial(_versions, name),
        rewinder=GameRewinder,
        valid_actions=lambda env: _game(env).legal_actions(),
        game=TwoPlayers(TURN, lambda env: _game(env).player),
    )


def _game(env: gym.Env[Any, Any]) -> TwoPlayerGame:
    return cast("TwoPlayerGame", env.unwrapped)


def _make(name: str, /, **env_args: Any) -> gym.Env[Any, Any]:
    """Make a game, or raise a CwmError that says why it cannot be one."""
    from gymnasium.envs.registration import EnvSpec

    drawn = {key: value for key, value in env_args.items() if key != "render_mode"}
    check(name, json.dumps(drawn, sort_keys=True, default=str))
    env = _open(name, env_args)
    env.spec = EnvSpec(name, entry_point=partial(_make, name), disable_env_checker=True)
    return env


def _open(name: str, env_args: Mapping[str, Any]) -> TwoPlayerGame:
    from cwm_pettingzoo.game import TwoPlayerGame

    module = find_module(name)
    if not callable(getattr(module, "env", None)):
        raise CwmError(
            f"{module.__name__} has no function env(): name a module of AEC environments"
        )
    with making(name, env_args, env_args):
        aec = module.env(**env_args)
    if not hasattr(aec, "agent_iter"):
        raise CwmError(f"{name} is no AEC environment: name a module whose env() returns one")
    return TwoPlayerGame(aec, name)


def find_module(name: str) -> ModuleType:
    """Import the module of a game: one of PettingZoo, or any module that Python finds.

    Raises:
        CwmError: PettingZoo is not installed, there is no such module, or it fails.
    """
    os.environ.update({key: text for key, text in QUIET.items() if key not in os.environ})
    if find_spec("pettingzoo") is None:
        raise CwmError(f"{name} needs pettingzoo: {install_command('cwm-cli[games]')}")
    bare = name.partition(":")[2]
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
        importlib.invalidate_caches()
    # packages of PettingZoo; a module is searched there by its bare name
    families = ("classic", "butterfly", "sisl", "atari")
    candidates = [f"pettingzoo.{family}.{bare}" for family in families if "." not in bare]
    for candidate in [*candidates, bare]:
        try:
            return import_module(candidate)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if missing != candidate and not f"{candidate}.".startswith(f"{missing}."):
                raise CwmError(
                    f"{name} needs {missing}: {install_command('cwm-cli[games]')}"
                ) from error
    raise CwmError(
        f"there is no module {bare} of games: name one of PettingZoo, such as "
        "pettingzoo:connect_four_v3, or one that Python can import"
    )


@lru_cache(maxsize=64)
def check(name: str, env_args: str) -> None:
    """Refuse games with hidden information or chance; once per game and arguments.

    Perfect information means that the view of one player determines the view of the other. In
    300 starts and 20 random games, no view of player 0 may occur with two views of player 1, and
    no move may have two results.

    Raises:
        CwmError: The game has hidden information or chance.
    """
    env = _open(name, json.loads(env_args))
    try:
        hint = "choose a game without secrets, dice or cards"
        moves = list(_moves(env))
        if _is_ambiguous(_starts(env)) or _is_ambiguous(before for before, *_ in moves):
            raise CwmError(f"{name} hides information from the players: {hint}")
        if _is_ambiguous(((before, action), after) for before, action, after in moves):
            raise CwmError(f"the result of a move in {name} is random: {hint}")
    finally:
        env.close()


def _is_ambiguous(pairs: Iterable[tuple[Any, Any]]) -> bool:
    """Return whether a key occurs with two values."""
    known: dict[Any, Any] = {}
    return any(known.setdefault(key, value) != value for key, value in pairs)


def _views(env: TwoPlayerGame) -> tuple[Any, Any]:
    """Return the position as player 0 observes it, and as player 1 does, with the legal moves."""
    from cwm_cli.planning.model import key

    own, other = (key(env.view(player)[0]) for player in (0, 1))
    return (own, env.player), (other, tuple(env.legal_actions()))


def _starts(env: TwoPlayerGame) -> Iterator[tuple[Any, Any]]:
    """Yield the views of both players after resets; few resets if they are all equal."""
    seen = set()
    for seed in range(RESETS):
        env.reset(seed=seed)
        pair = _views(env)
        seen.add(pair)
        yield pair
        if seed == RESETS // 10 and len(seen) == 1:
            return


def _moves(env: TwoPlayerGame) -> Iterator[tuple[Any, int, Any]]:
    """Yield the views before a random move, the move, and its result.

    Each game is played twice with the same moves and another seed, so that random results show.
    """
    import numpy as np

    for game in range(GAMES):
        rng = np.random.default_rng(game // 2)
        env.reset(seed=game)
        for _ in range(MOVES):
            before, legal = _views(env), env.legal_actions()
            action = legal[rng.integers(len(legal))]
            _, reward, terminated, truncated, _ = env.step(action)
            yield before, action, (reward, terminated, truncated, None if env.over else _views(env))
            if env.over:
                break


def _describe(env: gym.Env[Any, Any]) -> str:
    game = _game(env)
    module = sys.modules[type(game.aec.unwrapped).__module__]
    text = dedent(module.__doc__ or type(game.aec.unwrapped).__doc__ or "").strip()
    if text.startswith("---"):  # settings of its page
        text = text.split("---", 2)[-1].strip()
    title = str(game.aec.metadata.get("name", "Game"))
    agents: Sequence[str] = game.agents
    return GUIDE.format(title=title, first=agents[0], second=agents[1], text=text)


def _versions(name: str) -> Mapping[str, str]:
    """Return the versions of the packages that decide how a game is played."""
    find_module(name)
    return {name: version(name) for name in ("gymnasium", "numpy", "pettingzoo")}
