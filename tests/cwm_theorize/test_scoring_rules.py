"""Rules in words as a world model: ranks, predictions and plans."""

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from math import log
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import cwm_cli
from cwm_cli import registry
from cwm_cli.commands.plan import choose_planners
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import space_of
from cwm_cli.envs.tasks import Task
from cwm_cli.envs.text_view import Change, Consequence, TextView
from cwm_cli.evaluation import AccuracyMetric, evaluate
from cwm_cli.planning import Moment
from cwm_cli.sandbox.failures import Failure
from cwm_cli.sandbox.protection import GAPS
from cwm_cli.search.contracts import Backend
from cwm_cli.worlds import Predictions
from cwm_theorize import scoring
from cwm_theorize.comparing import compare_with_program, program_weights
from cwm_theorize.parts import NamedBackend, TheoryChoices
from cwm_theorize.ranking import Ranking
from cwm_theorize.score_command import ranks
from cwm_theorize.statistician import Statistician, TextTransition, text_transitions
from cwm_theorize.world_model import Theory

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
    """Reads rules such as `right: +1`; without a rule for the move, all results are equal."""

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


def test_ranks_have_ties_in_random_and_in_published_order() -> None:
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
    with pytest.raises(cwm_cli.CwmError, match="'c9' is not among the 4 candidates"):
        Ranking.of(strange, weights[:1])


def test_impossible_candidates_are_tied() -> None:
    changes = tuple(Change(f"c{n}", "often") for n in range(3))
    row = TextTransition("s", "a", changes[0], changes, {})
    found = Ranking.of([row], [np.array([-np.inf, 0.0, -np.inf])]).summary((1, 2)).all
    assert (found.top, found.rank) == ({1: 0.0, 2: 0.5}, 2.5)


def test_predictions_use_probabilities_among_candidates() -> None:
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


def test_plausible_predictions_exclude_candidates_less_likely_than_a_guess() -> None:
    rows = walked()
    assert [len(each) for each in theory(TRUE).outcomes([(2, 1), (0, 0)])] == [PLACES, PLACES]
    [[only]] = theory(TRUE).outcomes([(2, 1)], plausible=True)
    assert (only.probability, only.meaning) == (1.0, Consequence(3, 0.0, False))
    assert [len(each) for each in theory("").outcomes([(2, 1)], plausible=True)] == [PLACES]
    careful = Theory(TRUE, Statistician(CorridorWords(), Walker()), plausible=True)
    assert careful.predict(rows, draws=8).probabilities.shape == (10, 1)


def test_undetermined_observations_give_no_predictions_and_no_plans() -> None:
    view = CorridorWords()
    view.tells = False
    rows = walked()
    assert "does not determine" in theory(TRUE, view).predict(rows).failure.message
    with pytest.raises(cwm_cli.CwmError, match="cannot plan with"):
        theory(TRUE, view).open([], Task(Corridor, 0, 20))


@pytest.mark.parametrize("planner", ["tabular", "mcts"])
def test_planners_use_rules(planner) -> None:
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


DOOR = "If colour is not blue, then opened.\nOtherwise, closed."


@pytest.fixture(scope="module")
def door() -> Dataset:
    """Recorded transitions of every item at a door that opens for items that are not blue."""
    spec = registry.environment("Door-v0")
    rows = []
    with closing(spec.make(rule="not blue")) as env:
        spaces = space_of(env.observation_space), space_of(env.action_space, "actions")
        for action in range(27):
            before, _ = env.reset()
            seen, reward, terminated, *_ = env.step(action)
            rows.append(Transition(before, action, seen, reward, terminated, episode=action))
    about = {"env": "Door-v0", "env_args": {"rule": "not blue"}}
    return Dataset.of(rows, observation_space=spaces[0], action_space=spaces[1], metadata=about)


