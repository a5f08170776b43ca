"""Actions with several parts, planned in programs and in the environment itself."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from cwm_cli.commands.episodes import play
from cwm_cli.envs.spec import EnvironmentSpec, space_of
from cwm_cli.envs.tasks import Task
from cwm_cli.planning import PLANNERS, Decider, Moment, automatic, find_planner
from cwm_cli.planning.encoding import find_unplannable, list_encodings
from cwm_cli.planning.model import Counter, Model, Step
from cwm_cli.sandbox import Sandbox
from cwm_cli.worlds.environment import EnvironmentModel
from cwm_cli.worlds.model import PlannedWith, Planning, WorldModel
from cwm_cli.worlds.program import ProgramModel

KNOWN = {name: find_planner(name) for name in PLANNERS}
COUNTED: dict[str, tuple[gym.Space, str]] = {
    "multidiscrete": (spaces.MultiDiscrete([3, 3]), "action - 1"),
    "multibinary": (spaces.MultiBinary((2, 2)), "action[0] - action[1]"),
    "tuple": (
        spaces.Tuple([spaces.Discrete(3, start=-1), spaces.MultiBinary(2)]),
        "np.array([action[0], action[1][0] - action[1][1]])",
    ),
    "dict": (
        spaces.Dict({"up": spaces.Discrete(3), "more": spaces.Tuple([spaces.Discrete(3)])}),
        "np.array([action['up'] - 1, action['more'][0] - 1])",
    ),
    "whole box": (spaces.Box(-1, 1, (2,), np.int8), "action.astype(int)"),
}
MIXED = spaces.Dict(
    {"force": spaces.Box(-1, 1, (1,), np.float32), "gear": spaces.Discrete(3, start=1)}
)
WIDE = spaces.Tuple([spaces.MultiDiscrete([9, 41]), spaces.Box(0, 20, (2,), np.int64)])


class Dials(gym.Env):
    """Two dials are turned to 0. The return is the negative number of steps."""

    observation_space = spaces.MultiDiscrete([5, 5])

    def __init__(self, actions: gym.Space, turn: str) -> None:
        self.action_space, self._turn = actions, turn

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.dials = self.np_random.integers(2, 5, 2)
        return self.dials.copy(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        turn = eval(self._turn, {"np": np, "action": action})
        self.dials = np.clip(self.dials + turn, 0, 4)
        return self.dials.copy(), -1.0, not self.dials.any(), False, {}


DIALS = """
import numpy as np

class Environment:
    def {set_state}(self, observation):
        self.dials = np.array(observation)
    def step(self, action):
        turn = {turn}
        self.dials = np.clip(self.dials + turn, 0, 4)
        return self.dials.copy(), -1.0, bool(not self.dials.any())
"""


class Rover(gym.Env):
    """A rover returns to 0; the third gear is the strongest one."""

    observation_space = spaces.Box(-20, 20, (2,), np.float64)
    action_space = MIXED

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.state = np.array([4.0, 0.0])
        return self.state.copy(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert MIXED.contains(action), action
        place, speed = self.state
        speed = 0.5 * speed + [0.1, 0.2, 1.0][action["gear"] - 1] * float(action["force"][0])
        self.state = np.array([place + speed, speed])
        return self.state.copy(), -abs(place + speed), False, False, {}


ROVER = """
import numpy as np

class Environment:
    def set_state(self, observation):
        self.place, self.speed = observation
    def step(self, action):
        gear = action["gear"]
        power = 0.1 if gear == 1 else 0.2 if gear == 2 else 1.0
        self.speed = 0.5 * self.speed + power * action["force"][0]
        self.place = self.place + self.speed
        return np.array([self.place, self.speed]), -abs(self.place), False
