"""Programs for the rows of an agent: they replay every row, and count table lookups."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_cli.registry import default, find
from cwm_cli.search.contracts import Backend, Strategy
from cwm_learn.writing import (
    EXCEPTIONS,
    KEPT,
    MODEL,
    BudgetedModel,
    ProgramWriter,
    with_exceptions,
)
from cwm_litellm.backend import LiteLLM
from openai_server import OpenAIServer, answer


def random_rows(env, count, seed=0):
    """Return the rows of random steps."""
    env.action_space.seed(seed)
    rows, episode = [], 0
    observation, _ = env.reset(seed=seed)
    while len(rows) < count:
        action = env.action_space.sample()
        after, reward, terminated, truncated, _ = env.step(action)
        rows.append(
            Transition(observation, action, after, float(reward), terminated, truncated, episode)
        )
        observation = after
        if terminated or truncated:
            episode += 1
            observation, _ = env.reset()
    return Dataset.of(
        rows,
        observation_space=space_of(env.observation_space),
        action_space=space_of(env.action_space, "actions"),
    )


def test_program_is_kept_while_it_replays_every_row(sandbox):
    rows, writer = random_rows(gym.make("CartPole-v1"), 120), ProgramWriter(sandbox)
    early = writer.write(rows[np.arange(len(rows)) < 60])
    assert not early.wrong.any() and not early.unexplained.any()
    later = writer.write(rows, [early.program])
    assert later.origin == KEPT and later.program == early.program
    ended = rows.columns | {"terminations": rows.columns["terminations"].copy()}
    ended["terminations"][:] = np.abs(rows.columns["next_observations"][:, 0]) > 0.05
    other = writer.write(replace(rows, columns=ended), [early.program])
    assert other.origin != KEPT and not other.wrong.any()


def test_no_source_starts_when_no_time_is_left(sandbox):
    rows = random_rows(gym.make("CartPole-v1"), 60)
    model = BudgetedModel(Backend(), Strategy, seconds_left=lambda: 0.0)
    writer = ProgramWriter(sandbox, model=model, seconds_left=lambda: 0.0)
    first = writer.write(rows)
    still = f"{first.program}\n\nclass Environment(Environment):\n    pass\n"
    wrong = replace(rows, columns=rows.columns | {"rewards": rows.columns["rewards"] + 1})
    assert writer.write(wrong, [still]).origin == KEPT
    assert writer.rival(rows, first.program) is None
    assert not model.left


def test_unexplained_rows_are_looked_up_and_counted(sandbox):
    env = gym.make("FrozenLake-v1", is_slippery=False)
    rows = random_rows(env, 600)
    rows.columns["rewards"][:] = np.random.default_rng(0).normal(size=600)
    _, alone = np.unique(rows.situations(), return_index=True)
    rows = rows[np.sort(alone)]
    written = ProgramWriter(sandbox).write(rows)
    assert not written.wrong.any() and written.unexplained.any()
    assert EXCEPTIONS in written.program and EXCEPTIONS not in written.rules
    wrong = ProgramWriter(sandbox).wrong(written.rules, rows)
    assert (wrong == written.unexplained).all()


NESTED = gym.spaces.Dict(
    {
        "mission": gym.spaces.Text(10),
        "board": gym.spaces.Box(0, 9, (2, 2), np.int64),
        "place": gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.Box(-1e9, 1e9, (2,))]),
    }
)

STILL = """
class Environment:
    def set_state(self, observation):
        self.observation = observation

    def step(self, action):
        return self.observation, 0.0, False
"""


def test_lookup_works_for_nested_observations(sandbox):
    def observed(number):
        board, reals = np.full((2, 2), number), np.array([0.1 * number, -1e9], np.float32)
        return {"mission": f"go {number}", "board": board, "place": (number, reals)}

    rows = [
        Transition(observed(n), np.array([n, 1]), observed((n + k) % 3), 0.5 * k, k == 1, False, n)
        for n, k in ((0, 1), (1, 0), (2, 2))
    ]
    data = Dataset.of(
        rows,
        observation_space=space_of(NESTED),
        action_space=Space("multidiscrete", "int64", (2,), (0, 0), (3, 3)),
    )
    writer = ProgramWriter(sandbox)
    assert writer.wrong(STILL, data).tolist() == [True, False, True]
    text = with_exceptions(STILL, data[writer.wrong(STILL, data)])
    assert not writer.wrong(text, data).any()
    assert "2 recorded transitions" in text


def test_real_valued_rows_are_not_looked_up(sandbox):
    rows = random_rows(gym.make("MountainCar-v0"), 60)
    rows.columns["next_observations"][7] += 0.01
    written = ProgramWriter(sandbox).write(rows)
    assert np.flatnonzero(written.unexplained).tolist() == [7]
    assert written.program == written.rules and written.wrong.any()


def test_contradicting_rows_are_reported_as_wrong(sandbox):
    rows = random_rows(gym.make("CliffWalking-v1"), 12)
    twice = rows.concatenate(rows)
    twice.columns["rewards"][12] = 5.0
    written = ProgramWriter(sandbox).write(twice)
    assert written.wrong.any()
    assert set(np.flatnonzero(written.wrong)) <= {0, 12}


FOLDS = """
import numpy as np


class Environment:
    def set_state(self, observation):
        self.x = float(observation[0])

    def step(self, action):
        self.x = (13.7 * self.x**2 + 3.1 * np.exp(self.x * action)) % 1.0
        return np.array([self.x]), 0.0, False
"""


def folded_rows(count):
    """Return rows of an environment with a law that induction does not search for."""
    rng, rows = np.random.default_rng(0), []
    space, names = gym.spaces.Box(0, 1, (1,), np.float64), {}
    exec(FOLDS, names)
    program = names["Environment"]()
    for observation in rng.random((count, 1)):
        action = int(rng.integers(3))
        program.set_state(observation)
        rows.append(Transition(observation, action, *program.step(action)))
    return Dataset.of(
        rows,
        observation_space=space_of(space),
        action_space=space_of(gym.spaces.Discrete(3), "actions"),
    )


@pytest.mark.slow
def test_language_model_explains_rows_within_its_budget(sandbox, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    rows = folded_rows(60)
    with OpenAIServer([answer(f"```python\n{FOLDS}```")]) as server:
        backend = LiteLLM("openai/gpt-4o-mini", api_base=server.url)
        model = BudgetedModel(backend, find("strategy", default("strategy")), completions=1)
        writer = ProgramWriter(sandbox, seconds=0.3, model=model)
        assert writer.write(rows, [FOLDS]).origin == KEPT and not server.requests
        written = writer.write(rows)
        assert written.origin == MODEL and not written.wrong.any() and not written.unexplained.any()
        assert model.used == 1 and written.usage.tokens and model.spent > 0
        assert "This program predicts 0 %" in server.requests[0].prompt
        assert not model.left