def test_score_compares_rules_with_no_rules_and_guessing(door) -> None:
    found = cwm_cli.score("Door-v0", rules=DOOR, dataset=door)
    assert found.statistician == "symbolic"
    assert found.normalises
    assert found.ranks.all.transitions == 27
    assert {kind: each.transitions for kind, each in found.ranks.kinds.items()} == {
        "opened": 18,
        "closed": 9,
    }
    assert found.ranks.all.top[1] == found.ranks.mean.top[1] == 1.0
    assert found.ranks.all.log_likelihood == pytest.approx(27 * log(0.95 + 0.05 / 2))
    assert found.without_rules.all.top == {1: 0.5, 3: 1.0, 5: 1.0, 10: 1.0}
    assert found.without_rules.all.top_published[1] == 1.0
    assert found.guessing.all.nll == pytest.approx(log(2))
    assert found.notes == ()
    output = json.loads(json.dumps(found.as_json()))
    assert output["ranks"]["all"]["top"]["1"] == 1.0
    [ranks, kinds] = found.grids()
    assert [line[:3] for line in ranks.cells][:2] == [
        ["rules", "transitions", "1.000"],
        ["rules", "kinds", "1.000"],
    ]
    assert [line[:2] for line in kinds.cells] == [["opened", "18"], ["closed", "9"], ["all", "27"]]


def test_score_notes_statistician_that_ignores_rules(door) -> None:
    nothing = cwm_cli.score("Door-v0", rules="Hold on\nto your hat", dataset=door)
    assert "the same weight to every candidate" in nothing.notes[-1]
    assert [note[:18] for note in nothing.notes[:-1]] == [
        "line 1 is no rule,",
        "line 2 is no rule,",
    ]
    assert nothing.ranks.all.top[1] == 0.5
    rows = walked()
    transitions = text_transitions(CorridorWords(), rows)
    alike = [
        Ranking.of(transitions, [np.arange(PLACES, dtype=float)] * len(rows)) for _ in range(2)
    ]
    assert "cannot read these rules" in scoring._notes(*alike)[0]


def test_score_rejects_invalid_input_in_one_line(door, tmp_path, monkeypatch) -> None:
    rules, empty, binary, long = (tmp_path / name for name in ("r.txt", "e.txt", "b.txt", "l.txt"))
    rules.write_text(DOOR)
    empty.write_text(" \n\n")
    binary.write_bytes(bytes(range(256)))
    long.write_text("If colour is blue, then closed.\n" * 1000)
    other = replace(door, metadata={"env": "CartPole-v1"})
    cases = {
        "there is no ": {"rules": tmp_path / "nowhere"},
        "it is a folder": {"rules": tmp_path},
        "e.txt has no rules": {"rules": empty},
        "b.txt cannot be read": {"rules": binary},
        "l.txt has 31,999 characters, and rules have 4,000": {"rules": long},
        "contains transitions of CartPole-v1": {"dataset": other},
        "ranks must be at least 1": {"top": [0]},
        "provides no log-probabilities": {"statistician": "induction"},
        "unknown backend": {"statistician": "nobody"},
        "invalid option noise=2": {"options": ["noise=2"]},
        "CartPole-v1 has no description in words: choose Door-v0": {
            "env": "CartPole-v1",
            "dataset": other,
        },
    }
    monkeypatch.delenv("CWM_MODEL", raising=False)
    wrong = {}
    for words, asked in cases.items():
        try:
            wrong[words] = cwm_cli.score(
                **{"env": "Door-v0", "rules": rules, "dataset": door} | asked
            )
        except cwm_cli.CwmError as error:
            if words not in str(error) or len(str(error).splitlines()) > 1:
                wrong[words] = error
    assert wrong == {}
    view = TextView()
    with pytest.raises(cwm_cli.CwmError, match="lists no possible next changes"):
        view.candidates(0)


@pytest.mark.slow
def test_cwm_score_prints_tables_and_json(cwm, door, tmp_path) -> None:
    door.save(tmp_path / "door.npz")
    (tmp_path / "rules.txt").write_text(DOOR)
    asked = ["--rules", tmp_path / "rules.txt", "--dataset", tmp_path / "door.npz", "--topk", "1,2"]
    shown = cwm("score", "--env", "Door-v0", *map(str, asked), "--json")
    output = json.loads(shown.stdout)["ranks"]["all"]
    assert (output["rank"], output["top"]) == (1.0, {"1": 1.0, "2": 1.0})
    assert "top 2" in shown.stderr
    assert "as published" in shown.stderr
    assert ranks("10,1, 3") == [1, 3, 10]
    for odd in ("", "0", "1,x", "1.5", "-1", "1,,2", "9" * 9):
        with pytest.raises(cwm_cli.CwmError, match="write ranks of at least 1"):
            ranks(odd)


