"""The warehouse as an environment of Gymnasium, and what `cwm` is told of it."""

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
"""# wall, D door, > and < belts, k where the key lies, A B C shelves, o the dock."""
WIDTH, HEIGHT = len(MAP[0]), len(MAP)
ACTIONS = ("up", "down", "left", "right", "use")
UP, DOWN, LEFT, RIGHT, USE = range(5)
WAYS = {UP: (0, -1), DOWN: (0, 1), LEFT: (-1, 0), RIGHT: (1, 0)}
BELTS = {"<": WAYS[LEFT], ">": WAYS[RIGHT]}
SHELVES = "ABC"
CARRIED = len(SHELVES)
MOST_STEPS = 100
"""Steps after which an episode is cut off. No observation counts them."""
REWARDS = {"step": -0.1, "delivery": 10.0}
LEAST, MOST = 0.05, 0.25
"""By what share a shift makes rewards larger or smaller."""


class WarehouseState(NamedTuple):
    """All that changes: where the robot is, and what became of the key, the door and the parcel."""

    x: int
    y: int
    has_key: bool
    is_open: bool
    parcel: int


def sign(x: int, y: int) -> str:
    """Return what the map shows at a place; beyond its edges there are walls."""
    return MAP[y][x] if 0 <= x < WIDTH and 0 <= y < HEIGHT else "#"


def moved(state: WarehouseState, way: tuple[int, int]) -> WarehouseState:
    """Go a place on, unless a wall or the closed door is there."""
    x, y = state.x + way[0], state.y + way[1]
    stops = sign(x, y) == "#" or (sign(x, y) == "D" and not state.is_open)
    return state if stops else state._replace(x=x, y=y)


def used(state: WarehouseState) -> WarehouseState:
    """Take the key, open the door beside the robot, or take the parcel from its shelf."""
    here = sign(state.x, state.y)
    beside = [sign(state.x + dx, state.y + dy) for dx, dy in WAYS.values()]
    if here == "k":
        return state._replace(has_key=True)
    if "D" in beside and state.has_key:
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

    `#` is a wall, `D` the door, `>` and `<` conveyor belts, `k` where the key lies at first, `A`,
    `B` and `C` are shelves, `o` is the dock.

    ## Observation
    A dict of whole numbers: `robot` is its place (x, y), `key` whether it has the key (0 or 1),
    `door` whether the door is open (0 or 1), `parcel` where the parcel is: 0 shelf A, 1 shelf B,
    2 shelf C, 3 carried by the robot.

    ## Actions
    0 up, 1 down, 2 left, 3 right move the robot by one place. Walls, the edges of the map and the
    closed door stop it. 4 uses what is there: at k the robot gets the key, beside the door it opens
    the door if it has the key (for good, and the key is kept), at the shelf where the parcel is it
    takes the parcel, and at the dock it delivers the parcel that it carries. Elsewhere nothing is
    used.

    After any action a robot that stands on a belt is carried one place on, to the right by `>`, to
    the left by `<`, unless something stops it there.

    ## Start
    The robot starts at k, at B or in between, in the column x = 0; the parcel is at A, B or C. Both
    are drawn. The door is closed, and the key is at k.

    ## Reward and end
    {rewards}
    """

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"there is no render mode {render_mode!r}, only 'ansi'")
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
        """Begin an episode: draw where the robot and the parcel are."""
        super().reset(seed=seed)
        row, parcel = self.np_random.integers(HEIGHT), self.np_random.integers(CARRIED)
        self._state = WarehouseState(0, int(row), False, False, int(parcel))
        return self._observation(), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Move or use what is there; then belts carry the robot on."""
        before = self._state
        over = action == USE and before.parcel == CARRIED and sign(before.x, before.y) == "o"
        after = used(before) if action == USE else moved(before, WAYS[int(action)])
        way = BELTS.get(sign(after.x, after.y))
        self._state = moved(after, way) if way else after
        reward = self.rewards["step"] + self.rewards["delivery"] * over
        return self._observation(), round(reward, 9), over, False, {}

    def restore(self, observation: Any) -> bool:
        """Stand at an observation; False where it is none of the warehouse."""
        if not self.observation_space.contains(observation):
            return False
        x, y = map(int, observation["robot"])
        if sign(x, y) == "#" or (sign(x, y) == "D" and not observation["door"]):
            return False
        parts = bool(observation["key"]), bool(observation["door"]), int(observation["parcel"])
        self._state = WarehouseState(x, y, *parts)
        return True

    def render(self) -> Any:
        """Draw the map as text, with the robot as @, or as & where it carries the parcel."""
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


KNOWN = "Every step rewards {step:g}; delivering the parcel rewards {delivery:g} beside that, and \
terminates the episode."
SHIFTED = "Every step rewards a small negative number, always the same; delivering the parcel \
rewards a large positive number beside that, and terminates the episode. The numbers differ from \
those of other warehouses."


def make(**env_args: Any) -> gym.Env[Any, Any]:
    """Make the environment with the arguments that `--env-arg` gives, or say why not."""
    limit = env_args.pop("max_episode_steps", MOST_STEPS)
    with making(ID, env_args, {"render_mode", "max_episode_steps"}):
        env = WarehouseEnvironment(**env_args)
        env.spec = EnvSpec(ID, f"{__name__}:WarehouseEnvironment", disable_env_checker=True)
        return TimeLimit(env, limit)


def describe(env: gym.Env[Any, Any]) -> str:
    """Say how the warehouse works; one that was shifted gives away no number that was drawn."""
    rewards = _warehouse(env).rewards
    told = KNOWN.format(**rewards) if rewards == REWARDS else SHIFTED
    return f"# {ID}\n\n" + (getdoc(WarehouseEnvironment) or "").replace("{rewards}", told)


def shift(env: gym.Env[Any, Any], rng: np.random.Generator) -> None:
    """Draw the rewards anew, to three digits."""
    warehouse = _warehouse(env)
    for name, value in REWARDS.items():
        factor = 1 + rng.choice((-1, 1)) * rng.uniform(LEAST, MOST)
        warehouse.rewards[name] = float(f"{value * factor:.3g}")


def versions() -> Mapping[str, str]:
    """Name what decides how the environment behaves, with its versions."""
    return {name: version(name) for name in ("cwm-warehouse", "gymnasium", "numpy")}


def specify() -> EnvironmentSpec:
    """Tell `cwm` how the environment is made, described, restored and shifted."""
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
