"""A door that opens for some of 27 items, by a hidden rule (Levy et al., 2025)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from cwm_cli.envs.simulators import Values
from cwm_cli.envs.spec import EnvironmentSpec, making
from cwm_cli.envs.text_view import Change, Consequence, TextView
from cwm_cli.errors import CwmError, UnknownNameError

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Transition

REVISION = "1"
"""Version of the dynamics; increase it with every change."""


class Item(NamedTuple):
    """An item to hold in front of the door."""

    size: str
    colour: str
    shape: str

    def __str__(self) -> str:
        return " ".join(self)


ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "size": ("small", "medium", "large"),
    "colour": ("red", "green", "blue"),
    "shape": ("key", "ball", "box"),
}

ITEMS = tuple(Item(*values) for values in product(*ATTRIBUTES.values()))
"""All items, in the order of the actions."""

RULES: Mapping[str, Callable[[Item], bool]] = {
    "not blue": lambda item: item.colour != "blue",
    "not a blue key": lambda item: (item.colour, item.shape) != ("blue", "key"),
    "neither green nor large": lambda item: item.colour != "green" and item.size != "large",
    "always": lambda item: True,
    "never": lambda item: False,
}
"""The items that open the door, by the name of the rule."""

RANDOM = "random"
"""Rule that fixes the values of random attributes."""

CLOSED, OPEN = 0, 1

GUIDE = """A closed door and {count} items. Each item is {size}, {colour}, and a {shape}. If you \
hold an item before the door, the door opens or stays closed. This depends on the item alone, and \
is always the same for the same item."""

DESCRIPTION = """# Door

{guide}

## Observation
An integer: 0 if the door is closed, 1 if it is open. It is closed at the start.

## Actions
The number of the item to hold: {items}. In other words, `action // 9` is its size ({size}), \
`action // 3 % 3` its colour ({colour}) and `action % 3` its shape ({shape}), each counted from 0.

## Reward and end
An episode terminates with its first step. The reward is 1 if the door opens, and 0 if it stays \
closed."""


class Door(gym.Env[Any, Any]):
    """One step: the agent holds an item in front of a door, which opens or stays closed.

    `rule` is a name in `RULES`, or `random`: then `fixed` attributes must have certain values,
    drawn with `rule_seed` and equal in all episodes.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    def __init__(
        self,
        *,
        rule: str = RANDOM,
        fixed: int = 2,
        rule_seed: int = 0,
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"unknown render mode {render_mode!r}: choose 'ansi'")
        if rule not in (RANDOM, *RULES):
            raise UnknownNameError("rule of the door", str(rule), (RANDOM, *RULES))
        if fixed not in range(len(ATTRIBUTES) + 1):
            raise ValueError(f"fixed is {fixed!r}: choose a number from 0 to {len(ATTRIBUTES)}")
        opens = RULES[rule] if rule != RANDOM else draw_rule(fixed, rule_seed)
        self.opening = frozenset(item for item in ITEMS if opens(item))
        self.render_mode = render_mode
        self.observation_space = spaces.Discrete(2)
        self.action_space = spaces.Discrete(len(ITEMS))
        self.door = CLOSED

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Close the door."""
        super().reset(seed=seed)
        self.door = CLOSED
        return self.door, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Hold an item in front of the door."""
        if not self.action_space.contains(action):
            raise ValueError(f"there is no item {action!r}: choose one from 0 to {len(ITEMS) - 1}")
        self.door = OPEN if ITEMS[action] in self.opening else CLOSED
        return self.door, float(self.door), True, False, {}

    def restore(self, observation: Any) -> bool:
        """Set the state of the door; return False for an invalid observation."""
        if not self.observation_space.contains(observation):
            return False
        self.door = int(observation)
        return True

    def render(self) -> str | None:
        """Return the state of the door in words."""
        return None if self.render_mode is None else SEEN[self.door]


def draw_rule(fixed: int, seed: int) -> Callable[[Item], bool]:
    """Draw attributes and their required values."""
    rng = np.random.default_rng(seed)
    places = rng.choice(len(ATTRIBUTES), fixed, replace=False)
    values = list(ATTRIBUTES.values())
    wanted = {place: values[place][rng.integers(len(values[place]))] for place in places.tolist()}
    return lambda item: all(item[place] == value for place, value in wanted.items())