def test_program_predictions_get_all_probability_except_noise(door) -> None:
    rows = walked()
    transitions = text_transitions(CorridorWords(), rows)

    def ranked(predictions: Predictions) -> Ranking:
        return Ranking.of(
            transitions, program_weights(CorridorWords(), rows, transitions, predictions, 0.1)
        )

    columns = rows.select("next_observations", "rewards", "terminations")
    right = ranked(Predictions(columns)).summary((1,)).all
    assert right.top == {1: 1.0}
    assert right.nll == pytest.approx(-log(0.9 + 0.1 / PLACES))
    astray = {**columns, "next_observations": 5 - columns["next_observations"]}
    both = {name: np.stack([columns[name], astray[name]], 1) for name in columns}
    chances = np.tile([0.75, 0.25], (10, 1))
    drawn = ranked(Predictions(both, None, "outcomes", chances)).summary((1,)).all
    assert drawn.nll == pytest.approx(-log(0.9 * 0.75 + 0.1 / PLACES))
    failed = ranked(Predictions({}, Failure(kind="step_error", message="oh")))
    assert not failed.distinguishes


@pytest.mark.slow
def test_compare_finds_rules_and_program_from_same_transitions(door, tmp_path) -> None:
    """Train rows have half of the items, held-out rows have all items."""
    shown = door[np.arange(27) % 2 == 0]
    held_out = replace(door, columns={**door.columns, "split": np.ones(27, np.int8)})
    held_out.columns["episodes"] = held_out.columns["episodes"] + 100
    parts = TheoryChoices("metropolis", "random", NamedBackend("grammar"), NamedBackend("symbolic"))
    found = compare_with_program(
        "Door-v0",
        shown.concatenate(held_out),
        parts=parts,
        folder=tmp_path / "run",
        phases=4,
        proposals=50,
        budget=3,
        allow_gap=list(GAPS),
    )
    rules, program = found.models
    assert (rules.completions, program.completions) == (200, 2)  # the same program twice
    assert rules.ranks.all.transitions == program.ranks.all.transitions == 27
    assert rules.ranks.all.top[1] > program.ranks.all.top[1] > 0.5, (
        "rules generalise to unseen items"
    )
    assert rules.exact == rules.ranks.all.top[1]
    assert found.grid().cells[0][0] == "rules"
    assert json.dumps(found.as_json())


@pytest.fixture(scope="module")
def theorized(tmp_path_factory) -> Path:
    """The folder of a short run on the door, with the right rules as its best rules."""
    folder = tmp_path_factory.mktemp("runs") / "door"
    cwm_cli.theorize(
        "Door-v0", env_args={"rule": "not blue"}, episodes=20, phases=1, proposals=1, run=folder
    )
    (folder / "best.txt").write_text(DOOR)
    return folder


def test_evaluate_reports_rules_by_part(theorized) -> None:
    found = cwm_cli.evaluate(theorized)
    assert found.scores.test.exact == found.scores.train.exact == 1.0
    assert found.ranks["test"].all.transitions == 27
    assert found.ranks["test"].mean.top[1] == 1.0
    assert set(found.as_json()["ranks"]) == {"train", "test"}
    sceptical = cwm_cli.evaluate(theorized, split="test", options=["statistician.noise=0.5"])
    assert list(sceptical.ranks) == ["test"]
    assert sceptical.ranks["test"].all.nll > found.ranks["test"].all.nll
    skill = cwm_cli.evaluate(theorized, split="test", metric="skill")
    assert skill.scores.test.skill is not None


def test_theorize_run_supports_planning_and_rejects_other_commands(theorized) -> None:
    found = cwm_cli.plan(theorized, episodes=4)
    assert found.side.returns == [1.0] * 4
    assert found.side.report.forms == ("rules",)
    assert found.doubt == ""
    assert found.learn_from is None
    again = cwm_cli.plan(theorized, episodes=4, options={"statistician.noise": 0.2})
    assert again.journal != found.journal, "other rules, or another reader, have a separate plan"
    with pytest.raises(cwm_cli.CwmError, match="has no program"):
        cwm_cli.bench_speed(theorized)
    with pytest.raises(cwm_cli.CwmError, match="has no rules yet"):
        (theorized / "best.txt").rename(theorized / "was.txt")
        cwm_cli.plan(theorized)
