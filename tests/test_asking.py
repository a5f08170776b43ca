"""Programs of chance tell outcomes or draw them; what they say is checked and audited."""

from collections.abc import Iterator

import numpy as np
import pytest
from gymnasium import spaces

from candidates import LIMITS, dataset_of
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import space_of
from cwm_cli.sandbox import Sandbox
from cwm_cli.sandbox.failures import Failure
from cwm_cli.worlds import ProgramModel

LINE = dataset_of(spaces.Discrete(8), 60)
POINTS = dataset_of(spaces.Box(-1, 1, (3,)), 40)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(LIMITS) as sandbox:
        yield sandbox


def chance(
    outcomes: str = "return [(0.5, self.state, 0.0, False), (0.5, action, 1.0, True)]",
    step: str = "return self.outcomes(action)[0][1:]",
    init: str = "pass",
) -> str:
    """Write a program that tells outcomes; `outcomes` begin in line 11."""
    return f"""
import os, time, random
import numpy as np

class Environment:
    def __init__(self):
        {init}
    def set_state(self, observation):
        self.state = observation
    def outcomes(self, action):
        {outcomes}
    def step(self, action):
        {step}
"""


def drawn(step: str, init: str = "pass", top: str = "") -> str:
    """Write a program that draws."""
    return f"""{top}
import os, time, random
import numpy as np

class Environment:
    def __init__(self):
        {init}
    def set_state(self, observation):
        self.state = observation
    def step(self, action):
        {step}
"""


def judged(sandbox: Sandbox, text: str, rows: Dataset, seed: int = 0) -> Failure | None:
    """Return how a program fails, if it does, when it is asked or when it is audited."""
    model = ProgramModel(text, sandbox)
    found = model.predict(rows, seed=seed, draws=12)
    return found.failure or model.audit(rows, found, seed=seed).failure


def test_outcomes_are_told_with_probabilities_that_sum_to_one(sandbox):
    some = "return [(3, self.state, 0.0, False), (1, action, 1, True), (0, 0, 2.0, False)]"
    model = ProgramModel(chance(some), sandbox)
    found = model.predict(LINE)
    assert found.shape == "outcomes"
    assert found.probabilities.tolist() == [[0.75, 0.25, 0.0]] * 60
    rows = LINE.columns["observations"], LINE.columns["actions"], np.zeros(60)
    assert np.array_equal(found.columns["next_observations"], np.stack(rows, axis=1))
    assert found.columns["rewards"].tolist() == [[0.0, 1.0, 2.0]] * 60
    assert found.columns["terminations"].tolist() == [[False, True, False]] * 60
    assert model.audit(LINE, found).failure is None
    found.checked(LINE)
    one = sandbox.predict(model.text, LINE)
    assert np.array_equal(one.columns["next_observations"], LINE.columns["observations"])


def test_rows_with_many_outcomes_are_as_wide_as_they_have_to_be(sandbox):
    every = "return [(1, place % 8, place, False) for place in range(1 + 20 * self.state)]"
    model = ProgramModel(chance(every), sandbox)
    found = model.predict(LINE)
    seen = LINE.columns["observations"]
    assert found.probabilities.shape == (60, 1 + 20 * seen.max())
    assert np.array_equal((found.probabilities > 0).sum(axis=1), 1 + 20 * seen)
    assert found.columns["rewards"].max(axis=1).tolist() == (20.0 * seen).tolist()
    assert model.audit(LINE, found).failure is None


def test_a_program_may_tell_outcomes_and_have_no_step(sandbox):
    text = chance("yield 1, self.state, 0.0, False").replace("def step", "def other")
    assert judged(sandbox, text, POINTS) is None


