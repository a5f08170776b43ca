"""The stochastic actor: probabilities from program and rows, and plans for the mean return."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import cwm_cli as cwm
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.sandbox import Sandbox
from cwm_cli.worlds import Predictions, ProgramModel
from cwm_learn.actors.base import Knowledge
from cwm_learn.actors.stochastic import StochasticActor
from cwm_learn.certificate import EpisodeRecord, Verification
from cwm_learn.imagination import SearchImagination
from cwm_learn.writing import mispredicted

PLACES = Space("discrete", low=(0,), high=(3,))
ACTIONS = Space("discrete", low=(0,), high=(1,))

WALK = """
class Environment:
    def set_state(self, observation):
        self.place = observation

    def outcomes(self, action):
        if action == 0:
            return [(1.0, self.place, 0.0, False)]
        on = self.place + 1
        return [(0.5, on, float(on == 3), on == 3), (0.5, 0, -0.1, True)]
"""
"""Action 0 stays and earns nothing; action 1 approaches the reward at place 3, or loses 0.1."""


@pytest.fixture
def walker(sandbox: Sandbox) -> Iterator[StochasticActor]:
    """An actor for the program, with one recorded step, which stays."""
    rows = [Transition(0, 0, 0, 0.0, terminated=False)]
    seen = Dataset.of(rows, observation_space=PLACES, action_space=ACTIONS)
    known = Knowledge(PLACES, ACTIONS, limit=10, rows=rows, starts=[0], program=WALK)
    with SearchImagination(sandbox, WALK, seen) as imagination:
        known.imagination = imagination
        actor = StochasticActor(known)
        actor.rebuild()
        yield actor


def value_of_moving(chance: float, place: int) -> float:
    """Return the value of action 1 at a place if it succeeds with some probability."""
    if place == 3:
        return 0.0
    return chance * (float(place == 2) + value_of_moving(chance, place + 1)) - 0.1 * (1 - chance)


PRESS = """
class Environment:
    def set_state(self, observation):
        self.wear = observation

    def outcomes(self, action):
        if action == 0:
            return [(1.0, max(self.wear - 1, 0), 0.0, False)]
        worn = min(self.wear + 1, 3)
        ended = worn == 3
        pay = 3.0 - 15.0 * ended
        return [(0.5, self.wear, 3.0, False), (0.5, worn, pay, ended)]
"""
"""Action 1 earns 3 and may wear the press, action 0 repairs it; the third wear breaks it."""


def test_actor_exploits_if_usual_reward_cannot_be_kept(sandbox: Sandbox) -> None:
    rows = [Transition(wear, 1, wear + 1, 3.0, terminated=False) for wear in (0, 1)]
    rows.append(Transition(2, 1, 3, -12.0, terminated=True))
    rows += [Transition(wear, 0, max(wear - 1, 0), 0.0, False, episode=1) for wear in (2, 1)]
    seen = Dataset.of(rows, observation_space=PLACES, action_space=ACTIONS)
    known = Knowledge(PLACES, ACTIONS, limit=20, rows=rows, starts=[0], program=PRESS)
    with SearchImagination(sandbox, PRESS, seen) as imagination:
        known.imagination = imagination
        actor = StochasticActor(known)
        actor.rebuild()
        intent = actor.choose(0, 20)
    assert intent is not None
    assert intent.aim == "exploit"
    assert intent.promised_return is not None
    assert 25 < intent.promised_return < 20 * 3


def test_play_maximises_mean_return(walker: StochasticActor) -> None:
    assert walker.promised_return(1, 10) == pytest.approx(value_of_moving(0.5, 1), abs=1e-5)
    found = walker.choose(1, 10, "exploit")
    assert found is not None
    assert found.action == 1
    assert found.promised_return == pytest.approx(value_of_moving(0.5, 1), abs=1e-5)


def test_row_counts_update_probabilities_of_program(walker: StochasticActor) -> None:
    before = walker.promised_return(2, 10)
    for _ in range(300):
        walker.known.rows.append(Transition(2, 1, 0, -0.1, terminated=True))
        walker.observe(walker.known.rows[-1])
    after = walker.promised_return(2, 10)
    assert before == pytest.approx(0.45, abs=1e-5)
    assert after == pytest.approx(0.0, abs=1e-3)  # to stay is better now


def test_actor_explores_until_all_transitions_are_recorded(walker: StochasticActor) -> None:
    found = walker.choose(0, 10, "explore")
    assert found is not None
    assert (found.action, found.aim) == (1, "explore")
    assert not walker.is_settled
    for place in range(4):
        for action in (0, 1):
            row = Transition(place, action, min(place + action, 3), 0.0, terminated=place == 3)
            walker.known.rows.append(row)
            walker.observe(row)
    assert walker.is_settled


def test_any_possible_outcome_matches(walker: StochasticActor) -> None:
    predicted = walker.predict(2, 1)
    assert predicted is not None
    lost, impossible_row = (Transition(2, 1, 0, reward, terminated=True) for reward in (-0.1, 5.0))
    assert walker.matches(predicted, lost)
    assert walker.matches(predicted, Transition(2, 1, 3, 1.0, terminated=True))
    assert not walker.matches(predicted, impossible_row)


def test_mispredicted_marks_rows_without_predicted_outcome(sandbox: Sandbox) -> None:
    rows = [
        Transition(2, 1, 3, 1.0, terminated=True),
        Transition(2, 1, 0, 0.5, terminated=True),
        Transition(1, 1, 2, 0.0, terminated=False),
    ]
    data = Dataset.of(rows, observation_space=PLACES, action_space=ACTIONS)
    predictions = ProgramModel(WALK, sandbox).predict(data)
    assert predictions.shape == "outcomes"
    assert mispredicted(predictions, data).tolist() == [False, True, False]
    certain = Predictions(predictions.likeliest())
    assert mispredicted(certain, data).any()


def test_verification_compares_mean_return_with_promise() -> None:
    def verification(returns: list[float], *, chance: bool) -> Verification:
        result = Verification()
        for number, returned in enumerate(returns):
            played = EpisodeRecord(
                number=number,
                steps=30 * number,
                returned=returned,
                length=30,
                aims={"verify": 30},
                promised=0.5,
                chance=chance,
            )
            result.add(played)
        return result

    good, poor = [0.0, 1.0] * 8, [0.0] * 15 + [1.0]
    assert verification(good, chance=True).is_sufficient
    assert not verification(good, chance=False).is_sufficient
    assert verification([0.48] * 16, chance=False).is_sufficient  # each is close to the promise
    assert not verification(poor, chance=True).is_sufficient


@pytest.mark.slow
def test_learn_certifies_slippery_frozen_lake(tmp_path: Path) -> None:
    result = cwm.learn("FrozenLake-v1", steps=2500, seed=10, run=tmp_path / "run")
    program = (tmp_path / "run" / "best.py").read_text()
    assert "def outcomes(self, action)" in program
    assert result.certificate is not None
    assert result.steps < 2500
    assert result.certificate.promised == pytest.approx(0.744, abs=0.06)  # by value iteration
