"""Rules in words as a world model: what followed is ranked, predicted and planned by them."""

from collections.abc import Mapping
from math import log

import gymnasium as gym
import numpy as np
import pytest

import cwm_cli
from cwm_cli.agents.playing import choose_planners
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import space_of
from cwm_cli.envs.tasks import Task
from cwm_cli.envs.text_view import Change, Consequence, TextView
from cwm_cli.evaluation import AccuracyMetric, evaluate
from cwm_cli.evaluation.ranking import Ranking
from cwm_cli.planning import Moment
from cwm_cli.search.contracts import Backend
from cwm_cli.worlds.statistician import Statistician, TextTransition, text_transitions
from cwm_cli.worlds.theory import Theory

PLACES = 6
SPACES = gym.spaces.Discrete(PLACES), gym.spaces.Discrete(2)


class Corridor(gym.Env):
    """Six places in a row; the last is the goal."""

    observation_space, action_space = SPACES

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return self.place, {}

    def step(self, action):
        self.place = after(self.place, action)
        return self.place, float(self.place == PLACES - 1), self.place == PLACES - 1, False, {}


def after(place, action):
    return min(max(place + (1 if action else -1), 0), PLACES - 1)


class CorridorWords(TextView):
    kinds = ("moved", "bumped")
    vocabulary = {"way": ("left", "right")}  # noqa: RUF012
    conclusions = {"moved": {"place": tuple(map(str, range(PLACES)))}, "bumped": {}}  # noqa: RUF012
    tells = True

    def guide(self):
        return "A corridor."

    def state(self, observation):
        return f"You are at {observation}."

    def legal(self, observation):
        return (0, 1)

    def action(self, observation, action):
        return f"You go {self.vocabulary['way'][action]}."

    def facts(self, observation, action) -> Mapping[str, str]:
        return {"way": self.vocabulary["way"][action]}

    def change(self, row):
        return self._moved(row.next_observation, row.observation)

    def candidates(self, observation):
        return [self._moved(place, observation) for place in range(PLACES)]

    def consequence(self, observation, action, change):
        if not self.tells:
            return None
        place = int(change.fields.get("place", observation))
        return Consequence(place, float(place == PLACES - 1), place == PLACES - 1)

    def _moved(self, place, before):
        if place == before:
            return Change("You bump into the wall.", "bumped")
        return Change(f"You are at {place} now.", "moved", {"place": str(place)})


class Walker(Backend):
    """Reads rules of the form `right: +1`; where none is of the way, all is as likely."""

    can_score = normalises = True
    reads_messages = False

    def score(self, requests):
        return [[self._weigh(each.question, each.text)] for each in requests]

    def _weigh(self, question, text):
        rules = dict(line.split(": ") for line in question.rules.splitlines())
        size, way = len(question.transition.candidates), question.transition.facts["way"]
        if way not in rules:
            return -log(size)
        here = int(question.transition.state.split()[-1].rstrip("."))
        there = min(max(here + int(rules[way]), 0), PLACES - 1)
        said = "bump" in text if there == here else f"at {there} " in text
        return log(0.9 * said + 0.1 / size)


TRUE, WRONG = "left: -1\nright: +1", "left: +1\nright: -1"


def theory(rules, view=None):
    return Theory(rules, Statistician(view or CorridorWords(), Walker()))


def walked(actions=(1, 1, 0, 0, 0, 1, 1, 1, 1, 1)) -> Dataset:
    rows, place = [], 0
    for action in actions:
        there = after(place, action)
        rows.append(Transition(place, action, there, float(there == 5), there == 5))
        place = there
    spaces = space_of(SPACES[0]), space_of(SPACES[1], "actions")
    return Dataset.of(rows, observation_space=spaces[0], action_space=spaces[1])