SEEN = ("You stand before a closed door.", "You stand before an open door.")
"""States in words; the index is the state of the door."""
CHANGES = (Change("The door stays closed.", "closed"), Change("The door opens.", "opened"))
"""Changes in words; the index is the state of the door after the step."""


class DoorWords(TextView):
    """The text view of the door; the facts are the attributes of the item."""

    kinds = tuple(change.kind for change in CHANGES)
    vocabulary = ATTRIBUTES
    conclusions: Mapping[str, Mapping[str, tuple[str, ...]]] = {kind: {} for kind in kinds}
    goals = ("open the door",)
    lists_discovered = True

    def __init__(self, door: Door) -> None:
        self._opening = door.opening

    def guide(self) -> str:
        """Describe the door and the items."""
        return _fill_in(GUIDE)

    def state(self, observation: Any) -> str:
        """Return the state of the door in words."""
        return SEEN[int(observation)]

    def legal(self, observation: Any) -> Sequence[int]:
        """Return all items."""
        return range(len(ITEMS))

    def action(self, observation: Any, action: int) -> str:
        """Return the action in words."""
        return f"You hold the {ITEMS[action]} before the door."

    def facts(self, observation: Any, action: int) -> Mapping[str, str]:
        """Return the attributes of the item."""
        return ITEMS[action]._asdict()

    def change(self, row: Transition) -> Change:
        """Return whether the door opened."""
        return CHANGES[int(row.next_observation)]

    def candidates(self, observation: Any) -> Sequence[Change]:
        """Return both changes: the door stays closed, or it opens."""
        return CHANGES

    def reachable(self, observation: Any) -> Sequence[bool]:
        """Return whether any item leaves the door closed, and whether any item opens it."""
        return len(self._opening) < len(ITEMS), bool(self._opening)

    def consequence(self, observation: Any, action: int, change: Change) -> Consequence:
        """Return the end of the episode, with reward 1 if the door opened."""
        door = CHANGES.index(change)
        return Consequence(door, float(door), True)

    def features(self, observation: Any) -> np.ndarray:
        """Return the state of the door."""
        return np.array([float(observation)])

    def solution(self, observation: Any, goal: str) -> Sequence[int]:
        """Return the first item that opens the door."""
        for action, item in enumerate(ITEMS):
            if item in self._opening:
                return [action]
        raise CwmError("the rule of this door is to never open")


def specify(name: str) -> EnvironmentSpec:
    """Return the spec of the door."""
    return EnvironmentSpec(
        id=name,
        make=partial(_make, name),
        describe=lambda env: _fill_in(DESCRIPTION),
        versions=_versions,
        rewinder=lambda env: Values(env, "door"),
        restore=lambda env, observation: _door(env).restore(observation),
        action_names=lambda env: tuple(f"hold the {item}" for item in ITEMS),
        text=lambda env: DoorWords(_door(env)),
    )


def _make(name: str, /, **env_args: Any) -> gym.Env[Any, Any]:
    """Make a door; `making` turns invalid arguments into one-line errors."""
    from gymnasium.envs.registration import EnvSpec

    with making(name, env_args, ["rule", "fixed", "rule_seed", "render_mode"]):
        env = Door(**env_args)
    env.spec = EnvSpec(
        name, entry_point=partial(Door), max_episode_steps=1, disable_env_checker=True
    )
    return env


def _door(env: gym.Env[Any, Any]) -> Door:
    return cast(Door, env.unwrapped)


def _fill_in(text: str) -> str:
    """Fill the attributes and items into a text."""
    said = {name: f"{', '.join(of[:-1])} or {of[-1]}" for name, of in ATTRIBUTES.items()}
    items = ", ".join(f"{number} {item}" for number, item in enumerate(ITEMS))
    guide = GUIDE.format(count=len(ITEMS), **said)
    return text.format(guide=guide, count=len(ITEMS), items=items, **said)


def _versions() -> Mapping[str, str]:
    """Return the versions that determine the dynamics."""
    return {"door": REVISION} | {name: version(name) for name in ("gymnasium", "numpy")}
