"""What happens to a program that induction has found: spaces, names, remarks, line breaks."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cwm_induction
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.evaluation import AccuracyMetric, unseen
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import FIX, GENERATE, Move, Request, Verdict
from cwm_cli.search.reading import extract_program
from cwm_induction.attempts import (
    EquationAttempt,
    InductionTask,
    UnchangedAttempt,
    attempts,
    held_back,
    proposals,
    real,
)
from cwm_induction.backend import Induction
from cwm_induction.discrete.expressions import bracketed
from cwm_induction.discrete.program_text import returned
from cwm_induction.effort import Effort
from cwm_induction.flattening import Arrangement
from cwm_induction.writing.finishing import (
    broken,
    identifier,
    remarked,
    renamed,
    unnamed,
    unremarked,
)

GEAR = Space("discrete", low=(1,), high=(3,))
SPEED = Space("box", "float64", (2,), (-np.inf,) * 2, (np.inf,) * 2)
CAR = Space("dict", keys=("x0", "gear"), children=(SPEED, Space("tuple", children=(GEAR,))))
PEDALS = Space("discrete", low=(0,), high=(1,))
MAP = Space("multidiscrete", "int64", (2,), (0, 0), (9, 9))


def drive(episodes=10, steps=20):
    """Record a car whose gear decides how fast it goes."""
    rng, rows = np.random.default_rng(0), []
    for episode in range(episodes):
        place, speed = rng.uniform(-1, 1, 2)
        gear = int(rng.integers(1, 4))
        for _ in range(steps):
            action = int(rng.integers(2))
            before = {"x0": np.array([place, speed]), "gear": (gear,)}
            speed = speed + 0.25 * action - 0.125 * speed
            place, gear = place + 0.5 * speed, gear % 3 + 1
            after = {"x0": np.array([place, speed]), "gear": (gear,)}
            rows.append(Transition(before, action, after, place, False, episode=episode))
    return Dataset.of(rows, observation_space=CAR, action_space=PEDALS)


@pytest.fixture(scope="module")
def car():
    return drive()


def problem(data, sandbox, description=""):
    return WorldModelProblem(description, data.train, sandbox, AccuracyMetric.of(data.train))


GENERATE = Move(GENERATE)


def program_for(task, move=GENERATE):
    return extract_program(Induction().complete(Request((), 0, move, task)).text)


class TestSpaces:
    def test_nested_observations_are_predicted_as_the_environment_has_them(self, car, sandbox):
        task = problem(car, sandbox)
        assert task.judge(program_for(task)).score > 0.99

    def test_numbers_are_named_by_the_keys_that_lead_to_them(self, car, sandbox):
        program = program_for(problem(car, sandbox))
        assert "x0_1_next" in program
        assert 'observation["x0"]' in program

    def test_fixing_a_nested_program_gives_one_that_runs(self, car, sandbox):
        task = problem(car, sandbox)
        broken_program = program_for(task).replace("x0_1_next = ", "x0_1_next = missing + ", 1)
        line = broken_program[: broken_program.index("missing")].count("\n") + 1
        failure = Failure(kind="step_error", message="missing", line=line)
        move = Move(FIX, 0, broken_program, Verdict(score=0.0, failure=failure))
        verdict = task.judge(program_for(task, move))
        assert verdict.score > 0.5

    @pytest.mark.parametrize("dtype", ["int64", "float64"])
    def test_numbers_in_a_row_lose_nothing(self, dtype):
        rows = [Transition(np.array([i, 2]), 0, np.array([i + 1, 2]), 0.0, False) for i in range(5)]
        data = Dataset.of(rows, observation_space=MAP, action_space=PEDALS)
        flat = Arrangement.of(data, dtype).flat(data)
        assert flat.columns["observations"].tolist() == data.columns["observations"].tolist()
        assert flat.observation_space.dtype == dtype

    def test_what_is_one_vector_already_stays_the_same_program(self):
        rows = [Transition(np.zeros(2), 0, np.ones(2), 0.0, False)]
        data = Dataset.of(rows, observation_space=SPEED, action_space=PEDALS)
        assert real(data).nested("class Environment: ...") == "class Environment: ..."

    def test_text_gets_the_program_in_which_nothing_changes(self, sandbox):
        rows = [Transition("a", 0, "a", 1.0, False, episode=i) for i in range(9)]
        data = Dataset.of(rows, observation_space=Space("text", max_length=3), action_space=PEDALS)
        assert list(attempts(data)) == [UnchangedAttempt()]
        task = problem(data, sandbox)
        assert task.judge(program_for(task)).score == 1.0

    def test_text_beside_numbers_stays_as_it_is(self, sandbox):
        space = Space("dict", keys=("note", "gear"), children=(Space("text", max_length=3), GEAR))
        rows = [
            Transition(
                {"note": note, "gear": gear}, 0, {"note": note, "gear": gear % 3 + 1}, 0.0, False
            )
            for note in ("a", "b")
            for gear in (1, 2, 3)
        ]
        data = Dataset.of(rows * 3, observation_space=space, action_space=PEDALS)
        task = problem(data, sandbox)
        assert task.judge(program_for(task)).score == 1.0


TABLE = """
| Num | Observation                  | Min  | Max |
|-----|------------------------------|------|-----|
| 0   | position of the car          | -Inf | Inf |
| 1   | velocity of the car (m / s)  | -Inf | Inf |
"""


@pytest.fixture(scope="module")
def flat(car):
    columns = {
        "observations": car.columns["observations.x0"],
        "next_observations": car.columns["next_observations.x0"],
    }
    names = ("actions", "rewards", "terminations", "truncations", "episodes", "split")
    columns |= {name: car.columns[name] for name in names}
    return Dataset(columns, SPEED, PEDALS)


class TestNames:
    def test_the_description_gives_names_and_nothing_else(self, flat, sandbox):
        named = program_for(problem(flat, sandbox, TABLE))
        blank = program_for(problem(flat, sandbox))
        assert "car_velocity_next" in named
        assert unnamed(named).replace("\n", " ").split() == blank.replace("\n", " ").split()
        rows = [sandbox.predict(program, flat).columns for program in (named, blank)]
        for name in rows[0]:
            np.testing.assert_array_equal(rows[0][name], rows[1][name])

    @pytest.mark.parametrize(
        ("text", "name"),
        [
            ("Cart Position", "cart_position"),
            ("angular velocity of the pole on the cart", "pole_angular_velocity"),
            ("`theta1` (rad)", "theta1"),
            ("", ""),
            ("class", ""),
            ("id", ""),
            ("3 bars", ""),
        ],
    )
    def test_descriptions_become_identifiers(self, text, name):
        assert identifier(text) == name

    def test_names_that_clash_are_left_out_all_together(self):
        program = "class A:\n    def f(self):\n        x0 = observation[0]\n        reward = x0\n"
        assert renamed(program, ["reward"]) == program
        assert renamed(program, ["speed"]) == program.replace("x0", "speed")

    def test_names_may_be_exchanged(self):
        program = "x0 = observation[0]\nx1 = observation[1]\nx10 = X0_MIN + x0_next\n"
        assert renamed(program, ["x1", "x0"]) == program  # both are in use


EXPRESSIONS = st.recursive(
    st.sampled_from(["a", "self.some_long_name_of_a_component", "observation[12]", "-0.123456789"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=6).map(" + ".join),
        st.lists(inner, min_size=2, max_size=4).map(lambda parts: f"({' - '.join(parts)})"),
        st.tuples(inner, inner).map(lambda pair: f"np.sin({pair[0]}) * ({pair[1]})"),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}) * 5 + ({pair[1]})"),
        st.tuples(inner, inner).map(lambda pair: f"{pair[0]} and ({pair[1]}) < 3"),
        st.lists(inner, min_size=1, max_size=4).map(lambda parts: f"[{', '.join(parts)}]"),
    ),
    max_leaves=30,
)


class TestText:
    def test_a_remark_can_be_taken_back(self):
        program = 'class Environment:\n    """One."""\n\n    def step(self):\n        pass\n'
        more = remarked(program, "It predicts all.")
        assert '    It predicts all.\n    """' in more
        assert "predicts" not in unremarked(more)
        assert ast.dump(ast.parse(remarked(unremarked(more), "It predicts all."))) == ast.dump(
            ast.parse(more)
        )

    @pytest.mark.slow
    @given(st.lists(st.sampled_from(["a + b", "f(a, b)", "[a, {b: c}]", "a and b"]), min_size=9))
    def test_breaking_lines_changes_no_program(self, parts):
        program = f"value = max({', '.join(parts)}) + {' + '.join(f'({part})' for part in parts)}\n"
        text = broken(program)
        assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(program))
        assert max(map(len, text.splitlines())) <= 96

    @given(EXPRESSIONS, st.sampled_from(["value = {}", "return {}", "if {}:\n        pass"]))
    def test_lines_are_broken_only_where_python_lets_them_be(self, expression, form):
        program = f"def step(self):\n    {form.format(expression)}\n"
        same = ast.dump(ast.parse(program))
        assert ast.dump(ast.parse(broken(program))) == same
        for lines in returned(expression), bracketed("value = ", expression):
            ast.parse("\n".join(["def step(self):", *(f"    {line}" for line in lines)]))

    def test_long_conditions_are_broken_before_or(self):
        condition = " or ".join(f"some_long_variable_{number} > 3" for number in range(6))
        lines = broken(f"if {condition}:\n    pass\n").splitlines()
        assert lines[0] == "if ("
        assert lines[-2:] == ["):", "    pass"]


