"""Mismatches between predictions and the outcomes of plans."""

import json
from contextlib import closing

import numpy as np
import pytest

import cwm_cli
from cwm_cli.commands.episodes import play
from cwm_cli.commands.plays import mismatches_of, wrong_rows
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_cli.envs.tasks import Setting
from cwm_cli.errors import CwmError
from cwm_cli.evaluation.mismatches import Comparing, Mismatches, wrong_parts
from cwm_cli.registry import environment
from cwm_cli.runs.listing import load
from cwm_cli.views.planning import plan_report
from cwm_cli.worlds import ProgramModel
from cwm_cli.worlds.model import Predictions, WorldModel
from worlds import CARTPOLE, ICE

PLACES = Space("discrete", low=(0,), high=(5,))
MOVES = Space("discrete", low=(0,), high=(1,))
NARROW = CARTPOLE.replace("abs(x) > 2.4", "abs(x) > 0.03")

RING = """
class Environment:
    def set_state(self, observation):
        self.place = int(observation)

    def step(self, action):
        return (self.place + 1) % 6, 0.0, False
"""

DRAWING = "import random\n" + RING.replace("+ 1", "+ random.choice([1, 2])")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def step(place: int, following: int, reward: float = 0.0, end: bool = False) -> Transition:
    return Transition(place, 0, following, reward, end)


def test_wrong_steps_are_counted_by_part(sandbox) -> None:
    steps = [step(0, 1), step(1, 3), step(2, 3, 1.0), step(3, 9 % 6, 0.0, True), step(4, 4, 2.0)]
    comparing = Comparing(ProgramModel(RING, sandbox), PLACES, MOVES)
    found = comparing.compare(comparing.rows(steps))
    counts = {"steps": 5, "wrong": 4, "observation": 2, "reward": 2, "terminated": 1}
    assert found == Mismatches(**counts, uninformative=4)
    assert found.kinds == {"observation": 2, "reward": 2, "terminated": 1}
    assert found.plus(found).mistakes == 8


def test_random_outcomes_are_not_mistakes(sandbox) -> None:
    twice = [step(0, 1), step(0, 2), step(3, 5)]
    plain = Comparing(ProgramModel(RING, sandbox), PLACES, MOVES)
    known = plain.rows([step(3, 4)])
    told = [
        Comparing(ProgramModel(text, sandbox), PLACES, MOVES, rows).compare(plain.rows(twice))
        for text, rows in ((RING, None), (RING, known), (DRAWING, None))
    ]
    assert [(each.wrong, each.chance, each.mistakes) for each in told[:2]] == [(2, 1, 1), (2, 2, 0)]
    assert (told[2].drawn, told[2].mistakes) == (told[2].wrong, 0)


def test_batch_of_episodes_gives_the_same_counts_as_single_ones(sandbox) -> None:
    fails = RING.replace("        return", "        1 / (self.place - 5)\n        return")
    comparing = Comparing(ProgramModel(fails, sandbox), PLACES, MOVES)
    played = [[step(0, 1), step(1, 3)], [step(5, 0)], [step(2, 3)]]
    every = [comparing.rows(steps) for steps in played]
    found = comparing.compare_all(every)
    assert found == [comparing.compare(rows) for rows in every]
    assert [each.unanswered for each in found] == [0, 1, 0]


def test_steps_of_a_failing_program_are_unanswered(sandbox) -> None:
    broken = Comparing(ProgramModel("1 / 0", sandbox), PLACES, MOVES)
    assert broken.compare(broken.rows([step(0, 1), step(1, 2)])) == Mismatches(unanswered=2)


def test_answer_with_the_fewest_wrong_parts_counts() -> None:
    rows = Dataset.of([step(0, 2), step(0, 3)], observation_space=PLACES, action_space=MOVES)
    ends = np.zeros((2, 2), bool)
    answers = {
        "next_observations": np.array([[1, 2], [1, 3]]),
        "rewards": np.zeros((2, 2)),
        "terminations": ends,
    }
    chances = np.array([[0.5, 0.5], [1.0, 0.0]])  # outcomes with probability 0 were not predicted
    found = wrong_parts(Predictions(answers, None, "outcomes", chances), rows)
    assert found["observation"].tolist() == [False, True]
    assert not found["reward"].any()


