"""The warehouse as a Gymnasium environment, and its specification for `cwm`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from inspect import getdoc
from typing import Any, NamedTuple, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import TimeLimit

from cwm_cli.envs.spec import EnvironmentSpec, making

ID = "Warehouse-v0"
MAP = (
    "k..#.A.",
    ".#.#...",
    ".>>D..o",
    ".#.#.<<",
    "B..#..C",
)
"""# wall, D door, > and < belts, k the key, A B C shelves, o the dock."""
WIDTH, HEIGHT = len(MAP[0]), len(MAP)
ACTIONS = ("up", "down", "left", "right", "use")
UP, DOWN, LEFT, RIGHT, USE = range(5)
DIRECTIONS = {UP: (0, -1), DOWN: (0, 1), LEFT: (-1, 0), RIGHT: (1, 0)}
BELTS = {"<": DIRECTIONS[LEFT], ">": DIRECTIONS[RIGHT]}
SHELVES = "ABC"
CARRIED = len(SHELVES)
MAX_STEPS = 100
"""Step limit of an episode; observations do not contain the number of steps."""
REWARDS = {"step": -0.1, "delivery": 10.0}
MIN_CHANGE, MAX_CHANGE = 0.05, 0.25
"""Relative change of rewards by a shift."""


class WarehouseState(NamedTuple):
    """The state: the position of the robot, and the key, the door and the parcel."""

    x: int
    y: int
    has_key: bool
    is_open: bool
    parcel: int


def sign(x: int, y: int) -> str:
    """Return the sign of the map at a position; a wall outside the map."""
    return MAP[y][x] if 0 <= x < WIDTH and 0 <= y < HEIGHT else "#"


def move(state: WarehouseState, direction: tuple[int, int]) -> WarehouseState:
    """Return the state after a move by one cell; a wall or the closed door stops the robot."""
    x, y = state.x + direction[0], state.y + direction[1]
    is_blocked = sign(x, y) == "#" or (sign(x, y) == "D" and not state.is_open)
    return state if is_blocked else state._replace(x=x, y=y)


def use(state: WarehouseState) -> WarehouseState:
    """Return the state after taking the key, opening the door, or taking the parcel."""
    here = sign(state.x, state.y)
    neighbours = [sign(state.x + dx, state.y + dy) for dx, dy in DIRECTIONS.values()]
    if here == "k":
        return state._replace(has_key=True)
    if "D" in neighbours and state.has_key:
        return state._replace(is_open=True)
    if state.parcel < CARRIED and here == SHELVES[state.parcel]:
        return state._replace(parcel=CARRIED)
    return state


