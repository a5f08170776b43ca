"""The agent of WorldCoder in a real environment, with a real server or offline rules."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset
from cwm_cli.envs.spec import space_of
from cwm_cli.envs.tasks import Task
from cwm_cli.registry import find
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.search.contracts import GENERATE, Backend, Completion, Move, Request
from cwm_learn.missions import StateView
from cwm_learn.strategy import LearningSession, LearningTask
from cwm_worldcoder.agent import WorldCoderAgent
from cwm_worldcoder.arms import Arm, WorldSearch
from cwm_worldcoder.asking import MAX_TOKENS_FIX, ProgramQuestion, ShownRow, extract_programs
from cwm_worldcoder.evaluating import Prediction, WorldEvaluation, WorldEvaluator, evaluate
from cwm_worldcoder.proposer import RuleProposer
from cwm_worldcoder.world_program import WorldProgram
from folders import CORRIDOR
from object_worlds import ACTIONS, MISSION, SCHEMA, Corridor, rows_of
from openai_server import OpenAIServer

FOLDER = CORRIDOR
PREPARED = {
    "The new mission is": "guessed.md",
    "Unreachable mission": "invented.md",
    "Wrong prediction": "refuted.md",
    "`reward_func(": "pays_nothing.py",
    "`transition(": "moves_only.py",
}
"""The answer for each text that a prompt may contain; the first matching entry is used."""


def prepared(prompt: str) -> str:
    """Answer a prompt from the prepared files."""
    name = next(name for words, name in PREPARED.items() if words in prompt)
    text = (FOLDER / name).read_text()
    return f"```python\n{text}```" if name.endswith(".py") else text


class PreparedBackend(Backend):
    """Answers from the prepared files, without a server."""

    def complete(self, request: Request) -> Completion:
        return Completion(prepared(request.messages[-1].content))


class Session(LearningSession):
    """Records the programs with the number of steps before them, and the aims of steps."""

    def wrote(self, program: str, note: str = "") -> None:
        super().wrote(program, note)
        self.__dict__.setdefault("programs", []).append((len(self.rows), program))

    def stepped(self, row: Any, *, aim: str, mismatched: bool = False) -> None:
        super().stepped(row, aim=aim, mismatched=mismatched)
        self.__dict__.setdefault("aims", []).append((aim, mismatched))


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(), 3) as made:
        yield made


def task(length: int = 7, mission: str = MISSION) -> LearningTask:
    made = Task(partial(Corridor, length, mission), 0, 60)
    return LearningTask("Corridor", made, SCHEMA, ACTIONS)


def agent(**options: Any) -> WorldCoderAgent:
    chosen = {"plan_nodes": 300, "patience": 1, "depth": 20, "pulls": 12, "warm": 5}
    return WorldCoderAgent(**{**chosen, **options})


def session_of(sandbox: Sandbox, backend: Backend | None, **more: Any) -> Session:
    given: dict[str, Any] = {"tasks": [task()], "steps": 300, **more}
    return Session(sandbox=sandbox, backend=backend, **given)


def view_of(rows: Dataset) -> StateView:
    return StateView(rows.observation_space, SCHEMA, ACTIONS)


def answer_offline(question: ProgramQuestion, step: int = 0) -> list[str]:
    request = Request(question.messages(), 0, Move(GENERATE), question, step)
    return extract_programs(RuleProposer().complete(request).text)


def invented_at(session: Session) -> int:
    """Return after how many steps a program first had a reward for the goal."""
    return next(steps for steps, text in session.programs if 'entity.name == "Goal"' in text)


@pytest.mark.slow
def test_inventions_are_tried_refuted_and_fixed(sandbox: Sandbox) -> None:
    session = session_of(sandbox, PreparedBackend(), seed=2)
    agent(exploration=0.0).learn(session)
    paid = next(n for n, row in enumerate(session.rows) if row.reward > 0)
    assert invented_at(session) <= paid  # before any reward had been seen
    assert ("exploit", True) in session.aims[invented_at(session) : paid]
    assert "agent.carrying = " in session.program
    assert session.returns[-1][1:] == (1.0, "exploit")


def test_without_optimism_a_program_without_rewards_is_sufficient(sandbox: Sandbox) -> None:
    session = session_of(sandbox, PreparedBackend(), steps=25)
    agent(optimism=False, exploration=0.0).learn(session)
    assert all('entity.name == "Goal"' not in text for _, text in session.programs)
    assert {aim for aim, _ in session.aims} == {"explore"}


@pytest.mark.slow
def test_requests_to_a_server_are_counted_and_limited(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with OpenAIServer(lambda body: prepared(body["messages"][-1]["content"])) as server:
        backend = find("backend", "litellm")(model="openai/x", api_base=server.url, retries=0)
        session = session_of(sandbox, backend, seed=2)
        agent(exploration=0.0).learn(session)
        assert session.asked == len(server.requests) > 0
        assert session.returns[-1][1] == 1.0
        few = session_of(sandbox, backend, completions=2, steps=30)
        agent().learn(few)
        assert (few.asked, few.over) == (2, "completions")


@pytest.mark.slow
def test_offline_rules_learn_without_a_model(sandbox: Sandbox) -> None:
    session = session_of(sandbox, None, seed=1)
    agent(warm=8).learn(session)
    assert session.returns[-1][1:] == (1.0, "exploit")
    assert session.asked == 0


def test_curriculum_reuses_the_world_model_without_requests(sandbox: Sandbox) -> None:
    session = session_of(sandbox, PreparedBackend(), tasks=[task(7), task(9)], seed=0)
    agent(exploration=0.0).learn(session)
    second = [row.observation["objects"][5][1] == 8 for row in session.rows].index(True)
    returns = [value for steps, value, _ in session.returns if steps > second]
    assert returns[0] == 1.0  # the first episode in the second environment
    assert session.asked == 4
    assert session.programs[-1][0] < second


def test_agent_reaches_a_goal_in_words_with_a_guessed_reward(sandbox: Sandbox) -> None:
    session = session_of(sandbox, PreparedBackend(), seed=0, goal="pick up the key")
    agent(exploration=0.0).learn(session)
    before = session.programs[-1][0]
    assert "'pick up the key'" in session.program
    assert session.returns[-1][1:] == (1.0, "exploit")
    assert session.rows[-1].next_observation["objects"][1, 6] == 1
    assert session.rows[-1].reward == 0.0  # the environment pays for another mission
    assert session.asked == 5
    assert before < len(session.rows)


def test_programs_are_scored_alone_and_only_correct_ones_are_planned_with(
    sandbox: Sandbox,
) -> None:
    rows, env = rows_of(Corridor(), 60), Corridor()
    view, transitions = view_of(rows), list(rows)
    start, _ = env.reset(seed=1)
    moves = (FOLDER / "transition.py").read_text()
    pays = (FOLDER / "reward.py").read_text()
    broken = moves.replace('"turn"', '"turn" and 1 / 0')
    evaluator = WorldEvaluator(sandbox, view, space_of(env.action_space, "actions"))
    try:
        right = evaluate(evaluator, WorldProgram(moves, {MISSION: pays}), transitions, [start])
        no_pay = evaluate(evaluator, WorldProgram(moves, {}), transitions, [start])
        wrong = evaluate(evaluator, WorldProgram(broken, {MISSION: pays}), transitions, [start])
        hopeless = evaluate(
            evaluator,
            WorldProgram(moves, {MISSION: (FOLDER / "pays_nothing.py").read_text()}),
            [row for row in transitions if not row.reward],
            [start],
            budget=50,
        )
    finally:
        evaluator.close()
    assert right.is_solution
    assert (right.score, right.plan_score) == (1.0, 1.0)
    assert not any(no_pay.correct_rewards)
    assert all(no_pay.correct_states)
    assert no_pay.fit_score == pytest.approx(1 / 3)
    turned = [row.action == 0 for row in transitions]
    assert [not each for each in wrong.correct_states] == turned
    assert all(
        "ZeroDivisionError" in o.error for o, t in zip(wrong.states, turned, strict=True) if t
    )
    assert wrong.plan_score is None
    assert (hopeless.fits, hopeless.plan_score, hopeless.is_solution) == (True, 0.0, False)


def search_of(bandit: str, *scores: float) -> WorldSearch:
    """Return a search with the initial arm and arms with given scores."""
    rows = rows_of(Corridor(), 3)
    evaluator = WorldEvaluator(None, view_of(rows), rows.action_space)  # type: ignore[arg-type]
    search = WorldSearch(
        evaluator, str, list(rows), list(rows), None, np.random.default_rng(0), bandit=bandit
    )
    search.arms.append(Arm("init", None, 1.0, 1.0))
    for score in scores:
        predictions = (Prediction(),) * 3
        base = WorldEvaluation(
            WorldProgram(f"# {score}"), tuple(rows), predictions, predictions, (True, False, True),
            (True,) * 3, score,
        )  # fmt: skip
        search._add_arms(base)
    return search


def test_arms_are_sampled_by_score_and_less_often_after_failures() -> None:
    search = search_of("thompson", 1.0, 0.2)
    assert [(arm.alpha, arm.beta) for arm in search.arms] == [(1, 1), (6, 1), (2, 5)]
    chosen = [search.arms.index(search._choose()) for _ in range(300)]  # type: ignore[arg-type]
    assert chosen.count(1) > 200 > 20 < chosen.count(0)
    search.arms[1].beta += 20
    chosen = [search.arms.index(search._choose()) for _ in range(300)]  # type: ignore[arg-type]
    assert chosen.count(0) > chosen.count(1)


@pytest.mark.parametrize(
    ("bandit", "order"),
    [("greedy", [1, 1, 1, 1]), ("bfs2", [0, 0, 1, 1, 2, 2]), ("grid3", [0, 0, 0, 1, 2])],
)
def test_other_bandits_choose_arms_in_their_order(bandit: str, order: list[int]) -> None:
    search, chosen = search_of(bandit, 0.9, 0.1), []
    while (arm := search._choose()) is not None and len(chosen) < len(order) + 1:
        arm.pulls += 1
        chosen.append(search.arms.index(arm))
    assert chosen[: len(order)] == order
    assert bandit == "greedy" or len(chosen) == len(order)


def test_prompt_has_the_wrong_prediction_and_respects_the_token_limit() -> None:
    rows = rows_of(Corridor(), 30)
    view, some = view_of(rows), list(rows)
    wrong = ShownRow(some[0], Prediction(some[1].observation, error=""))
    question = ProgramQuestion(
        "fix transition",
        view,
        transition="x = 1",
        right=tuple(map(ShownRow, some[:3])),
        wrong=wrong,
    )
    user = question.messages()[1]
    assert len(user.content) < 4 * (MAX_TOKENS_FIX + 2500)
    for words in (
        "x = 1",
        "# Wrong prediction",
        "Why does the environment do that?",
        "`transition(",
    ):
        assert words in user.content
    assert "carrying" in user.content
    crowded = replace(question, right=tuple(map(ShownRow, some * 3)))
    assert len(crowded.messages()[1].content) < 4 * (MAX_TOKENS_FIX + 2500)
    failed = replace(question, wrong=ShownRow(some[0], Prediction(error="KeyError: 'x'")))
    assert "KeyError: 'x'" in failed.messages()[1].content


def test_offline_rules_predict_all_examples_after_every_fix() -> None:
    rows = list(rows_of(Corridor(), 60))
    view = view_of(rows_of(Corridor(), 2))
    [code] = answer_offline(
        ProgramQuestion("transition", view, right=tuple(map(ShownRow, rows[:7])))
    )
    for row in rows[7:]:  # one wrong prediction at a time
        question = ProgramQuestion("fix transition", view, transition=code, wrong=ShownRow(row))
        [code] = answer_offline(question)
    program: dict[str, Any] = {}
    exec(WorldProgram(code).source(view), program)
    world = program["Environment"]()
    for row in rows:
        world.set_state(row.observation)
        assert view.same(world.step(row.action)[0], row.next_observation)


def test_guessed_reward_replaces_the_words_of_the_most_similar_mission() -> None:
    env = Corridor(mission="pick up the red key")
    env.reset(seed=0)
    before, _ = env.reset(seed=1)
    view = view_of(rows_of(env, 2))
    paid = []
    for color in (1, 2):  # the key is red, then blue
        env.reset(seed=1)
        env.table[1, 4] = color
        seen = [env._seen()]
        for action in (0, 2) if env.table[0, 3] == 1 and env.table[1, 1] < 2 else (2, 0):
            seen.append(env.step(action)[0])
        paid.append(seen)
    rows = list(rows_of(env, 2))
    rows = [
        rows[0]._replace(observation=a, next_observation=b, action=2, reward=r, terminated=bool(r))
        for (a, b), r in ((paid[0][-2:], 1.0), (paid[0][:2], 0.0))
    ]
    [known] = answer_offline(
        ProgramQuestion("reward", view, env.mission, right=tuple(map(ShownRow, rows)))
    )
    question = ProgramQuestion(
        "guess reward", view, "pick up the blue key", others={env.mission: known}
    )
    assert "'red'" in known or "Key" in known
    assert "'red'" not in answer_offline(question)[0]
    assert before["mission"] == env.mission
