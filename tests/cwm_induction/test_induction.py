"""The induction backend: its answers, and the parts of its programs."""

import math
import re
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import cwm_induction
from cwm_cli.commands.recording import record
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import space_of
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import AccuracyMetric, evaluate
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import FIX, GENERATE, IMPROVE, Move, Request, Verdict
from cwm_cli.search.reading import extract_program
from cwm_cli.worlds import ProgramModel
from cwm_gymnasium import cwm_environments
from cwm_induction.attempts import unchanged
from cwm_induction.backend import Induction
from cwm_induction.continuous.regression import snapped
from cwm_induction.rules import Feature, learn_rule
from cwm_induction.writing.rounding import simplest_between, whole_degrees_between
from cwm_induction.writing.statements import (
    EmissionError,
    ProgramDraft,
    Statement,
    check_names,
    ordered,
)

FINITE = st.floats(-1e6, 1e6, allow_nan=False)


@pytest.fixture(scope="module")
def pendulum():
    return record(cwm_environments()["Pendulum-v1"](), policy="random")


def problem(data, sandbox):
    return WorldModelProblem("", data.train, sandbox, AccuracyMetric.of(data.train))


GENERATE = Move(GENERATE)


def answer(data, sandbox, move=GENERATE, seed=0, **options):
    return Induction(**options).complete(Request((), seed, move, problem(data, sandbox))).text


class TestBackend:
    def test_the_same_request_gets_the_same_text(self, pendulum, sandbox):
        assert answer(pendulum, sandbox, seed=5) == answer(pendulum, sandbox, seed=5)

    def test_the_answer_says_what_was_found_before_one_fenced_program(self, pendulum, sandbox):
        text = answer(pendulum, sandbox)
        assert text.startswith("This program predicts 100 % of the ")
        assert text.count("```") == 2
        assert extract_program(text).startswith("import numpy as np")

    def test_the_docstring_reports_how_often_the_reward_is_right(self, pendulum, sandbox):
        rewards = pendulum.columns["rewards"].copy()
        rewards[::150] += np.sqrt(np.arange(2, 2 + len(rewards[::150])))
        data = replace(pendulum, columns={**pendulum.columns, "rewards": rewards})
        program = " ".join(answer(data, sandbox).split())
        [claimed] = re.findall(r"\(reward: ([0-9.]+) %\)", program)
        assert 97 < float(claimed) < 100
        assert "reward was found exactly" not in program

    def test_it_writes_nothing_but_world_models(self):
        with pytest.raises(CwmError, match="choose a language model with --model"):
            Induction().complete(Request((), 0, Move(GENERATE), object()))

    def test_it_refuses_a_model(self):
        with pytest.raises(CwmError, match="leave out --model"):
            Induction(model="openai/gpt-5")

    def test_it_costs_nothing(self, pendulum, sandbox):
        request = Request((), 0, Move(GENERATE), problem(pendulum, sandbox))
        assert Induction().worst_cost(request) == 0.0

    def test_improving_mends_the_part_that_is_wrong(self, pendulum, sandbox):
        right = extract_program(answer(pendulum, sandbox))
        wrong = right.replace("0.75 * np.sin", "0.5 * np.sin")
        assert wrong != right
        task = problem(pendulum, sandbox)
        move = Move(IMPROVE, 0, wrong, task.judge(wrong))
        assert task.judge(extract_program(answer(pendulum, sandbox, move))).solved

    def test_improving_never_returns_a_worse_program(self, pendulum, sandbox):
        program, task = extract_program(answer(pendulum, sandbox)), problem(pendulum, sandbox)
        move = Move(IMPROVE, 0, program, task.judge(program))
        assert task.judge(extract_program(answer(pendulum, sandbox, move))).solved

    @pytest.mark.slow
    def test_fixing_replaces_what_the_failing_line_computes(self, pendulum, sandbox):
        program = extract_program(answer(pendulum, sandbox))
        broken = program.replace("x2_next = min(", "x2_next = missing + min(")
        line = broken[: broken.index("missing")].count("\n") + 1
        failure = Failure(kind="step_error", message="missing", line=line)
        move = Move(FIX, 0, broken, Verdict(score=0.0, failure=failure))
        fixed = extract_program(answer(pendulum, sandbox, move))
        found = evaluate(
            ProgramModel(fixed, sandbox), pendulum.test, AccuracyMetric.of(pendulum.train)
        )
        assert found.failure is None
        assert "missing" not in fixed

    def test_work_that_is_cut_short_says_so(self, pendulum, sandbox):
        text = answer(pendulum, sandbox, seconds=0.0)
        assert "The search reached its time limit" in text
        assert "class Environment" in text