class WarehouseEnvironment(gym.Env[Any, Any]):
    """A robot in a warehouse fetches a parcel from a shelf and brings it to the dock.

    ## Map
    Seven columns (x, from 0 at the left) and five rows (y, from 0 at the top):

        k..#.A.
        .#.#...
        .>>D..o
        .#.#.<<
        B..#..C

    `#` is a wall, `D` the door, `>` and `<` conveyor belts, `k` the initial position of the key.
    `A`, `B` and `C` are shelves, `o` is the dock.

    ## Observation
    A dict of integers: `robot` is the position of the robot (x, y), `key` whether it has the key (0
    or 1), `door` whether the door is open (0 or 1), `parcel` the position of the parcel: 0 shelf A,
    1 shelf B, 2 shelf C, 3 carried by the robot.

    ## Actions
    0 up, 1 down, 2 left, 3 right move the robot by one cell. Walls, the edges of the map and the
    closed door stop it. 4 (use) depends on the position: at k, the robot gets the key. Next to the
    door, it opens the door if it has the key; the door stays open, and the robot keeps the key. At
    the shelf with the parcel, it takes the parcel. At the dock, it delivers the parcel that it
    carries. Elsewhere, nothing happens.

    After any action, a belt moves a robot on it by one cell, to the right for `>` and to the left
    for `<`, unless something stops the robot there.

    ## Start
    The robot starts at a random cell of the column x = 0, and the parcel at a random shelf. The
    door is closed, and the key is at k.

    ## Reward and end
    {rewards}
    """

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"unknown render mode {render_mode!r}: choose 'ansi'")
        self.observation_space = spaces.Dict(
            {
                "robot": spaces.MultiDiscrete([WIDTH, HEIGHT]),
                "key": spaces.Discrete(2),
                "door": spaces.Discrete(2),
                "parcel": spaces.Discrete(CARRIED + 1),
            }
        )
        self.action_space = spaces.Discrete(len(ACTIONS))
        self.render_mode = render_mode
        self.rewards = dict(REWARDS)
        self._state = WarehouseState(0, 0, False, False, 0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode with random positions of the robot and the parcel."""
        super().reset(seed=seed)
        row, parcel = self.np_random.integers(HEIGHT), self.np_random.integers(CARRIED)
        self._state = WarehouseState(0, int(row), False, False, int(parcel))
        return self._observation(), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Take an action; then a belt under the robot moves it."""
        before = self._state
        over = action == USE and before.parcel == CARRIED and sign(before.x, before.y) == "o"
        after = use(before) if action == USE else move(before, DIRECTIONS[int(action)])
        belt = BELTS.get(sign(after.x, after.y))
        self._state = move(after, belt) if belt else after
        reward = self.rewards["step"] + self.rewards["delivery"] * over
        return self._observation(), round(reward, 9), over, False, {}

    def restore(self, observation: Any) -> bool:
        """Set the warehouse to an observation; return False if the observation is invalid."""
        if not self.observation_space.contains(observation):
            return False
        x, y = map(int, observation["robot"])
        if sign(x, y) == "#" or (sign(x, y) == "D" and not observation["door"]):
            return False
        parts = bool(observation["key"]), bool(observation["door"]), int(observation["parcel"])
        self._state = WarehouseState(x, y, *parts)
        return True

    def render(self) -> Any:
        """Return the map as text, with the robot as @, or as & if it carries the parcel."""
        if self.render_mode is None:
            return None
        rows = [list(row) for row in MAP]
        rows[0][0] = "." if self._state.has_key else "k"
        if self._state.is_open:
            rows[2][3] = "."
        rows[self._state.y][self._state.x] = "&" if self._state.parcel == CARRIED else "@"
        return "\n".join("".join(row) for row in rows)

    def _observation(self) -> dict[str, Any]:
        state = self._state
        return {
            "robot": np.array([state.x, state.y], np.int64),
            "key": int(state.has_key),
            "door": int(state.is_open),
            "parcel": state.parcel,
        }


STANDARD_REWARDS = "Every step rewards {step:g}; delivering the parcel rewards {delivery:g} in \
addition, and terminates the episode."
SHIFTED_REWARDS = "Every step rewards a small negative number, always the same; delivering the \
parcel rewards a large positive number in addition, and terminates the episode. The numbers differ \
from other warehouses."


def make(**env_args: Any) -> gym.Env[Any, Any]:
    """Make the environment with the arguments of `--env-arg`.

    Raises:
        CwmError: An argument is unknown or invalid.
    """
    limit = env_args.pop("max_episode_steps", MAX_STEPS)
    with making(ID, env_args, {"render_mode", "max_episode_steps"}):
        env = WarehouseEnvironment(**env_args)
        env.spec = EnvSpec(ID, f"{__name__}:WarehouseEnvironment", disable_env_checker=True)
        return TimeLimit(env, limit)


def describe(env: gym.Env[Any, Any]) -> str:
    """Return the rules of the warehouse; for a shifted warehouse, without the changed numbers."""
    rewards = _warehouse(env).rewards
    text = STANDARD_REWARDS.format(**rewards) if rewards == REWARDS else SHIFTED_REWARDS
    return f"# {ID}\n\n" + (getdoc(WarehouseEnvironment) or "").replace("{rewards}", text)


def shift(env: gym.Env[Any, Any], rng: np.random.Generator) -> None:
    """Draw new rewards with three digits."""
    warehouse = _warehouse(env)
    for name, value in REWARDS.items():
        factor = 1 + rng.choice((-1, 1)) * rng.uniform(MIN_CHANGE, MAX_CHANGE)
        warehouse.rewards[name] = float(f"{value * factor:.3g}")


def versions() -> Mapping[str, str]:
    """Return the versions of the packages that determine the behaviour of the environment."""
    return {name: version(name) for name in ("cwm-warehouse", "gymnasium", "numpy")}


def specify() -> EnvironmentSpec:
    """Return the specification of the environment."""
    return EnvironmentSpec(
        id=ID,
        make=make,
        describe=describe,
        versions=versions,
        restore=lambda env, observation: _warehouse(env).restore(observation),
        shift=shift,
        action_names=lambda env: ACTIONS,
    )


def _warehouse(env: gym.Env[Any, Any]) -> WarehouseEnvironment:
    return cast(WarehouseEnvironment, env.unwrapped)
