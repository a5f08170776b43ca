"""Small worlds of objects for the tests: a corridor with a key, a door and a goal."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.objects import ObjectField, ObjectSchema
from cwm_cli.envs.spec import space_of
from cwm_learn.missions import StateView

SCHEMA = ObjectSchema(
    ("free", "agent", "wall", "key", "door", "goal"),
    (
        ObjectField("x"),
        ObjectField("y"),
        ObjectField("direction", ("none", "right", "left")),
        ObjectField("color", ("none", "red", "blue")),
        ObjectField("state", ("none", "open", "locked")),
        ObjectField("held"),
    ),
    directions=((1, 0), (-1, 0)),
)
ACTIONS = ("turn", "forward", "pick up", "toggle")
AGENT, WALL, KEY, DOOR, GOAL = range(1, 6)
MISSION = "use the key to open the door and get to the goal"


class Corridor(gym.Env[Any, Any]):
    """A corridor: wall, agent and key before a locked door, the goal behind it, wall.

    The action `pick up` takes the key in front, `toggle` opens the door in front with it.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, length: int = 7, mission: str = MISSION) -> None:
        self.length, self.mission = length, mission
        self.observation_space = spaces.Dict(
            {
                "mission": spaces.Text(80),
                "objects": spaces.Box(0, max(6, length), (6, 7), np.int64),
            }
        )
        self.action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        place = int(self.np_random.integers(1, 3))
        end = self.length - 1
        self.table = np.array(
            [
                [AGENT, place, 0, 1 + int(self.np_random.integers(2)), 0, 0, 0],
                [KEY, 3 - place, 0, 0, 1, 0, 0],
                [DOOR, 3, 0, 0, 1, 2, 0],
                [GOAL, end - 1, 0, 0, 0, 0, 0],
                [WALL, 0, 0, 0, 0, 0, 0],
                [WALL, end, 0, 0, 0, 0, 0],
            ]
        )
        return self._seen(), {}

    def step(self, action: int) -> Any:
        table, name = self.table, ACTIONS[action]
        agent, lying = table[0], table[:, 6] == 0
        ahead = agent[1] + (1 if agent[3] == 1 else -1)
        [front] = [*np.flatnonzero(lying & (table[:, 1] == ahead)), None][:1]
        kind = 0 if front is None else table[front, 0]
        passable = kind in (0, GOAL) or (kind == DOOR and table[front, 5] == 1)
        done = False
        if name == "turn":
            agent[3] = 3 - agent[3]
        elif name == "forward" and passable:
            agent[1] = ahead
            table[table[:, 6] == 1, 1] = ahead
            done = kind == GOAL
        elif name == "pick up" and kind == KEY:
            table[front, 6], table[front, 1] = 1, agent[1]
        elif name == "toggle" and kind == DOOR and table[1, 6]:
            table[front, 5] = 1
        return self._seen(), float(done), bool(done), False, {}

    def _seen(self) -> dict[str, Any]:
        return {"mission": self.mission, "objects": self.table.copy()}


def rows_of(env, count: int = 150, seed: int = 0) -> Dataset:
    rng, rows, episode = np.random.default_rng(seed), [], 0
    observation, _ = env.reset(seed=seed)
    for _ in range(count):
        action = int(rng.integers(env.action_space.n))
        found, reward, terminated, _, _ = env.step(action)
        rows.append(Transition(observation, action, found, reward, terminated, episode=episode))
        observation = found
        if terminated:
            episode += 1
            observation, _ = env.reset(seed=seed + episode)
    spaces = space_of(env.observation_space), space_of(env.action_space, "actions")
    return Dataset.of(rows, observation_space=spaces[0], action_space=spaces[1])


def view_of(rows: Dataset) -> StateView:
    return StateView(rows.observation_space, SCHEMA, ACTIONS)