def test_draws_follow_from_the_row_the_draw_and_the_seed(sandbox):
    model = ProgramModel(
        drawn("return self.state, self.rng.normal(), self.rng.random() < 0.5"), sandbox
    )
    found = model.predict(LINE, seed=1, draws=64)
    assert found.shape == "draws"
    rewards = found.columns["rewards"]
    assert rewards.shape == (60, 64)
    assert len(np.unique(rewards)) == 60 * 64
    assert abs(rewards.mean()) < 0.1 and abs(rewards.std() - 1) < 0.1
    again, few = (model.predict(LINE, seed=1, draws=draws) for draws in (64, 3))
    assert np.array_equal(again.columns["rewards"], rewards)
    assert np.array_equal(few.columns["rewards"], rewards[:, :3])
    assert not np.isin(model.predict(LINE, seed=2).columns["rewards"], rewards).any()
    assert model.audit(LINE, found, seed=1).failure is None
    assert (
        sandbox.predict(model.text, LINE, seed=1).columns["rewards"].tolist()
        == rewards[:, 0].tolist()
    )


def test_the_generator_is_there_before_an_environment_is_made(sandbox):
    text = drawn(
        "return self.state, float(self.kept is not None), False", "self.kept = self.rng.random()"
    )
    assert judged(sandbox, text, LINE) is None
    own = drawn("return self.state, self.rng.random(), False", "self.rng = np.random.default_rng()")
    assert judged(sandbox, own, LINE) is None, "it is replaced by the one that is put there"


