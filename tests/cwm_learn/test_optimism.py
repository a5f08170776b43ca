"""Inventions for missions that were never rewarded, with a real sandbox."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cwm_cli import learn
from cwm_cli.data.dataset import Dataset
from cwm_cli.runs.observer import Observer
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.search.contracts import Backend, Completion, Request, Strategy
from cwm_cli.worlds import ProgramModel
from cwm_learn.optimism import RuleInventor
from cwm_learn.records import ProgramRecord
from cwm_learn.runs import LearnRun
from cwm_learn.writing import BudgetedModel
from cwm_worldcoder.world_program import WorldProgram
from folders import CORRIDOR, SUPPORT
from object_worlds import Corridor, rows_of, view_of
from openai_server import OpenAIServer

FOLDER = CORRIDOR
MOVES = (FOLDER / "moves_only.py").read_text()
OPENED = (FOLDER / "opened.md").read_text()
CONTRADICTING = """```python
def invented(state, action, next_state, reward, done):
    return state, 1, True
```"""


class Answers(Backend):
    """A backend that returns prepared answers in order and records the prompts."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.prompts = list(texts), list[str]()

    def complete(self, request: Request) -> Completion:
        self.prompts.append(request.messages[-1].content)
        return Completion(self.texts.pop(0))


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(), 2) as made:
        yield made


def locked(rows: Dataset) -> Dataset:
    """Return the rows without key, open door and reward."""
    keep = [not row.next_observation["objects"][1, 6] for row in rows]
    keep = [k and row.observation["objects"][2, 5] == 2 for k, row in zip(keep, rows, strict=True)]
    toggled = [row.action != 3 for row in rows]
    return rows[np.flatnonzero(np.array(keep) & np.array(toggled))]


def test_invention_agrees_with_the_rows_and_makes_the_mission_possible(sandbox: Sandbox) -> None:
    rows, view = locked(rows_of(Corridor(), 150)), view_of(rows_of(Corridor(), 1))
    rows = rows[np.array([i for i, row in enumerate(rows) if row.action != 2])]
    program = WorldProgram(MOVES).source(view)
    start, _ = Corridor().reset(seed=4)
    answers = Answers("I do not know.", CONTRADICTING, OPENED)
    model = BudgetedModel(answers, Strategy, each=3)
    inventor = RuleInventor(model, sandbox, view)
    found = inventor.invent(program, rows, start)
    assert found is not None
    assert found.origin == "optimism"
    assert model.used == 3
    assert "had no function `invented`" in answers.prompts[1]
    assert "contradicts a recorded step" in answers.prompts[2]
    assert "return state, 1, True" in answers.prompts[2]
    predicted = ProgramModel(found.program, sandbox).predict(rows)
    assert predicted.failure is None
    assert np.array_equal(predicted.columns["rewards"], rows.columns["rewards"])
    assert inventor.invent(found.program, rows, start) is None  # the agent can try the plan
    assert model.used == 3


def test_no_invention_is_requested_after_a_reward_or_with_a_plan(sandbox: Sandbox) -> None:
    rows, view = rows_of(Corridor(), 10), view_of(rows_of(Corridor(), 1))
    start, _ = Corridor().reset(seed=4)
    model = BudgetedModel(Answers(), Strategy)
    inventor = RuleInventor(model, sandbox, view)
    moves = (FOLDER / "transition.py").read_text()
    pays = {Corridor().mission: (FOLDER / "reward.py").read_text()}
    assert inventor.invent(WorldProgram(moves, pays).source(view), rows, start) is None
    rewarded = rows_of(Corridor(), 400, seed=3)
    assert (rewarded.columns["rewards"] > 0).any()
    assert inventor.invent(WorldProgram(MOVES).source(view), rewarded, start) is None
    assert model.used == 0


class Programs(Observer):
    """Records the origin of each program, and the number of steps before it."""

    def __init__(self) -> None:
        self.written: list[tuple[str, int]] = []

    def advanced(self, event: object) -> None:
        if isinstance(event, ProgramRecord):
            self.written.append((event.origin, event.steps))


@pytest.mark.long
@pytest.mark.parametrize(
    ("env", "env_args", "prepared"),
    [
        ("MiniGrid-DoorKey-5x5-v0", {}, ["doorkey_first.md", "doorkey.md"]),
        ("Sokoban-Teleport-v0", {"teleport_share": 1.0}, ["sokoban.md"]),
    ],
)
def test_model_on_a_server_invents_a_reward_before_the_first_one(
    env: str,
    env_args: dict[str, float],
    prepared: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    texts = [(SUPPORT / "prepared" / name).read_text() for name in prepared]

    def answer(body: dict[str, Any]) -> str:
        if "`invented(" not in body["messages"][-1]["content"]:
            return "I do not know."
        return texts.pop(0) if len(texts) > 1 else texts[0]

    programs = Programs()
    with OpenAIServer(answer) as server:
        result = learn(
            env,
            env_args=env_args,
            model="openai/x",
            api_base=server.url,
            steps=60,
            stop="never",
            seed=1,
            run=tmp_path / "run",
            observer=programs,
        )
    assert result.completions == len(server.requests)
    invented = next(steps for origin, steps in programs.written if origin == "optimism")
    rewards = LearnRun.load(tmp_path / "run").dataset().columns["rewards"]
    paid = int(np.flatnonzero(rewards > 0.95)[0]) + 1
    assert invented < paid <= invented + 30
