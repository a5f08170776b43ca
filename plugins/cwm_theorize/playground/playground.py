"""A playground where plants and animals grow, by hidden rules.

Seeds, plants, water and animals are on the ground. The agent goes to a thing, grasps it, and
releases held things where they make something grow (Levy et al., 2025, after Playground by Colas et
al., 2020). Positions have no effect, so there are no coordinates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache, lru_cache
from heapq import heappop, heappush
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from cwm_cli.errors import CwmError, UnknownNameError

REVISION = "1"
"""Version of the dynamics; increase it with every change."""

MAX_STEPS = 30
"""Maximum episode length; the longest goal takes 19 steps."""

SPECIES = {
    "water": ("water",),
    "plant": ("carrot", "potato", "beet", "berry", "pea"),
    "small": ("pig", "cow", "sheep"),
    "big": ("elephant", "giraffe", "rhinoceros"),
}
"""Types of things by category; plants start as seeds, and animals as babies."""

NOTHING = 0
TYPES = ("nothing", *(species for of in SPECIES.values() for species in of))
GROWN = len(TYPES)
"""Number of types. A thing is the number of its type, plus `GROWN` if it is grown; water is
always grown."""

CATEGORIES = tuple(next((c for c, of in SPECIES.items() if name in of), "") for name in TYPES)
"""Category of each type; "" for nothing."""

WATER = GROWN + TYPES.index("water")
THINGS = tuple(thing for thing in range(2 * GROWN) if thing % GROWN and thing != WATER - GROWN)
"""Numbers of all valid things."""

GRASP, RELEASE_FIRST, RELEASE_SECOND, RELEASE_ALL = range(2 * GROWN, 2 * GROWN + 4)
"""Actions that follow the "go to" actions; the number of a "go to" action is its thing."""

HANDS = 2
"""Maximum number of held things."""

START_COUNTS = (("plant", 3), ("small", 1), ("big", 1))
"""Number of things of each category at the start of an episode, besides as much water as seeds."""

MAX_EQUAL_THINGS = 3
"""Maximum number of equal things: water, or plants if all three are equal."""

GOALS = {
    "plant": frozenset({"plant"}),
    "small": frozenset({"small"}),
    "big": frozenset({"small", "big"}),
}
"""Categories that must be grown for each goal, easiest goal first."""

_YOUNG = {"plant": "{} seed", "small": "baby {}", "big": "baby {}"}


def name_of(thing: int) -> str:
    """Return the name of a thing: "carrot seed", "carrot", "water", "baby pig"."""
    grown, kind = divmod(thing, GROWN)
    return TYPES[kind] if grown or not kind else _YOUNG[CATEGORIES[kind]].format(TYPES[kind])


NAMES = tuple(name_of(thing) if thing in THINGS else "nothing" for thing in range(2 * GROWN))
ACTIONS = (
    *(f"go to the {name}" if name != "nothing" else "go to nothing" for name in NAMES),
    "grasp",
    "release the first",
    "release the second",
    "release all",
)
"""Names of the actions; actions that go to nothing are never valid."""


def kind_of(thing: int) -> tuple[str, bool]:
    """Return the category of a thing, and whether it is grown."""
    grown, kind = divmod(thing, GROWN)
    return CATEGORIES[kind], bool(grown)


_KINDS = tuple(kind_of(thing) for thing in range(2 * GROWN))
_PLANT, _SEED, _BABY, _BIG_BABY = (
    ("plant", True),
    ("plant", False),
    ("small", False),
    ("big", False),
)


_FIRST = {kind: _KINDS.index(kind) for kind in _KINDS}
"""The first thing of each kind."""


@cache
def product(*things: int) -> int:
    """Return the thing that grows from a combination of things, in any order; else nothing.

    A seed and water give the plant. A plant and the baby of a small animal give this animal. Two
    plants and the baby of a big animal give that animal.
    """
    kinds = sorted(_KINDS[thing] for thing in things)
    recipes: tuple[tuple[list[tuple[str, bool]], tuple[str, bool]], ...] = (
        ([_SEED, ("water", True)], _SEED),
        ([_PLANT, _BABY], _BABY),
        ([_BIG_BABY, _PLANT, _PLANT], _BIG_BABY),
    )
    for needed, growing in recipes:
        if kinds == needed:
            return GROWN + next(thing for thing in things if _KINDS[thing] == growing)
    return NOTHING


class PlaygroundState(NamedTuple):
    """A state: things on the ground, in order; the thing under foot; held things."""

    ground: tuple[int, ...]
    foot: int = NOTHING
    held: tuple[int, ...] = ()

    @lru_cache(maxsize=4096)  # noqa: B019 - used several times per step
    def legal(self) -> tuple[int, ...]:
        """Return the valid actions in ascending order."""
        actions = sorted({*self.ground})
        foot, held = self.foot, self.held
        if foot and len(held) < HANDS:
            actions.append(GRASP)
        actions += [RELEASE_FIRST + slot for slot, one in enumerate(held) if product(one, foot)]
        if len(held) == HANDS and product(*held, foot):
            actions.append(RELEASE_ALL)
        return tuple(actions)

    def after(self, action: int) -> PlaygroundState:
        """Return the state after a valid action."""
        if action < GRASP:
            return self._replace(foot=action)
        if action == GRASP:
            return PlaygroundState(
                _without(self.ground, self.foot), NOTHING, (*self.held, self.foot)
            )
        return self.growing(action, product(*self.released(action), self.foot))

    def released(self, action: int) -> tuple[int, ...]:
        """Return the things that an action releases."""
        if action == RELEASE_ALL:
            return self.held
        slot = action - RELEASE_FIRST
        return self.held[slot : slot + 1] if slot >= 0 else ()

    def growing(self, action: int, grown: int) -> PlaygroundState:
        """Return the state if `grown` replaces the released things and the thing under foot."""
        kept = [*self.held]
        for thing in self.released(action):
            kept.remove(thing)
        ground = (*_without(self.ground, self.foot), grown)
        return PlaygroundState(tuple(sorted(ground)), grown, tuple(kept))

    def products(self) -> Iterator[int]:
        """Yield each thing that can grow from the present things, once."""
        there = sorted({*self.ground, *self.held})
        kinds = Counter(_KINDS[thing] for thing in (*self.ground, *self.held))
        enough = {
            _SEED: kinds["water", True] > 0,
            _BABY: kinds[_PLANT] > 0,
            _BIG_BABY: kinds[_PLANT] > 1,
        }
        yield from (GROWN + thing for thing in there if enough.get(_KINDS[thing]))

    def reached(self, goal: str) -> bool:
        """Return whether all categories of a goal are grown."""
        kinds = {_KINDS[thing] for thing in (*self.ground, *self.held)}
        return all((category, True) in kinds for category in GOALS[goal])

    def numbers(self) -> np.ndarray:
        """Return the observation: counts of each thing, the thing under foot, and held things."""
        counts = [0] * (2 * GROWN)
        for thing in self.ground:
            counts[thing] += 1
        hands = (*self.held, NOTHING, NOTHING)[:HANDS]
        return np.array([*counts, self.foot, *hands], np.int64)


def solution(scene: PlaygroundState, goal: str) -> list[int]:
    """Return a shortest sequence of actions to a goal.

    The search replaces every thing by the first of its kind, because growth depends on kinds only.

    Raises:
        CwmError: The goal is out of reach.
    """
    plain = _solution(_representative(scene), goal)
    if plain is None:
        raise CwmError(f"{goal!r} cannot be reached from here: the needed objects are held or gone")
    actions = []
    for action in plain:
        if action < GRASP:  # the first thing of that kind on the ground
            wanted = _KINDS[action]
            action = next(thing for thing in scene.ground if _KINDS[thing] == wanted)
        actions.append(action)
        scene = scene.after(action)
    return actions


@cache
def _solution(start: PlaygroundState, goal: str) -> tuple[int, ...] | None:
    """Search for a shortest path, and among these for one that rarely has both hands full."""
    waiting: list[tuple[int, int, tuple[int, ...], PlaygroundState]] = [(0, 0, (), start)]
    seen = set[PlaygroundState]()
    while waiting:
        steps, full, actions, here = heappop(waiting)
        if here.reached(goal):
            return actions
        if here in seen:
            continue
        seen.add(here)
        for action in here.legal():
            there = here.after(action)
            burden = full + (len(there.held) == HANDS)
            heappush(waiting, (steps + 1, burden, (*actions, action), there))
    return None


def _representative(scene: PlaygroundState) -> PlaygroundState:
    """Replace every thing by the first of its kind."""
    ground = tuple(sorted(_FIRST[_KINDS[thing]] for thing in scene.ground))
    held = tuple(_FIRST[_KINDS[thing]] for thing in scene.held)
    return PlaygroundState(ground, _FIRST[_KINDS[scene.foot]], held)


def _without(ground: tuple[int, ...], thing: int) -> tuple[int, ...]:
    place = ground.index(thing)
    return ground[:place] + ground[place + 1 :]


def scene_of(numbers: Any) -> PlaygroundState:
    """Return the state of an observation; the inverse of `PlaygroundState.numbers`."""
    return _scene(np.asarray(numbers, np.int64).tobytes())


@lru_cache(maxsize=4096)  # used about ten times per step
def _scene(numbers: bytes) -> PlaygroundState:
    *counts, foot, first, second = np.frombuffer(numbers, np.int64).tolist()
    ground = tuple(thing for thing, count in enumerate(counts) for _ in range(count))
    return PlaygroundState(ground, foot, tuple(thing for thing in (first, second) if thing))


class Playground(gym.Env[Any, Any]):
    """Grow plants and animals, from a random initial state.

    `goal` is a name in `GOALS`: reaching it gives reward 1 and ends the episode.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 2}  # noqa: RUF012

    def __init__(self, *, goal: str = "big", render_mode: str | None = None) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"unknown render mode {render_mode!r}: choose 'ansi'")
        if goal not in GOALS:
            raise UnknownNameError("goal of the playground", str(goal), GOALS)
        self.goal = goal
        self.render_mode = render_mode
        lying = np.full(2 * GROWN, 1 + MAX_EQUAL_THINGS)
        self.observation_space = spaces.MultiDiscrete([*lying, *[2 * GROWN] * (1 + HANDS)])
        self.action_space = spaces.Discrete(len(ACTIONS))
        self.scene = PlaygroundState(())

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Draw the things on the ground."""
        super().reset(seed=seed)
        ground = [
            TYPES.index(SPECIES[category][number])
            for category, count in START_COUNTS
            for number in self.np_random.permutation(len(SPECIES[category]))[:count]
        ]
        ground += [WATER] * START_COUNTS[0][1]
        self.scene = PlaygroundState(tuple(sorted(ground)))
        return self.scene.numbers(), self._info()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Apply a valid action; any other action has no effect."""
        if not self.action_space.contains(action):
            raise ValueError(f"there is no action {action!r}: choose one of {self.action_space}")
        if self.scene == PlaygroundState(()):
            raise gym.error.ResetNeeded("reset the environment before its first step")
        if action in self.valid_actions():
            self.scene = self.scene.after(int(action))
        done = self.scene.reached(self.goal)
        return self.scene.numbers(), float(done), done, False, self._info()

    def valid_actions(self) -> tuple[int, ...]:
        """Return the valid actions."""
        return self.scene.legal()

    def restore(self, observation: Any) -> bool:
        """Set the state to an observation; return False if it is invalid."""
        if not self.observation_space.contains(observation):
            return False
        scene = scene_of(observation)
        held_after_nothing = len(scene.held) < HANDS and observation[-1] != NOTHING
        there = {*scene.ground, *scene.held} <= {*THINGS}
        if not there or held_after_nothing or scene.foot not in (NOTHING, *scene.ground):
            return False
        self.scene = scene
        return True

    def render(self) -> str | None:
        """Return the state in words."""
        return None if self.render_mode is None else describe_scene(self.scene)

    def _info(self) -> dict[str, Any]:
        return {"valid_actions": self.valid_actions()}


def describe_scene(scene: PlaygroundState) -> str:
    """Return the things on the ground, under foot and in the hands, in words."""
    lying = ", ".join(f"the {NAMES[thing]}" for thing in scene.ground) or "nothing"
    held = " and ".join(f"the {NAMES[thing]}" for thing in scene.held) or "nothing"
    under = f"the {NAMES[scene.foot]}" if scene.foot else "nothing"
    return f"You see {lying}. You are standing on {under}. You are holding {held}."
