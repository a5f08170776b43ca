"""Learning in stochastic environments: probabilities are estimated, and plans maximise the mean."""

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
from cwm_learn.writing import impossible

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
"""Standing still pays nothing; going on leads to a prize at place 3, or ends with a loss."""


@pytest.fixture
def walker(sandbox: Sandbox) -> Iterator[StochasticActor]:
    """Who acts on the program, having seen nothing but one step of standing still."""
    rows = [Transition(0, 0, 0, 0.0, terminated=False)]
    seen = Dataset.of(rows, observation_space=PLACES, action_space=ACTIONS)
    known = Knowledge(PLACES, ACTIONS, limit=10, rows=rows, starts=[0], program=WALK)
    with SearchImagination(sandbox, WALK, seen) as imagination:
        known.imagination = imagination
        actor = StochasticActor(known)
        actor.rebuild()
        yield actor


def worth(chance: float, place: int) -> float:
    """Return the value of moving on from a place if it succeeds with some probability."""
    if place == 3:
        return 0.0
    return chance * (float(place == 2) + worth(chance, place + 1)) - 0.1 * (1 - chance)


def test_play_is_for_the_mean_of_what_can_follow(walker: StochasticActor) -> None:
    assert walker.promised_return(1, 10) == pytest.approx(worth(0.5, 1), abs=1e-5)
    found = walker.choose(1, 10, "exploit")
    assert found is not None
    assert found.action == 1
    assert found.promised_return == pytest.approx(worth(0.5, 1), abs=1e-5)


def test_what_rows_count_betters_what_the_program_tells(walker: StochasticActor) -> None:
    told = walker.promised_return(2, 10)
    for _ in range(300):
        walker.known.rows.append(Transition(2, 1, 0, -0.1, terminated=True))
        walker.observe(walker.known.rows[-1])
    counted = walker.promised_return(2, 10)
    assert told == pytest.approx(0.45, abs=1e-5)
    assert counted == pytest.approx(0.0, abs=1e-3)  # standing still is better by now


def test_what_no_row_has_shown_is_gone_for(walker: StochasticActor) -> None:
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


def test_a_step_agrees_that_was_possible(walker: StochasticActor) -> None:
    predicted = walker.predict(2, 1)
    assert predicted is not None
    lost, odd = (Transition(2, 1, 0, reward, terminated=True) for reward in (-0.1, 5.0))
    assert walker.matches(predicted, lost)
    assert walker.matches(predicted, Transition(2, 1, 3, 1.0, terminated=True))
    assert not walker.matches(predicted, odd)


def test_rows_are_wrong_that_no_outcome_gives(sandbox: Sandbox) -> None:
    rows = [
        Transition(2, 1, 3, 1.0, terminated=True),
        Transition(2, 1, 0, 0.5, terminated=True),
        Transition(1, 1, 2, 0.0, terminated=False),
    ]
    data = Dataset.of(rows, observation_space=PLACES, action_space=ACTIONS)
    told = ProgramModel(WALK, sandbox).predict(data)
    assert told.shape == "outcomes"
    assert impossible(told, data).tolist() == [False, True, False]
    certain = Predictions(told.likeliest())
    assert impossible(certain, data).any()


def test_returns_are_held_to_the_promise_on_the_mean() -> None:
    def after(returns: list[float], *, chance: bool) -> Verification:
        found = Verification()
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
            found.episode(played)
        return found

    even, poor = [0.0, 1.0] * 8, [0.0] * 15 + [1.0]
    assert after(even, chance=True).enough
    assert not after(even, chance=False).enough
    assert after([0.48] * 16, chance=False).enough  # each is as good as promised by itself
    assert not after(poor, chance=True).enough


@pytest.mark.slow
def test_a_slippery_lake_is_learned(tmp_path: Path) -> None:
    result = cwm.learn("FrozenLake-v1", steps=2500, seed=10, run=tmp_path / "run")
    program = (tmp_path / "run" / "best.py").read_text()
    assert "def outcomes(self, action)" in program
    assert result.certificate is not None
    assert result.steps < 2500
    assert result.certificate.promised == pytest.approx(0.744, abs=0.06)  # by value iteration