def test_ranks_are_told_with_ties_by_chance_and_as_published() -> None:
    def transition(true: int, kind: str) -> TextTransition:
        changes = tuple(Change(f"c{n}", kind) for n in range(4))
        return TextTransition("s", "a", changes[true], changes, {})

    rows = [transition(0, "often"), transition(1, "often"), transition(2, "seldom")]
    weights = [np.log([0.7, 0.1, 0.1, 0.1]), np.log([0.7, 0.1, 0.1, 0.1]), np.zeros(4) - 9]
    found = Ranking.of(rows, weights).summary((1, 3))
    assert found.all.transitions == 3
    assert found.kinds["often"].top == {1: 0.5, 3: pytest.approx((1 + 2 / 3) / 2)}
    assert found.kinds["often"].top_published == {1: 0.5, 3: 1.0}
    assert found.kinds["often"].rank == pytest.approx((1 + 3) / 2)
    assert found.kinds["seldom"].top == {1: 0.25, 3: 0.75}
    assert found.kinds["seldom"].top_published == {1: 1.0, 3: 1.0}
    assert found.kinds["seldom"].log_likelihood == -9
    assert found.kinds["seldom"].nll == pytest.approx(log(4)), "normalised over the candidates"
    assert found.mean.top[1] == pytest.approx((0.5 + 0.25) / 2)
    assert found.all.top[1] == pytest.approx((1 + 0 + 0.25) / 3)
    assert found.all.log_likelihood == pytest.approx(log(0.7) + log(0.1) - 9)
    assert not Ranking.uniform(rows).distinguishes
    assert Ranking.uniform(rows).summary((1,)).all.top == {1: pytest.approx(0.25)}
    strange = [rows[0]._replace(change=Change("c9", "often"))]
    with pytest.raises(cwm_cli.CwmError, match="'c9' followed, and is none of the 4 candidates"):
        Ranking.of(strange, weights[:1])


def test_rules_predict_by_their_probabilities_among_the_candidates() -> None:
    rows = walked()
    metric = AccuracyMetric.of(rows)
    assert evaluate(theory(TRUE), rows, metric).score.exact == 1.0
    assert evaluate(theory(WRONG), rows, metric).score.exact < 0.5
    found = theory(TRUE).predict(rows, draws=8).checked(rows)
    assert found.shape == "outcomes"
    assert found.probabilities.shape == (10, PLACES)
    assert found.probabilities.max(axis=1) == pytest.approx(np.full(10, 0.9 + 0.1 / PLACES))
    assert found.likeliest()["next_observations"].tolist() == (
        rows.columns["next_observations"].tolist()
    )
    transitions = text_transitions(CorridorWords(), rows)
    ranked = {
        rules: Ranking.of(transitions, theory(rules).weights(transitions)).summary((1,)).all
        for rules in (TRUE, WRONG, "")
    }
    assert [ranked[rules].top[1] for rules in (TRUE, "")] == [1.0, pytest.approx(1 / PLACES)]
    assert ranked[TRUE].nll < ranked[""].nll < ranked[WRONG].nll


def test_plausible_predictions_leave_out_what_is_no_likelier_than_by_guessing() -> None:
    rows = walked()
    assert len(theory(TRUE).outcomes((2, 1))) == PLACES
    [only] = theory(TRUE).outcomes((2, 1), plausible=True)
    assert (only.probability, only.meaning) == (1.0, Consequence(3, 0.0, False))
    assert len(theory("").outcomes((2, 1), plausible=True)) == PLACES
    careful = Theory(TRUE, Statistician(CorridorWords(), Walker()), plausible=True)
    assert careful.predict(rows, draws=8).probabilities.shape == (10, 1)


def test_words_that_do_not_tell_what_is_observed_predict_and_plan_nothing() -> None:
    view = CorridorWords()
    view.tells = False
    rows = walked()
    assert "do not tell" in theory(TRUE, view).predict(rows).failure.message
    with pytest.raises(cwm_cli.CwmError, match="cannot be planned with"):
        theory(TRUE, view).open([], Task(Corridor, 0, 20))


@pytest.mark.parametrize("planner", ["tabular", "mcts"])
def test_plans_are_made_by_rules(planner) -> None:
    spaces = space_of(SPACES[0]), space_of(SPACES[1], "actions")
    choice = choose_planners(planner, {}, spaces, {})
    steps = {}
    for rules in (TRUE, WRONG):
        with theory(rules).open(choice.planners, Task(Corridor, 0, 20)) as session:
            env = Corridor()
            seen, _ = env.reset()
            for decision in range(8):
                [plan] = session.plan([Moment(0, decision, seen, 20 - decision)])
                seen, _, over, *_ = env.step(plan.actions[0])
                if over:
                    break
            steps[rules] = seen
            assert session.report.forms == ("rules",)
    assert steps == {TRUE: PLACES - 1, WRONG: 0}
