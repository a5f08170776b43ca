"""Prompts of a search: recorded steps, failing rows, right rows, other programs, and length."""

import re
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.evidence import half_right
from benchmarks.evidence import problem as shipped_problem
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.evaluation import AccuracyMetric
from cwm_cli.evaluation.finding import find_contract
from cwm_cli.evaluation.skill import SkillMetric
from cwm_cli.problems.feedback.choices import RIGHT_STEPS as RIGHT
from cwm_cli.problems.feedback.evidence import gather_evidence
from cwm_cli.problems.feedback.steps import RecordedSteps, StepKinds
from cwm_cli.problems.world_model import EXPLAINED, WorldModelProblem
from cwm_cli.search.contracts import FIX, GENERATE, IMPROVE, Move, Node, Usage
from cwm_cli.text import estimated_tokens
from random_steps import poles
from recordings import record
from worlds import HIDDEN, SLIPPERY

SECTION = "## Recorded transitions"
ROOM = Space("multidiscrete", shape=(3,), low=(0.0,) * 3, high=(9.0, 9.0, 1.0))
ACTIONS = Space("discrete", low=(0.0,), high=(2.0,))

WALK = """
import numpy as np

class Environment:
    def set_state(self, observation):
        self.x, self.y, self.lamp = (int(value) for value in observation)

    def step(self, action):
        lamp = self.lamp
        if action == 0:
            self.x = min(self.x + 1 + lamp, 9)
        elif action == 1:
            self.y = min(self.y + 1, 9)
        elif self.x == self.y:
            self.lamp = 1 - lamp
        reward = float(self.x == 9 and self.y == 9)
        return np.array([self.x, self.y, self.lamp]), reward, reward > 0
"""
"""A walk in a room with a lamp: with light, action 0 goes two cells."""

DARK = WALK.replace("self.x + 1 + lamp", "self.x + 1")
"""The same without the effect of the lamp."""


def walk(episodes: int = 60) -> Dataset:
    """Record random walks."""
    rng, rows = np.random.default_rng(1), []
    for episode in range(episodes):
        x, y, lamp = (int(rng.integers(n)) for n in (4, 4, 2))
        for _ in range(12):
            action = int(rng.integers(3))
            before = np.array([x, y, lamp])
            if action == 0:
                x = min(x + 1 + lamp, 9)
            elif action == 1:
                y = min(y + 1, 9)
            elif x == y:
                lamp = 1 - lamp
            done = x == 9 and y == 9
            after = np.array([x, y, lamp])
            rows.append(Transition(before, action, after, float(done), done, episode=episode))
            if done:
                break
    return Dataset.of(rows, observation_space=ROOM, action_space=ACTIONS)


@pytest.fixture(scope="module")
def room() -> Dataset:
    """Random walks in the room."""
    return walk()


def posed(rows: Dataset, sandbox, **options) -> WorldModelProblem:
    """Return the problem of rows without documentation."""
    return WorldModelProblem("A room.", rows, sandbox, AccuracyMetric.of(rows), **options)


def asked(problem: WorldModelProblem, action: str, program: str) -> str:
    """Return the user message of a prompt about a program."""
    return problem.messages(Move(action, 0, program, problem.judge(program)))[1].content


def test_improve_prompts_show_recorded_steps_until_95_percent_are_right(room, sandbox):
    problem = posed(room, sandbox)
    generate = problem.messages(Move(GENERATE))[1].content
    verdict = problem.judge(DARK)
    section = generate[generate.index(SECTION) : generate.index("## Your answer")].strip()
    assert verdict.parts["exact"] < EXPLAINED
    assert section in asked(problem, IMPROVE, DARK)
    nearly = WALK.replace("reward > 0", "False")
    assert problem.judge(nearly).parts["exact"] >= EXPLAINED
    assert SECTION not in asked(problem, IMPROVE, nearly)
    assert SECTION in asked(problem, FIX, WALK.replace("lamp = self.lamp", "lamp = self.light"))
    paper = posed(room, sandbox, feedback="paper")
    for action, program in ((IMPROVE, DARK), (FIX, "x = 1")):
        text = asked(paper, action, program)
        assert SECTION not in text and RIGHT not in text


def test_the_allowance_for_recorded_steps_is_spent(room, sandbox):
    text = posed(room, sandbox, evidence_tokens=1500)._write_evidence(room[room.fitted])
    assert 1300 < estimated_tokens(text) <= 1500


def test_every_effect_and_each_action_in_each_mode_has_a_step(room):
    found = gather_evidence(room, AccuracyMetric.of(room), tokens=1500)
    shown = sorted(set(found.rows))
    kinds = StepKinds(RecordedSteps(room))
    assert kinds.modes == [2] and len(kinds.effects) > 10
    assert all(mask[shown].any() for mask in kinds.effects)