STILL = """
class Environment:
    def set_state(self, observation):
        self.state = observation

    def step(self, action):
        return list(self.state), 1.0, False
"""
AGAINST = CARTPOLE.replace("10.0 if action == 1 else -10.0", "-10.0 if action == 1 else 10.0")
HEAVY = CARTPOLE.replace("9.8", "12.0")
GUESSING = "import random\n" + STILL.replace(
    "list(self.state)", "[value + random.gauss(0, 0.01) for value in self.state]"
)
SLIPPING = """
import random

class Environment:
    def set_state(self, observation):
        self.cell = int(observation)

    def step(self, action):
        row, column = divmod(self.cell, 4)
        move = (int(action) + random.choice([-1, 0, 1])) % 4
        row, column = row + (move == 1) - (move == 3), column + (move == 2) - (move == 0)
        cell = 4 * min(max(row, 0), 3) + min(max(column, 0), 3)
        return cell, float(cell == 15), cell in (5, 7, 11, 12, 15)
"""

NOISE = {"noise": {"observation": 1.0}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "env", "env_args", "refuted"),
    [
        (STILL, "CartPole-v1", {}, True),
        (AGAINST, "CartPole-v1", {}, True),
        (GUESSING, "CartPole-v1", {}, True),
        ("1 / 0", "CartPole-v1", {}, True),
        (CARTPOLE, "CartPole-v1", {}, False),
        (HEAVY, "CartPole-v1", {}, False),
        (CARTPOLE, "CartPole-v1", NOISE, False),
        (SLIPPING, "FrozenLake-v1", {}, False),
        (ICE, "FrozenLake-v1", {}, False),
    ],
    ids=[
        "nothing changes",
        "wrong direction",
        "draws that cannot be",
        "fails",
        "right",
        "wrong constant",
        "right but for noise",
        "right draws",
        "right probabilities",
    ],
)
def test_program_is_refuted_if_most_predictions_are_little_better_than_a_guess(
    sandbox, text, env, env_args, refuted
) -> None:
    task = Setting(env, env_args, 3, 100).task(environment(env))
    with closing(task.make()) as made:
        spaces = space_of(made.observation_space), space_of(made.action_space, "actions")
    comparing = Comparing(ProgramModel(text, sandbox), *spaces, noisy="noise" in env_args)
    found = Mismatches()
    for progress in play(task, range(8), comparing=comparing):
        for finished in progress.finished:
            found = found.plus(finished.episode.mismatches or Mismatches())
    assert found.steps + found.unanswered > 50
    assert found.refutes is refuted


def test_few_steps_refute_no_program() -> None:
    assert not Mismatches(steps=9, wrong=9, uninformative=9).refutes
    assert Mismatches(steps=10, wrong=10, uninformative=6).refutes
    assert not Mismatches(steps=10, wrong=10, uninformative=5).refutes


@pytest.mark.slow
def test_plan_with_failing_predictions_is_refuted_whatever_its_return(here) -> None:
    how = {"options": ["simulations=4", "rollout=5"], "episodes": 2, "max_steps": 9}
    result = cwm_cli.plan(env="CartPole-v1", program=STILL, **how)
    assert result.returns == [9.0, 9.0]
    assert result.as_json()["refuted"] is True
    [line] = [str(part) for part in plan_report(result) if str(part).startswith("Refuted")]
    assert line == (
        "Refuted: predictions of 18 of 18 played steps are little better than a guess, so the "
        "return is not evidence for the program."
    )
    right = cwm_cli.plan(env="CartPole-v1", program=CARTPOLE, **how)
    assert right.as_json()["refuted"] is False
    assert not [part for part in plan_report(right) if str(part).startswith("Refuted")]


AHEAD = """
import sys
import numpy as np

def rows():
    frame = sys._getframe()
    while frame is not None:
        handler = frame.f_locals.get("self")
        if type(handler).__name__ == "PredictionHandler":
            return np.array(handler.job.observations[0])
        frame = frame.f_back
    return np.empty((0, 4))

class Environment:
    def set_state(self, observation):
        self.here = np.array(observation, dtype=float)

    def step(self, action):
        x, v, angle, turn = self.here
        right = int(angle + turn + 0.05 * x + 0.15 * v > 0)
        later = rows()
        if len(later) > 3 and len(np.unique(later, axis=0)) > 0.9 * len(later):
            place, tilt = x + 0.02 * v, angle + 0.02 * turn
            speeds, turns = (later[:, 0] - place) / 0.02, (later[:, 2] - tilt) / 0.02
            push = 1 if int(action) else -1
            off = np.abs(speeds - v - 0.195 * push) + 0.3 * np.abs(turns - turn + 0.29 * push)
            best = off.argmin()
            if off[best] < 0.2:
                return np.array([place, speeds[best], tilt, turns[best]]), 1.0, False
        return self.here, 1.0 if int(action) == right else -9.0, False
"""
"""Encodes a policy without dynamics; predicts played steps from the rows two steps ahead."""