SPACES = {
    "dict": gym.spaces.Dict(
        {"place": gym.spaces.Box(-1, 1, (2,)), "mode": gym.spaces.Discrete(3, seed=0)}, seed=0
    ),
    "mixed tuple": gym.spaces.Tuple((gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(3)), seed=0),
    "text": gym.spaces.Text(5, seed=0),
    "box": gym.spaces.Box(-1, 1, (3,), seed=0),
    "number": gym.spaces.Box(-1, 1, (), seed=0),
    "counts": gym.spaces.MultiDiscrete([3, 4], seed=0),
}
SLOWER = "mixed tuple", "dict", "counts"


@pytest.mark.parametrize("rows", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 40))])
@pytest.mark.parametrize(
    "space", [pytest.param(s, marks=pytest.mark.slow if s in SLOWER else ()) for s in SPACES]
)
def test_noise_of_any_space_still_gets_a_program_that_runs(space, rows, sandbox):
    observations, actions = SPACES[space], gym.spaces.Discrete(2, seed=0)
    transitions = [
        Transition(
            observations.sample(),
            actions.sample(),
            observations.sample(),
            n % 3,
            n % 7 == 6,
            episode=n // 8,
        )
        for n in range(rows)
    ]
    data = Dataset.of(
        transitions, observation_space=space_of(observations), action_space=space_of(actions)
    )
    program = extract_program(answer(data, sandbox))
    assert evaluate(ProgramModel(program, sandbox), data, AccuracyMetric.of(data)).failure is None


def test_nothing_changes_in_the_fallback(pendulum, sandbox):
    metric = AccuracyMetric.of(pendulum.train)
    found = evaluate(ProgramModel(unchanged(pendulum.train), sandbox), pendulum.test, metric)
    assert found.failure is None
    assert found.score.accuracy == pytest.approx(found.score.floor, abs=0.01)


class TestEmission:
    def test_statements_are_put_in_order(self):
        statements = [Statement("c = a + b"), Statement("b = a + 1"), Statement("a = 1")]
        assert [s.text for s in ordered(statements)] == ["a = 1", "b = a + 1", "c = a + b"]

    def test_a_circle_of_statements_is_refused(self):
        with pytest.raises(EmissionError, match="in a circle: a, b"):
            ordered([Statement("a = b"), Statement("b = a")])

    def test_a_name_that_nothing_sets_is_refused(self):
        with pytest.raises(EmissionError, match="nothing sets speed"):
            check_names([Statement("a = speed + 1")], (), ["a"])

    def test_a_name_that_only_one_branch_sets_is_refused(self):
        statements = [Statement("a = 1"), Statement("if a > 0:\n    b = 1")]
        with pytest.raises(EmissionError, match="nothing sets b"):
            check_names(statements, (), ["b"])

    def test_a_loop_may_go_on_from_what_came_before_it(self):
        loop = Statement("q = start\nfor part in range(2):\n    q = q + part")
        assert loop.reads - {"range"} == {"start"}
        assert Statement("q += 1").reads == {"q"}

    def test_what_no_result_needs_is_left_out(self):
        program = ProgramDraft(["Summary."], "np.array([x])", (1,))
        program.constant("UNUSED", "1.0")
        program.constant("STEP", "2.0")
        for text in ("x = observation[0] + STEP", "idle = 1", "reward = x", "terminated = False"):
            program.statements.append(Statement(text))
        text = program.text()
        assert "idle" not in text
        assert "UNUSED" not in text
        assert "STEP = 2.0" in text

    def test_two_numbers_never_share_a_name(self):
        program = ProgramDraft(["Summary."], "np.array([x])", (1,))
        assert program.constant("LIMIT", "1.0") == "LIMIT"
        assert program.constant("LIMIT", "2.0") == "LIMIT_2"
        assert program.constant("LIMIT", "1.0") == "LIMIT"


