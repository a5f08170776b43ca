"""A language model names open questions, and the agent tries to answer them."""

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from cwm_cli import learn
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_cli.search.contracts import Backend, Completion, Request, Strategy, Usage
from cwm_learn.actors.base import Knowledge, OpenQuestion
from cwm_learn.actors.continuous import ContinuousActor
from cwm_learn.doubting import DoubtingModel, parse_region
from cwm_learn.records import StepsTaken
from cwm_learn.runs import LearnRun
from cwm_learn.writing import BudgetedModel
from openai_server import OpenAIServer

TRACK = Space("box", "float64", (2,), (-2.0, -1.0), (2.0, 1.0))
PUSHES = Space("discrete", "int64", (), (0.0,), (2.0,))


def test_region_consists_only_of_bounds_of_components() -> None:
    names = {"position": 0, "velocity": 1}
    box = parse_region("0.5 <= position and observation[1] < -1", names, 2)
    assert box is not None
    assert box[0].tolist() == [0.5, -np.inf]
    assert box[1, 0] == np.inf
    assert -1.001 < box[1, 1] < -1
    assert parse_region("observation == 14", {}, 1).tolist() == [[14.0], [14.0]]
    for bad in (
        "near the goal",
        "position > 1 or velocity > 1",
        "position > 9**9**9**9**9",
        "position > velocity",
        "speed > 1",
        "observation[7] > 1",
        "__import__('os').getcwd() > 1",
        "(" * 190,
    ):
        assert parse_region(bad, names, 2) is None


def test_continuous_actor_tries_a_question_in_its_region() -> None:
    known = Knowledge(TRACK, PUSHES, 50, names=("Car Position", "Car Velocity"))
    doubting_model = DoubtingModel(
        BudgetedModel(Backend(), Strategy), known, actions=("left", "no", "right")
    )
    question = OpenQuestion("does it bounce?", "position >= 1.5", "right")
    found = doubting_model.locate(question)
    assert doubting_model.locate(question._replace(region="at the wall")) is None
    assert doubting_model.locate(question._replace(action="jump")) is None
    known.targets.append(found)
    intent = ContinuousActor(known).choose(np.array([1.6, 0.0]), 10, "probe")
    assert (intent.action, intent.aim, intent.reason) == (2, "probe", "does it bounce?")


NAMED = [
    {
        "text": "is the way back from the field before the goal free?",
        "region": "observation == 14",
        "action": 0,
        "answers": "13: nothing holds it there",
    },
    {"text": "does the ice \u001b[31mmelt?", "region": "after many steps", "action": "wait"},
    {"no": "question"},
]


DOUBTS = "mistakes in a program"
"""Only prompts for questions contain these words."""


class QuestionBackend(Backend):
    """A backend that returns the questions and records the request."""

    asked: Request

    def complete(self, request: Request) -> Completion:
        self.asked = request
        return Completion(f"I doubt this:\n```json\n{json.dumps(NAMED)}\n```", Usage(cost=0.5))

    def worst_cost(self, request: Request) -> float:
        return 0.6


def test_model_is_asked_for_questions_until_the_cost_limit() -> None:
    known, backend = (
        Knowledge(TRACK, PUSHES, 50, names=("Car Position", "Speed")),
        QuestionBackend(),
    )
    model = BudgetedModel(backend, Strategy, max_cost=1.0)
    doubting_model = DoubtingModel(model, known, "A car.", ("left", "no", "right"))
    recorded = "## What was recorded\n\n12 steps"
    asked = ["what stops it?"]
    found, usage = doubting_model.find_questions(
        "class Environment: ...", "11 of 12", recorded, asked
    )
    prompt = backend.asked.messages[-1].content
    for part in ("A car.", recorded, "class Environment", "11 of 12", *asked, "2 right"):
        assert part in prompt
    assert "bounds of car_position, car, position, speed" in prompt
    assert [each.text for each in found] == [NAMED[0]["text"], "does the ice [31mmelt?"]
    assert found[1].region == "after many steps, by wait"
    assert (found[1].action, usage.cost, model.used, model.spent) == (None, 0.5, 1, 0.5)
    assert doubting_model.find_questions("class Environment: ...", "12 of 12", "", []) == (
        [],
        Usage(),
    )
    assert model.used == 1


@pytest.mark.slow
def test_prompt_contains_the_rows_and_no_question_that_they_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with OpenAIServer(lambda body: "[]") as server:
        learn(
            "FrozenLake-v1",
            env_args={"is_slippery": False},
            steps=11,
            model="openai/x",
            api_base=server.url,
            run=tmp_path / "r",
        )
    [asked] = [each.prompt for each in server.requests if DOUBTS in each.prompt]
    records = LearnRun.load(tmp_path / "r").records()
    steps = [each.columns["actions"] for each in records if isinstance(each, StepsTaken)]
    tried = set(np.concatenate(steps)[:10].tolist())
    assert len(tried) > 1
    assert "10 steps of 3 episodes" in asked
    assert "4: 2>5 ended" in asked  # a row: action 2 at field 4 leads to a hole, field 5
    assert not any(f"action {action} was never tried" in asked for action in tried)
    assert "the end of the episode by action 2 at 4 was seen once" in asked


def every_step(path: Path) -> None:
    """Save a data set with every action at every field of the lake."""
    env = gym.make("FrozenLake-v1", is_slippery=False)
    rows = []
    for field, action in np.ndindex(16, 4):
        env.reset(seed=0)
        if env.unwrapped.desc.ravel()[field] in (b"H", b"G"):
            continue
        env.unwrapped.s = field
        after, reward, ended, *_ = env.step(action)
        rows.append(Transition(field, action, after, float(reward), ended, episode=len(rows)))
    spaces = space_of(env.observation_space), space_of(env.action_space, "actions")
    about = {"env": "FrozenLake-v1", "env_args": {"is_slippery": False}}
    data = Dataset.of(rows, observation_space=spaces[0], action_space=spaces[1], metadata=about)
    data.save(path)


@pytest.mark.long
def test_questions_of_a_model_are_tried_recorded_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")

    def learn_lake(**options: object) -> object:
        return learn(
            "FrozenLake-v1",
            env_args={"is_slippery": False},
            start=tmp_path / "rows.npz",
            model="openai/x",
            api_base=server.url,
            run=tmp_path / "r",
            **options,
        )

    every_step(tmp_path / "rows.npz")

    def answer(body: dict[str, object]) -> str:
        doubted = DOUBTS in str(body["messages"])
        return f"```json\n{json.dumps(NAMED)}\n```" if doubted else "I do not know."

    with OpenAIServer(answer) as server:
        first = learn_lake(steps=8)
        [asked] = [each.prompt for each in server.requests if DOUBTS in each.prompt]
        assert "class Environment" in asked
        assert "a number from 0 to 3" in asked
        assert first.completions == len(server.requests)
        assert [each.state for each in first.questions if each.source == "model"] == ["open"] * 2
        second = learn_lake(steps=80)
    records = LearnRun.load(tmp_path / "r").records()
    named = {each.text: each for each in records if getattr(each, "source", "") == "model"}
    way, ice = named.values()
    assert way.state == "answered"
    assert "led to 13, reward 0" in way.answer
    assert (ice.text, ice.state) == ("does the ice [31mmelt?", "open")
    assert ice.region == "after many steps, by wait"
    assert ice.text in second.program.read_text()
