"""Valid actions, which programs may return after the observation, the reward and the end."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from candidates import open_session, plan_at
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import space_of
from cwm_cli.evaluation import AccuracyMetric, PaperMetric, evaluate
from cwm_cli.problems.feedback import report
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.sandbox import Sandbox
from cwm_cli.search.contracts import GENERATE, IMPROVE, Move, Request
from cwm_cli.search.loop import ROOT
from cwm_cli.worlds import ProgramModel
from cwm_induction.backend import Induction

STATES = space_of(spaces.Discrete(6))
ACTIONS = space_of(spaces.Discrete(3, start=-1), "actions")


def allowed(state: int) -> tuple[int, ...]:
    """Return the actions that stay on the line."""
    return tuple(action for action in (-1, 0, 1) if 0 <= state + action <= 5)


def line(rows: int = 60, *, named: bool = True) -> Dataset:
    """Record walks between 0 and 5, which end at 5."""
    rng, state, episode, transitions = np.random.default_rng(0), 0, 0, []
    for _ in range(rows):
        action = int(rng.choice(allowed(state)))
        following = state + action
        ended = following == 5
        transitions.append(
            Transition(
                *(state, action, following, float(ended), ended, False, episode, episode % 3 == 2),
                valid=allowed(following) if named else None,
            )
        )
        state, episode = (0, episode + 1) if ended else (following, episode)
    return Dataset.of(transitions, observation_space=STATES, action_space=ACTIONS)


PROGRAM = """
class Environment:
    def set_state(self, observation):
        self.state = observation

    def step(self, action):
        self.state += action
        ended = self.state == 5
        valid = [a for a in (-1, 0, 1) if 0 <= self.state + a <= 5]
        return self.state, float(ended), ended, {valid}
"""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as opened:
        yield opened


def scored(sandbox: Sandbox, valid: str, kind: Any = AccuracyMetric) -> Any:
    data = line()
    return evaluate(ProgramModel(PROGRAM.format(valid=valid), sandbox), data, kind.of(data))


def test_valid_actions_are_saved_and_loaded(tmp_path: Path) -> None:
    data = line()
    data.save(tmp_path / "line.npz")
    loaded = Dataset.load(tmp_path / "line.npz")
    assert loaded.has_valid_actions and loaded.digest == data.digest
    assert loaded.row(0).valid == data.row(0).valid == allowed(data.row(0).next_observation)
    assert not line(named=False).has_valid_actions


@pytest.mark.parametrize(
    "valid", ["valid", "tuple(valid)", "set(valid)", "__import__('numpy').array(valid)"]
)
def test_valid_actions_may_be_any_collection(sandbox: Sandbox, valid: str) -> None:
    score = scored(sandbox, valid).score
    assert (score.accuracy, score.valid_actions, score.exact) == (1.0, 1.0, 1.0)
    assert score.model_dump()["valid_actions"] == 1.0


@pytest.mark.parametrize("valid", ["valid[1:]", "[]", "valid + [7]", "[-1, 0, 1, 0]"])
def test_wrong_valid_actions_cost_a_quarter_of_a_row(sandbox: Sandbox, valid: str) -> None:
    found = scored(sandbox, valid)
    data, score = line(), found.score
    going = ~data.columns["terminations"]
    namings = {"valid[1:]": 1, "[]": 0, "valid + [7]": 2, "[-1, 0, 1, 0]": 3}
    right = {1: lambda _: False, 0: lambda _: False, 2: lambda _: False, 3: lambda s: 0 < s < 5}
    true = np.array([right[namings[valid]](row.next_observation) for row in data])
    assert score.valid_actions == pytest.approx(true[going].mean())
    assert found.rows[going] == pytest.approx(0.75 + 0.25 * true[going])
    assert found.rows[~going] == pytest.approx(1.0)


def test_the_published_score_accepts_some_of_the_valid_actions(sandbox: Sandbox) -> None:
    assert scored(sandbox, "valid[1:] or valid", PaperMetric).score.paper == 1.0
    assert scored(sandbox, "[]", PaperMetric).score.paper < 1.0
    assert scored(sandbox, "valid + [7]", PaperMetric).score.paper < 1.0


@pytest.mark.parametrize(
    ("valid", "words"),
    [
        ("[0.5]", "the valid actions should be a list of ints"),
        ("'ab'", "the valid actions should hold numbers"),
        ("[[1]]", "the valid actions should be a list of ints"),
    ],
)
def test_malformed_valid_actions_are_a_failure(sandbox: Sandbox, valid: str, words: str) -> None:
    failure = scored(sandbox, valid).failure
    assert (failure.kind, words in failure.message) == ("wrong_output", True)


def test_a_program_without_valid_actions_fails_with_a_message(sandbox: Sandbox) -> None:
    program = PROGRAM.replace(", {valid}", "")
    failure = evaluate(ProgramModel(program, sandbox), line(), AccuracyMetric.of(line())).failure
    assert failure is not None
    assert "(observation, reward, terminated, valid actions)" in failure.message
    plain = line(named=False)
    assert (
        evaluate(ProgramModel(program, sandbox), plain, AccuracyMetric.of(plain)).score.accuracy
        == 1.0
    )


def test_the_baseline_predicts_the_most_common_valid_actions() -> None:
    data = line()
    metric = AccuracyMetric.of(data)
    assert metric.valid == (True, True, True)
    assert AccuracyMetric.of(line(named=False)).valid == ()


def test_prompts_ask_for_valid_actions_and_reports_show_them(sandbox: Sandbox) -> None:
    data = line()
    problem = WorldModelProblem("A line.", data, sandbox, AccuracyMetric.of(data))
    asked = problem.messages(Move(GENERATE))[1].content
    assert "returns (next_observation, reward, terminated, valid_actions)" in asked
    plain = WorldModelProblem("A line.", line(named=False), sandbox, AccuracyMetric.of(data))
    assert "valid_actions" not in plain.messages(Move(GENERATE))[1].content
    found = evaluate(ProgramModel(PROGRAM.format(valid="[0]"), sandbox), data, problem.metric)
    text = report(data, found.predictions, problem.metric)
    assert "valid actions" in text and "predicted [0]" in text


def test_planning_takes_only_actions_that_the_program_allows(sandbox: Sandbox) -> None:
    text = """
class Environment:
    def set_state(self, observation):
        self.state = observation

    def step(self, action):
        assert self.state % 2 == 0 or action == 0, "only 0 is allowed at odd states"
        self.state = min(self.state + (action != 0 or self.state % 2), 5)
        return self.state, float(action == 1), False, [0] if self.state % 2 else [-1, 0, 1]
"""
    for preset in ("paper", "default"):
        with open_session(
            sandbox, text, (STATES, ACTIONS), planners=[("mcts", {"preset": preset})], valid=True
        ) as opened:
            plan = plan_at(opened, 0, horizon=6)
            assert (plan.failure, plan.actions) == (None, [1])


def test_induced_programs_have_exact_rules_for_valid_actions(sandbox: Sandbox) -> None:
    data = line()
    problem = WorldModelProblem("A line.", data, sandbox, AccuracyMetric.of(data))
    request = Request(problem.messages(Move(GENERATE)), 0, Move(GENERATE), problem)
    text = Induction().complete(request).text
    program = text.partition("```python\n")[2].partition("```")[0]
    verdict = problem.judge(program)
    assert verdict.parts["observation"] == verdict.parts["reward"] == 1.0
    assert verdict.parts["valid_actions"] == 1.0
    move = Move(IMPROVE, ROOT + 1, program, verdict)
    again = Induction().complete(request._replace(move=move)).text
    assert again.count("class Transitions(") == 1