class TestNumbers:
    @given(FINITE, FINITE)
    def test_the_simplest_number_lies_strictly_between(self, low, high):
        assume(high - low > 1e-6)
        assert low < simplest_between(low, high) < high

    @given(st.integers(-99, 99).filter(bool), st.integers(-3, 3), st.floats(0.001, 0.009))
    def test_a_short_decimal_is_found_in_a_gap_around_it(self, digits, exponent, share):
        number = float(f"{digits}e{exponent}")
        gap = share * abs(number)
        found = simplest_between(number - gap, number + gap)
        assert len(repr(found).strip("-0.").replace(".", "")) <= len(str(abs(digits))) + 4
        assert abs(found - number) < gap

    @pytest.mark.parametrize(
        ("low", "high", "expected"),
        [(0.18, 0.213, 0.2), (-1.04, -0.97, -1.0), (0.0031, 0.0042, 0.004), (-0.1, 0.2, 0.0)],
    )
    def test_few_digits_are_preferred(self, low, high, expected):
        assert simplest_between(low, high) == expected

    @given(st.integers(-180, 180), st.floats(1e-4, 0.008))
    def test_whole_degrees_are_found_in_a_gap_around_them(self, degrees, gap):
        angle = math.radians(degrees)
        assert whole_degrees_between(angle - gap, angle + gap) == degrees

    def test_a_gap_without_whole_degrees_has_none(self):
        assert whole_degrees_between(0.2095, 0.2100) is None

    @given(st.lists(st.integers(-500, 500).filter(bool), min_size=1, max_size=3))
    def test_short_weights_are_recovered_from_rounded_data(self, digits):
        weights = np.array(digits) / 1000
        matrix = np.random.default_rng(0).normal(size=(60, len(weights)))
        target = (matrix @ weights).astype(np.float32).astype(float)
        assert snapped(matrix / 1e-5, target / 1e-5).tolist() == weights.tolist()


class TestRules:
    values = np.array([-0.4, -0.1, 0.0, 0.1, 0.19, 0.212, 0.3, 0.5])

    def test_threshold_is_the_simplest_number_in_the_gap(self):
        rule = learn_rule([Feature("x", self.values)], self.values > 0.2)
        assert rule.text() == "x > 0.2"

    def test_whole_degrees_are_preferred_for_angles(self):
        angle = Feature("x", np.append(self.values, 0.205), degrees=True)
        rule = learn_rule([angle], angle.values > 0.2094)
        assert rule.text() == "x > np.radians(12)"

    @given(st.sets(st.integers(-9999, 9999), min_size=8, max_size=20), st.floats(0.2, 0.8))
    def test_one_threshold_is_learned_exactly(self, numbers, share):
        values = np.array(sorted(numbers)) / 1000
        wanted = np.arange(len(values)) >= share * len(values)
        rule = learn_rule([Feature("x", values)], wanted)
        assert rule.holds(len(values)).tolist() == wanted.tolist()

    def test_two_conditions_are_joined(self):
        x, y = np.meshgrid(np.linspace(-1, 1, 21), np.linspace(-1, 1, 21))
        features = [Feature("x", x.ravel()), Feature("y", y.ravel())]
        wanted = (features[0].values > 0.52) & (features[1].values > 0.31)
        rule = learn_rule(features, wanted)
        assert rule.holds(wanted.size).tolist() == wanted.tolist()
        assert " and " in rule.text()


def test_no_environment_is_recognised():
    """No id, name or constant of a known system stands in the sources."""
    folder = Path(cwm_induction.__file__).parent
    files = {*folder.rglob("*.py")} - {folder / "command.py"}  # its help names one as an example
    text = "\n".join(path.read_text() for path in sorted(files))
    names = (
        "cart ?pole|mountain ?car|pendulum|acrobot|taxi|frozen ?lake|cliff|blackjack|reacher|hopper"
    )
    assert not re.search(names, text, re.IGNORECASE)
    assert not re.search(r"pi ?/ ?15|0\.2094|0\.4188|\b9\.8\b|0\.0025|15 ?\* ?pi", text)