IGNORING = {
    "a generator of its own": drawn(
        "self.rng; return self.state, self.own.random(), False",
        "self.own = np.random.default_rng(7)",
    ),
    "an unseeded one": drawn(
        "self.rng = np.random.default_rng(); return self.state, self.rng.random(), False"
    ),
    "the clock": drawn("return self.state, self.rng.random() + time.perf_counter() % 1, False"),
    "the operating system": drawn("return self.state, self.rng.random() + os.urandom(1)[0], False"),
    "what it drew before": drawn(
        "self.last = 0.9 * self.last + self.rng.normal(); return self.state, self.last, False",
        "self.last = 0.0",
    ),
    "outcomes that vary": chance(
        "p = np.random.default_rng().random(); return [(p, 0, 0.0, False), (1 - p, 1, 1.0, False)]"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IGNORING)
def test_what_is_drawn_from_anything_else_is_refused(sandbox, name):
    failure = judged(sandbox, IGNORING[name], LINE)
    assert failure.kind == "nondeterministic"
    assert "may be drawn from `self.rng`" in failure.message


def test_functions_of_random_are_seeded_for_every_draw(sandbox):
    text = drawn("return self.state, self.rng.random() + random.random() + np.random.rand(), False")
    assert judged(sandbox, text, LINE) is None


WRONG = {
    "negative": ("return [(1.5, 0, 0.0, False), (-0.5, 1, 0.0, False)]", "a probability is -0.5"),
    "not finite": ("return [(float('nan'), 0, 0.0, False)]", "a probability is nan"),
    "infinite": ("return [(float('inf'), 0, 0.0, False)]", "a probability is inf"),
    "sum to nothing": ("return [(0.0, 0, 0.0, False)]", "sum to 0"),
    "none": ("return []", "told none"),
    "too many": ("return [(1, 0, 0.0, False)] * 257", "more than 256 outcomes"),
    "endless": ("return ((1, 0, 0.0, False) for _ in iter(int, 1))", "more than 256 outcomes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_probabilities_are_a_failure_with_the_line(sandbox, name):
    body, words = WRONG[name]
    failure = judged(sandbox, chance(body), LINE)
    assert failure.kind == "wrong_probabilities"
    assert words in failure.message
    assert failure.line == 10
    assert "at line 10: def outcomes(self, action):" in failure.message
    assert "when asked for set_state(" in failure.message
    assert "and outcomes(" in failure.message


SHAPES = {
    "no list": "return 3",
    "a dict": "return {0: 1.0}",
    "one outcome": "return (1.0, 0, 0.0, False)",
    "a part too few": "return [(1.0, 0, 0.0)]",
    "a text": "return [('1', 0, 0.0, False)]",
    "an observation": "return [(1, [0, 1], 0.0, False)]",
}


@pytest.mark.parametrize("name", SHAPES)
def test_outcomes_of_another_form_are_a_failure_with_the_line(sandbox, name):
    failure = judged(sandbox, chance(SHAPES[name]), LINE)
    assert (failure.kind, failure.line) == ("wrong_output", 10)


def test_a_step_that_is_none_of_the_outcomes_contradicts_them(sandbox):
    failure = judged(sandbox, chance(step="return self.state, 0.5, False"), LINE)
    assert failure.kind == "contradiction"
    assert "which is none of the outcomes told" in failure.message
    assert failure.line == 10
    moving = "self.state = (self.state + 1) % 8; return [(1, self.state, 0.0, False)]"
    moves = chance(moving, "return (self.state + 1) % 8, 0.0, False")
    assert judged(sandbox, moves, LINE).kind == "contradiction"
    at_the_end = chance("return [(1, 0, 1.0, True)]", "return 5, 1.0, True")
    assert judged(sandbox, at_the_end, LINE) is None, "after the end nothing is observed"


def test_steps_that_are_drawn_otherwise_than_told_contradict_the_outcomes(sandbox):
    many = dataset_of(spaces.Discrete(8), 400)
    slips = "return [(1, (self.state + d) % 8, 0.0, False) for d in (0, 1, 7)]"
    draws = "return (self.state + [0, 1, 7][self.rng.integers(3)]) % 8, 0.0, False"
    assert judged(sandbox, chance(slips, draws), many) is None
    never = draws.replace("integers(3)", "integers(2)")
    failure = judged(sandbox, chance(slips, never), many)
    assert failure.kind == "contradiction"
    assert "led to outcome" in failure.message
    certain = draws.replace("self.rng.integers(3)", "0")
    assert judged(sandbox, chance(slips, certain), many) is None, "a certain step is one of them"


def test_a_method_that_is_missing_is_a_failure_with_the_line(sandbox):
    lacking = chance().replace("def set_state", "def reset")
    failure = judged(sandbox, lacking, LINE)
    assert (failure.kind, failure.line) == ("wrong_contract", 8)
    assert "no method set_state, and with reset it would take correct" in failure.message


def counting(episodes: int = 6, length: int = 12) -> Dataset:
    """Record a place that moves by a speed that nobody sees, which is another in each episode."""
    rows, rng = [], np.random.default_rng(0)
    for episode in range(episodes):
        speed, place = episode + 1, float(rng.integers(50))
        for step in range(length + episode % 3):
            action = int(rng.integers(2))
            after = place + speed * (1 if action else -1)
            end = step == length + episode % 3 - 1
            rows.append(
                Transition(
                    np.array([place]),
                    action,
                    np.array([after]),
                    after - place,
                    end,
                    episode=episode,
                )
            )
            place = after
    box = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    return Dataset.of(
        rows, observation_space=space_of(box), action_space=space_of(spaces.Discrete(2))
    )


HIDDEN = counting()

MEMORY = """
class Environment:
    def reset(self, observation):
        self.place, self.speed = observation, 0.0
    def step(self, action):
        self.before, self.moved = self.place, 1 if action else -1
        reward = float(self.speed * self.moved)
        self.place = self.place + reward
        return self.place, reward, False
    def correct(self, observation, reward):
        self.speed = (observation - self.before)[0] * self.moved
        self.place = observation
"""
"""Learns the speed from the first step that it sees."""


def test_a_program_with_memory_predicts_along_episodes_and_is_then_corrected(sandbox):
    model = ProgramModel(MEMORY, sandbox)
    found = model.predict(HIDDEN)
    assert found.failure is None
    assert found.shape == "certain"
    right = (found.columns["next_observations"] == HIDDEN.columns["next_observations"])[:, 0]
    first = np.diff(HIDDEN.columns["episodes"], prepend=-1) > 0
    assert np.array_equal(right, ~first)
    assert model.audit(HIDDEN, found).failure is None
    found.checked(HIDDEN)