"""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(workers=6) as opened:  # for plans, for their repetition, and for predictions
        yield opened


def planned_return(
    model: WorldModel, make: Callable[[], gym.Env], limit: int = 12, planner: str = ""
) -> tuple[float, float, PlannedWith]:
    """Return the return of a planned and of a random episode, and the planner."""
    task, env = Task(make, seed=1, limit=limit), make()
    seen, actions = space_of(env.observation_space), space_of(env.action_space, "actions")
    names = [planner] if planner else automatic(KNOWN, seen, actions)
    options = {"budget": 300} if planner == "icem" else {}
    with model.open([Planning(name, options) for name in names], task) as session:
        planned = [each for progress in play(task, [0], session) for each in progress.finished]
        assert session.report is not None
    chance = [each for progress in play(task, [0]) for each in progress.finished]
    return planned[0].episode.returned, chance[0].episode.returned, session.report


def in_environment(make: Callable[[], gym.Env]) -> EnvironmentModel:
    return EnvironmentModel(EnvironmentSpec("Own-v0", make, lambda made: "", dict))


@pytest.mark.parametrize(
    "space", [*(space for space, _ in COUNTED.values()), MIXED, WIDE], ids=repr
)
def test_encoded_actions_are_in_their_space(space: gym.Space) -> None:
    described, rng = space_of(space, "actions"), np.random.default_rng(0)
    for encoding in list_encodings(described):
        if encoding.space.kind == "discrete":
            codes = np.arange(encoding.space.count)
            assert len({repr(encoding.decode(code)) for code in codes}) == described.cardinality
        else:
            codes = rng.uniform(encoding.space.low, encoding.space.high, (500, encoding.space.size))
        actions = [encoding.decode(code) for code in codes]
        assert all(space.contains(described.cast(action)) for action in actions)
        packed = described.flatten("actions", described.pack("actions", actions))
        np.testing.assert_array_equal(packed, encoding.arrays(codes))
        for component, low, high in zip(
            packed.reshape(len(packed), -1).T,
            *(
                sum((getattr(leaf.space, end) for leaf in described.leaves("")), ())
                for end in ("low", "high")
            ),
            strict=True,
        ):
            assert np.ptp(component) >= 0.9 * (high - low)  # every part of the range is reached


@pytest.mark.slow
@pytest.mark.parametrize("kind", COUNTED)
def test_countable_actions_are_planned_optimally(sandbox: Sandbox, kind: str) -> None:
    space, turn = COUNTED[kind]
    program = ProgramModel(DIALS.format(set_state="set_state", turn=turn), sandbox, share=1)
    make = partial(Dials, space, turn)
    for model in (program, in_environment(make)):
        planned, chance, report = planned_return(model, make)
        # Each dial starts between 2 and 4, and turns by 1 per step.
        assert -4 <= planned <= -2 and planned > chance and report.planner == "tabular"


@pytest.mark.slow
def test_programs_with_memory_or_chance_receive_actions_with_parts(sandbox: Sandbox) -> None:
    space, turn = COUNTED["dict"]
    memory = DIALS.format(set_state="reset", turn=turn)
    memory += (
        "    def correct(self, observation, reward):\n        self.dials = observation.copy()\n"
    )
    chance = DIALS.format(set_state="set_state", turn=f"({turn}) * int(self.rng.random() < 0.9)")
    for text, name in ((chance, "tabular"), (memory, "icem")):
        model = ProgramModel(text, sandbox, share=1)
        planned, _, report = planned_return(model, partial(Dials, space, turn), planner=name)
        assert planned >= -6 and report.planner == name


@pytest.mark.slow
def test_mixed_actions_are_planned_with_samples(sandbox: Sandbox) -> None:
    program = ProgramModel(ROVER, sandbox, share=1)
    for model in (program, in_environment(Rover)):
        planned, chance, report = planned_return(model, Rover, limit=10)
        assert planned > -10 > chance and report.planner == "icem"
        assert model is not program or "batched" in report.forms


class Knobs(Model):
    """Four knobs, each turned by a part of the action; the rewards are best at 0."""

    deterministic = True

    def __init__(self) -> None:
        self.action_space = space_of(WIDE, "actions")
        self.counter: Counter = [0]

    def stand(self, state: Any) -> None:
        self.state = np.array(state, float)

    def here(self) -> Any:
        return self.state.copy()

    def step(self, action: Any) -> Step:
        self.counter[0] += 1
        self.state = self.state + np.concatenate(action) - [4, 20, 10, 10]
        return Step(self.here(), -float(np.abs(self.state).sum()), False)


def test_many_whole_numbers_are_planned_with_samples() -> None:
    model, state = Knobs(), np.array([3.0, 15.0, -8.0, 8.0])
    decider, returned = Decider([KNOWN["icem"]()], model, seed=0), 0.0
    for number in range(8):
        [[action]] = decider.plan([Moment(0, number, state, 8 - number)])
        assert WIDE.contains(action)
        model.stand(state)
        step = model.step(action)
        state, returned = step.observation, returned + step.reward
    assert returned > -60  # the sum of the distances is 34 at the start, and rises at random


def test_texts_and_unbounded_parts_are_named() -> None:
    endless = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-np.inf, 1)})
    words = spaces.Tuple([spaces.Text(3), spaces.Discrete(2)])
    for space, part in ((endless, "actions.b"), (words, "actions.0")):
        found = find_unplannable(space_of(space))
        assert found is not None and found.name == part
        assert list_encodings(space_of(space)) == ()
        assert automatic(KNOWN, space_of(spaces.Discrete(3)), space_of(space)) == []