WIDE = """
import numpy as np

class Environment:
    def set_state(self, observation):
        self.here = np.array(observation, dtype=float)

    def step(self, action):
        x, v, angle, turn = self.here
        right = int(angle + 0.5 * turn + 0.01 * x + 0.05 * v > 0)
        self.here = self.here + self.rng.normal(size=4) * np.array([0.2, 2.0, 0.2, 3.0])
        return self.here, 1.0 if int(action) == right else -9.0, False
"""
"""Encodes a policy without dynamics; draws so widely that no outcome is beyond its draws."""


@pytest.mark.slow
@pytest.mark.parametrize("text", [AHEAD, WIDE], ids=["looks ahead", "draws widely"])
def test_program_that_encodes_a_policy_in_its_rewards_is_refuted(here, text: str) -> None:
    how = {"options": ["simulations=8", "rollout=5"], "episodes": 2, "max_steps": 20}
    assert cwm_cli.plan(env="CartPole-v1", program=text, **how).refuted


@pytest.mark.slow
def test_plan_reports_wrong_predictions_and_the_next_command(cwm) -> None:
    (cwm.folder / "narrow.py").write_text(NARROW)
    arguments = ("--env", "CartPole-v1", "--program", "narrow.py", "--max-steps", "30")
    quick = ("-o", "simulations=5", "-o", "mcts.rollout=5", "--episodes", "1")
    done = cwm.inside("plan", *arguments, *quick)
    lines = done.stdout.splitlines()
    [line] = [line for line in lines if line.startswith("Correct predictions")]
    assert "wrong: terminated " in line
    [folder] = (cwm.folder / "runs/plans").iterdir()
    place = folder.relative_to(cwm.folder)
    assert lines[-1] == f"Next:    cwm learn --env CartPole-v1 --from {place}"
    kept = [json.loads(line) for line in (folder / "journal.jsonl").open()]
    [found] = [line["episode"]["mismatches"] for line in kept if line["side"] == "model"]
    assert found["wrong"] == found["terminated"] > found["observation"] == found["reward"] == 0
    rows = wrong_rows(folder)
    assert (len(rows), rows.metadata["env"]) == (found["steps"], "CartPole-v1")


@pytest.mark.slow
def test_exact_program_gets_no_suggestion_to_learn(here) -> None:
    how = {"options": ["simulations=4", "rollout=5"], "episodes": 1, "max_steps": 9}
    result = cwm_cli.plan(env="CartPole-v1", program=CARTPOLE, **how)
    assert result.mismatches == Mismatches(steps=sum(result.lengths))
    assert result.as_json()["mismatches"] == result.mismatches.model_dump()
    assert wrong_rows(result.journal.parent) is None
    with pytest.raises(CwmError, match="has no wrong predictions"):
        cwm_cli.learn("CartPole-v1", start=result.journal.parent, steps=1)
    assert mismatches_of(here) == Mismatches()
    oracle = cwm_cli.plan(env="CartPole-v1", real_env=True, **how)
    assert oracle.mismatches is None


@pytest.mark.slow
def test_learning_continues_from_the_steps_of_a_plan(here) -> None:
    how = {"env_args": {"is_slippery": False}, "episodes": 1, "max_steps": 5}
    still = RING.replace("(self.place + 1) % 6", "self.place")
    played = cwm_cli.plan(env="FrozenLake-v1", program=still, **how)
    begun = cwm_cli.learn("FrozenLake-v1", start=played.journal.parent, steps=1)
    rows = load(begun.run).dataset()
    assert played.mismatches.wrong > 0
    assert len(rows) == played.mismatches.steps + 1


@pytest.mark.long
def test_search_with_a_wrong_program_suggests_the_next_command(cwm) -> None:
    done = cwm("synthesize", "--env", "Blackjack-v1", "--budget", "1", "--run", "cards")
    words = (
        "learn   cwm learn --env Blackjack-v1 --from cards (it predicts wrongly of held-out rows)"
    )
    assert done.stdout.splitlines()[-1] == words, done.stderr


class Drawing(WorldModel):
    """Draws every recorded outcome eight times."""

    kind = "drawing"

    def predict(self, rows, *, seed=0, draws=1):
        outcomes = rows.select("next_observations", "rewards", "terminations")
        columns = {name: np.stack([column] * 8, axis=1) for name, column in outcomes.items()}
        return Predictions(columns, shape="draws")


def test_draws_without_a_wrong_step_have_no_mismatches() -> None:
    comparing = Comparing(Drawing(), PLACES, MOVES)
    assert comparing.compare(comparing.rows([step(0, 1), step(1, 2)])) == Mismatches(steps=2)