def test_steps_before_and_after_a_change_of_mode_are_shown():
    rng, rows, heat, on = np.random.default_rng(0), [], np.float32(20), np.float32(0)
    for _ in range(400):
        before = np.array([heat, on], "f4")
        on = np.float32(1 if heat < 18 else 0 if heat > 22 else on)
        heat = np.float32(heat + (0.7 if on else -0.4) + rng.normal(0, 0.05))
        rows.append(Transition(before, 0, np.array([heat, on], "f4"), 0.0, False))
    infinite = (np.inf,) * 2
    space = Space("box", "float32", (2,), (-np.inf,) * 2, infinite)
    data = Dataset.of(rows, observation_space=space, action_space=ACTIONS)
    groups = gather_evidence(data, AccuracyMetric.of(data)).groups
    steps = RecordedSteps(data)
    for one, other in ((0, 1), (1, 0)):
        group = next(g for g in groups if f"[1] changes from {one} to {other} (in" in g.reason)
        first, change, last = group.rows
        assert (first + 1, change + 1) == (change, last)
        assert (steps.before[change, 1], steps.after[change, 1]) == (one, other)


def test_a_program_with_memory_is_shown_whole_episodes_in_order(sandbox):
    rows = poles(hide="velocities")
    found = find_contract(rows)
    assert found.contract == "memory"
    problem = WorldModelProblem(
        "A pole.", rows, sandbox, SkillMetric.of(rows), contract="memory", finding=found
    )
    shown = rows[rows.fitted]
    groups = gather_evidence(shown, problem.metric, contract="memory").groups
    steps = RecordedSteps(shown)
    *episodes, rare = groups
    assert episodes[0].reason.startswith("Whole episodes, in order")
    assert rare.reason.startswith("Rare rewards, results and ends")
    assert steps.ended[list(rare.rows)].any()
    for group in episodes:
        first, *rest = group.rows
        assert not steps.follows[first] and len(rest) > 5
        assert list(group.rows) == list(range(first, first + len(group.rows)))
    wrong = HIDDEN.replace("self.state = [x, after[1]", "self.state = [x, 0.0")
    text = asked(problem, IMPROVE, wrong)
    assert "Whole episodes, in order" in text
    assert "predict the most frequent" not in text and "Predict the outcome" not in text
    assert "A line is: observation | action | next" not in text


def test_a_program_of_chance_is_shown_counts_and_the_best_score(sandbox):
    rows = record("FrozenLake-v1", episodes=80)[0]
    found = find_contract(rows)
    problem = WorldModelProblem(
        "Ice.", rows, sandbox, SkillMetric.of(rows), contract="chance", finding=found
    )
    text = problem.messages(Move(GENERATE))[1].content
    best = float(re.search(r"as probabilities has a mean log-likelihood of (-\d.\d+)", text)[1])
    shown = rows[rows.fitted]
    true = problem.metric.score(_answers(SLIPPERY, shown, sandbox), shown).log_likelihood
    assert true <= best < 0
    assert problem.judge(SLIPPERY).score > 0
    few = replace(problem, evidence_tokens=500).messages(Move(GENERATE))[1].content
    assert "Equal observations and actions with different outcomes" in few
    assert re.search(r"0 \| 0 > 0 0 \(\d+x\) or 4 0 \(\d+x\)", few)
    for each in (text, few):
        assert "Predict the outcome with the most weight" not in each


def _answers(program: str, rows: Dataset, sandbox):
    from cwm_cli.worlds import ProgramModel

    return ProgramModel(program, sandbox).predict(rows)


def test_fix_prompts_show_the_recorded_step_that_failed(room, sandbox):
    problem = posed(room, sandbox)
    fails = WALK.replace("self.lamp = 1 - lamp", "self.lamp = 1 / (1 - lamp)")
    text = asked(problem, FIX, fails)
    error = text[text.index("## The error") :]
    call = re.search(r"set_state\(\[(\d), (\d), (\d)\]\) and step\(2\)", error)
    x, y, lamp = call.groups()
    assert lamp == "1" and x == y
    known = f"[{x},{y},{lamp}] | 2 | [{x},{y},0] | 0"
    is_shown = any(
        RecordedSteps(room).line(row) == known for row in np.flatnonzero(room.fitted).tolist()
    )
    assert (known in error) == is_shown
    assert ("belongs to a recorded step that is not shown" in error) != is_shown
    assert "Similar recorded steps" in error and len(re.findall(r"^\[.* \| ", error, re.M)) >= 3