class TestAttempts:
    @pytest.mark.slow
    def test_two_at_once_are_those_that_one_after_the_other_gives(self, car):
        mask = held_back(car, 0)

        def found(*tries):
            task = InductionTask(car, mask, 0, Effort(800, 60.0))
            return proposals(list(tries), task)

        both = found(EquationAttempt(), UnchangedAttempt())
        [alone] = [
            proposals([EquationAttempt()], InductionTask(car, mask, 0, Effort(400, 60.0)))[0]
        ]
        assert both[0].program == alone.program
        assert both[1].program == found(UnchangedAttempt())[0].program

    def test_whole_trajectories_are_held_back(self, car):
        mask = held_back(car, 3)
        episodes = car.columns["episodes"]
        assert 0 < mask.sum() < len(car) / 2
        assert not set(episodes[mask]) & set(episodes[~mask])

    def test_the_backend_tells_what_it_does(self, car, sandbox):
        told = []
        request = Request((), 0, Move(GENERATE), problem(car, sandbox), tell=told.append)
        Induction().complete(request)
        assert "searching for equations" in told


def test_situations_that_were_never_seen_are_told_apart():
    def data(*starts):
        rows = [Transition(start, 0, start, 0.0, False) for start in starts]
        return Dataset.of(rows, observation_space=GEAR, action_space=PEDALS)

    assert unseen(data(1, 2, 3), data(1, 3)).tolist() == [False, True, False]
    assert unseen(data(1, 2), data(3)).tolist() == [False, False]  # it says nothing about them


def test_no_environment_is_known_by_its_name():
    # Other tests register environments of their own in this process.
    listing = "import gymnasium, minigrid; print(*{s.name for s in gymnasium.registry.values()})"
    listed = subprocess.run([sys.executable, "-c", listing], capture_output=True, check=True)
    names = set(listed.stdout.decode().split())
    folder = Path(cwm_induction.__file__).parent
    code = {*folder.rglob("*.py")} - {folder / "command.py"}  # its help names one as an example
    words = {word for file in code for word in re.findall(r"\w+", file.read_text())}
    assert {"CartPole", "BabyAI-BossLevel"} < names
    assert not names & words