def test_fix_prompts_never_show_the_result_of_a_hidden_row(room, sandbox):
    place = int(np.flatnonzero(~room.fitted)[0])
    columns = {name: column.copy() for name, column in room.columns.items()}
    assert not (columns["observations"] == [0, 9, 1]).all(axis=1).any()
    columns["observations"][place] = [0, 9, 1]
    columns["next_observations"][place] = [8, 7, 0]
    fails = WALK.replace("lamp = self.lamp", "lamp = self.lamp / int((self.x, self.y) != (0, 9))")
    text = asked(posed(replace(room, columns=columns), sandbox), FIX, fails)
    assert "set_state([0, 9, 1])" in text and "ZeroDivisionError" in text
    assert "belongs to a recorded step that is not shown" in text and "[8,7,0]" not in text


def test_improve_prompts_show_varied_right_steps(room, sandbox):
    problem = posed(room, sandbox)
    text = problem.judge(DARK).failure.message
    lines = text[text.index(RIGHT) :].split("\n\n")[0].splitlines()[1:]
    steps = RecordedSteps(room)
    known = {steps.line(row): row for row in np.flatnonzero(room.fitted).tolist()}
    rows = [known[line] for line in lines]
    right = problem._find_right_rows(DARK, room)
    assert len(rows) >= 8 and right[rows].all()
    assert set(room.columns["actions"][rows].tolist()) == {0, 1, 2}
    assert set(steps.before[rows, 2].tolist()) == {0.0, 1.0}
    nearly = problem.judge(WALK.replace("reward > 0", "False")).failure.message
    assert nearly.count("\n", nearly.index(RIGHT)) > 2 * len(rows)


def test_a_stuck_search_shows_other_programs(room, sandbox):
    problem = posed(room, sandbox)
    still = WALK.replace("self.y = min(self.y + 1, 9)", "pass")
    other = DARK.replace("self.lamp = 1 - lamp", "pass")
    move = Move(IMPROVE, 0, DARK, problem.judge(DARK))
    for number, program in enumerate([DARK, still, other, "class Environment: pass"]):
        assert "## Other programs" not in problem.messages(move)[1].content
        verdict = problem.judge(program)
        node = Node(number, number, 0 if number else -1, IMPROVE, program, verdict, "", Usage())
        problem.update(node)
    text = problem.messages(move)[1].content
    section = text[text.index("## Other programs") : text.index("## Your answer")]
    assert "The last 3 completions gave no better program" in section
    counts = re.findall(r"It is right on (\d+) transitions .* and wrong on (\d+) trans", section)
    right, mine = (
        problem._find_right_rows(still, room[room.fitted]),
        problem._find_right_rows(DARK, room[room.fitted]),
    )
    assert (str((right & ~mine).sum()), str((mine & ~right).sum())) in counts
    assert "```diff" in section and "class Environment: pass" not in section
    assert estimated_tokens(section) < 1300
    short = problem.shorter(move, len(text) // 2)[1].content
    assert "## Other programs" not in short and DARK.strip() in short


def use_of(use: str) -> str:
    """Return the part of an expression that lacks its index."""
    return re.search(r'[\w.]*CHOICES(\["way"\]|\.get\("way"\))', use)[0]


MISREAD = [
    'self.CHOICES["way"] == "a"',
    '"a" == self.CHOICES["way"]',
    'Environment.CHOICES["way"] != "b"',
    'self.CHOICES.get("way") == "a"',
    'self.CHOICES["way"] in ("a", "b")',
    'self.CHOICES["way"][1] == "a"',
]
READ = ['self.CHOICES["way"][0] == "a"', 'self.CHOICES["one"] == "a"']


@pytest.mark.parametrize("use", [*MISREAD, *READ])
def test_a_program_that_reads_a_choice_without_an_index_is_rejected(room, sandbox, use):
    declared = 'class Environment:\n    CHOICES = {"way": ["a", "b"], "one": "a"}\n'
    program = WALK.replace("class Environment:\n", declared)
    program = program.replace("lamp = self.lamp\n", f"lamp = self.lamp if {use} else 0\n")
    verdict = posed(room, sandbox).judge(program)
    if use in READ:
        assert verdict.score == 1
        return
    assert verdict.failure.kind == "load_error" and verdict.failure.line == 10
    assert re.search(r"CHOICES.*is the list of all alternatives", verdict.failure.message)
    assert f"Write {use_of(use)}[0]" in verdict.failure.message


@pytest.mark.parametrize("env", ["CartPole-v1", "CliffWalking-v1", "Taxi-v4"])
def test_prompts_of_shipped_environments_are_short(env):
    problem = shipped_problem(env, 2000)
    program = half_right(env, problem)
    for move, most in (
        (Move(GENERATE), 2500),
        (Move(IMPROVE, 0, program, problem.judge(program)), 3600),
    ):
        text = "\n".join(message.content for message in problem.messages(move))
        assert 1000 < estimated_tokens(text) <= most
