"""Constants of a program: their spans in its text, their fit, and the limits of the data."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

import cwm_cli
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import AccuracyMetric
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.search.contracts import Move, Node, RefinementTask, Usage, Verdict
from cwm_induction.refining.calibration import Calibrate
from cwm_induction.refining.constants import (
    ConstantKind,
    find_choices,
    find_constants,
    format_number,
    replace_spans,
    simplest,
)
from cwm_induction.refining.variants import VariantsJob, predict_variants
from folders import ROOT, WORLD_MODELS
from recordings import MOVES, POINT

PROGRAMS = WORLD_MODELS
DATA = ROOT / "data" / "cwm_data"

SWING = """
import math


class Environment:
    PARAMETERS = {{"gravity": {gravity}, "drag": {drag}, "step": {step}, "brake": 3.0}}
    CHOICES = {{"integrator": {ways}}}
    LIMIT = {limit}

    def set_state(self, observation):
        self.angle, self.speed = map(float, observation)

    def step(self, action):
        p = self.PARAMETERS
        # the push of either way: 0.7
        push = {push} if action == 1 else -{push}
        twist = -p["gravity"] * math.sin(self.angle) - p["drag"] * self.speed + push
        if self.angle > 50:
            twist -= p["brake"]
        if self.CHOICES["integrator"][0] == "euler":
            self.angle += p["step"] * self.speed
            self.speed += p["step"] * twist
        else:
            self.speed += p["step"] * twist
            self.angle += p["step"] * self.speed
        return [self.angle, self.speed], -self.angle**2, abs(self.angle) > self.LIMIT
"""

TRUE = {"gravity": 9.8, "drag": 0.31, "step": 0.05, "limit": 1.5, "push": 0.7}
WAYS = '["semi-implicit", "euler"]'


def swing(ways=WAYS, **numbers):
    """Write a pendulum with some numbers other than the true ones."""
    return SWING.format(ways=ways, **(TRUE | numbers))


OFF = {"gravity": 8.1, "drag": 0.36, "step": 0.06, "limit": 1.2, "push": 0.85}


@pytest.fixture(scope="module")
def swings():
    """Episodes of the true pendulum."""
    names = {}
    exec(swing(), names)
    rng, rows = np.random.default_rng(0), []
    for episode in range(10):
        state, model, end = rng.uniform(-1, 1, 2) * (1, 5), names["Environment"](), False
        while not end and sum(row.episode == episode for row in rows) < 12:
            model.set_state(state)
            action = int(rng.integers(2))
            after, reward, end = model.step(action)
            rows.append(Transition(state, action, after, reward, end, False, episode))
            state = np.array(after)
    return Dataset.of(rows, observation_space=POINT, action_space=MOVES)


CART = """
class Environment:
    PARAMETERS = {{"step": {step}, "force": {force}, "mass": {mass}, "drag": {drag}}}

    def set_state(self, observation):
        self.x, self.v = map(float, observation)

    def step(self, action):
        p = self.PARAMETERS
        push = (2 * action - 1) * p["force"] / p["mass"]
        self.v += p["step"] * (push - p["drag"] * self.v)
        self.x += p["step"] * self.v
        return [self.x, self.v], 0.0, False
"""
CART_TRUE = {"step": 1 / 30, "force": 3.0, "mass": 2.0, "drag": 0.31}
CART_OFF = {"step": 0.04, "force": 2.5, "mass": 1.0, "drag": 0.25}


def cart(count, noise=0.0):
    """Return steps of the true cart from random states, with noise in the velocity."""
    names = {}
    exec(CART.format(**CART_TRUE), names)
    rng, rows = np.random.default_rng(0), []
    for episode in range(count):
        model, state, action = names["Environment"](), rng.uniform(-2, 2, 2), int(rng.integers(2))
        model.set_state(state)
        (_, speed), reward, end = model.step(action)
        speed += noise * rng.standard_normal()
        after = np.array([state[0] + CART_TRUE["step"] * speed, speed])
        rows.append(Transition(state, action, after, reward, end, False, episode))
    return Dataset.of(rows, observation_space=POINT, action_space=MOVES)


def node(program):
    """Put a program into a judged node."""
    return Node(0, 0, -1, "generate", program, Verdict(score=0.4), "", Usage())


class TestConstants:
    def test_constants_are_found_with_their_names(self):
        program = (
            "import math\nRATE = 0.25\nSIZES = [1.5, {'deep': 2.5}]\n"
            "class Environment:\n"
            "    PARAMETERS = {'mass': 2, 'offset': 0}\n"
            "    LIMIT = 12 * 2 * math.pi / 360\n"
            "    def __init__(self, gravity=9.8):\n        self.length = 0.5\n"
            "    def step(self, action):\n"
            "        é = 'ß'; x = self.x ** 3.0 + y[7] + 1.25 * z\n"
            "        for _ in range(5):\n            w = -3.5 * x + 2.0 * math.pi\n"
            "        return x, 1.0 if x > 30 else 0.0\n"
        )
        found = {each.name: each for each in find_constants(program)}
        assert {name for name, each in found.items() if each.kind == ConstantKind.DECLARED} == {
            "mass",
            "offset",
        }
        named = {
            name: each.value for name, each in found.items() if each.kind == ConstantKind.NAMED
        }
        assert named == {
            "RATE": 0.25,
            "SIZES[0]": 1.5,
            "SIZES[1][deep]": 2.5,
            "LIMIT": pytest.approx(math.radians(12)),
            "gravity": 9.8,
            "length": 0.5,
            "1.25 in line 10": 1.25,
            "-3.5 in line 12": -3.5,
        }
        last = [each.value for each in found.values() if each.kind == ConstantKind.LITERAL]
        assert sorted(last) == [1.0, 30.0]

    def test_only_the_characters_of_a_constant_change(self):
        program = swing()
        texts = [(each.span, format_number(each.value * 2)) for each in find_constants(program)]
        doubled = replace_spans(program, texts)
        assert [
            each.value for each in find_constants(doubled) if each.kind == ConstantKind.DECLARED
        ] == [
            19.6,
            0.62,
            0.1,
            6.0,
        ]
        bare = r"-?\d+\.?\d*"
        assert re.sub(bare, "", doubled) == re.sub(bare, "", program)

    def test_the_chosen_option_is_written_first(self):
        program = swing()
        [choice] = find_choices(program)
        assert choice.options == ('"semi-implicit"', '"euler"')
        assert '["euler", "semi-implicit"]' in replace_spans(
            program, [(choice.span, choice.text(1))]
        )

    @pytest.mark.parametrize("text", ["", "def f(:", "x = " + "(" * 500, "x = 9 ** 9 ** 9"])
    def test_a_text_without_constants_has_none(self, text):
        assert find_constants(text) == []

    def test_the_simplest_number_is_on_the_coarsest_grid(self):
        cases = {
            (2.398, 2.46, 2.9): 2.4,
            (0.2087, 0.2112, 0.18): math.radians(12),
            (12.51, 12.62, 10): 4 * math.pi,
            (0.4999, 0.5001, 0.4): 0.5,
            (-1.2001, -1.1999, -1.0): -1.2,
            (-0.001, 0.002, 0.01): 0.0,
            (1.0, 2.0, 1.7): 1.7,
            (1 / 30 - 1e-9, 1 / 30 + 1e-9, 0.04): 1 / 30,
            (9.8 - 1e-9, 9.8 + 1e-9, 9.0): 9.8,
            (0.0333, 0.0334, 0.04): 0.0333,
        }
        for (low, high, was), wanted in cases.items():
            assert simplest(low, high, was) == pytest.approx(wanted), (low, high)

    def test_a_fraction_is_written_as_one_and_a_short_decimal_is_not(self):
        declared, literal = find_constants(
            "class E:\n    PARAMETERS = {'step': 0.02}\nx = y + 1.5 * z\n"
        )
        assert [declared.text(value) for value in (1 / 30, 0.02, 0.0333)] == [
            "1 / 30",
            "0.02",
            "0.0333",
        ]
        assert literal.text(2 / 3) == "(2 / 3)"


class TestFit:
    @pytest.mark.slow
    def test_wrong_constants_and_a_wrong_choice_are_corrected(self, sandbox, swings):
        program = swing(ways='["euler", "semi-implicit"]', **OFF)
        found = Calibrate().fit(program, swings, sandbox)
        assert (found.wrong_before, found.wrong, found.stopped) == (len(swings), 0, "")
        fitted = {each.name: each.value for each in find_constants(found.program)}
        for name in ("gravity", "drag", "step"):
            assert fitted[name] == pytest.approx(TRUE[name], rel=1e-6)
        assert 'CHOICES = {"integrator": ["semi-implicit", "euler"]}' in found.program
        assert "# the push of either way: 0.7\n" in found.program
        assert "0.31, " in found.program
        assert "push = 0.7 if action == 1 else -0.7  # fitted to the data\n" in found.program
        assert "brake" in found.unidentified
        assert "Not determined by these rows: brake" in found.findings
        assert "gravity 8.1 -> 9.8" in found.findings

    def test_only_one_constant_of_a_ratio_is_fitted(self, sandbox):
        rows = cart(200)
        found = Calibrate().fit(CART.format(**CART_OFF), rows, sandbox)
        assert found.wrong == 0
        assert '"step": 1 / 30, "force": 1.5, "mass": 1.0, "drag": 0.31}' in found.program
        assert found.unidentified == ("mass",)
        assert "Not determined by these rows: mass" in found.findings

    @pytest.mark.slow
    def test_noisy_constants_are_rounded_within_two_standard_errors(self, sandbox):
        rows = cart(200, noise=0.01)
        found = Calibrate().fit(CART.format(**CART_OFF), rows, sandbox)
        fitted = {each.name: each.value for each in find_constants(found.program)}
        assert fitted["step"] == pytest.approx(1 / 30, rel=0.01)
        assert fitted["mass"] == 1.0
        assert fitted["force"] == 1.5
        assert fitted["drag"] == pytest.approx(0.31, abs=0.04)  # standard error about 0.015

    @pytest.mark.slow
    def test_remaining_errors_of_a_missing_term_are_reported(self, sandbox, swings):
        columns = dict(swings.columns)
        columns["next_observations"] = columns["next_observations"].copy()
        columns["next_observations"][:, 1] += 0.3 * columns["observations"][:, 0] ** 2
        rows = replace(swings, columns=columns)
        found = Calibrate(calibrate_steps=8_000).fit(swing(), rows, sandbox)
        assert found.wrong > len(rows) / 2
        assert found.floor["observation[1]"] > 100
        assert "stopped after 8,000 steps" in found.findings
        assert "Still wrong are" in found.findings
        assert "observation[1] in " in found.findings
        whole = replace(found, stopped="").findings
        assert "The formula lacks a term." in whole
        assert "observation[1]" in whole.partition("median error")[2]

    @pytest.mark.parametrize(
        "program",
        [
            swing(),
            "class Environment:\n"
            "    def set_state(self, o):\n        self.o = o\n"
            "    def step(self, a):\n        return self.o, 0, False\n",
            swing() + "\nraise ValueError(0.25)\n",
            "no program at all",
        ],
        ids=["right", "without numbers", "broken", "no python"],
    )
    def test_nothing_to_fit(self, sandbox, swings, program):
        assert Calibrate().fit(program, swings, sandbox) is None

    def test_a_limit_stops_a_fit_and_keeps_its_result(self, sandbox, swings):
        found = Calibrate(calibrate_steps=3000).fit(swing(**OFF), swings, sandbox)
        assert found.stopped == "3,000 steps"
        assert found.steps < 3000 + 20 * len(swings)


class TestVariants:
    def test_a_process_gets_no_answers_and_no_consecutive_rows(self, swings, monkeypatch):
        jobs = []
        with Sandbox() as sandbox:
            run = sandbox.run_apart
            monkeypatch.setattr(
                sandbox,
                "run_apart",
                lambda sides, limits: (
                    jobs.extend(job for side in sides for job in side) or run(sides, limits)
                ),
            )
            [answers] = predict_variants(sandbox, [swing()], swings)
        assert np.allclose(
            answers.columns["next_observations"], swings.columns["next_observations"]
        )
        assert all(isinstance(job, VariantsJob) for job in jobs)
        for job in jobs:
            assert set(job.columns) == {"observations", "actions"}
            seen = {row.tobytes() for row in job.columns["observations"]}
            followed = swings.columns["next_observations"]
            own = [row.tobytes() in seen for row in swings.columns["observations"]]
            assert not any(row.tobytes() in seen for row in followed[own])

    @pytest.mark.slow
    def test_a_variant_that_hangs_or_raises_affects_no_other(self, swings):
        hang = "\n\ndef wait():\n    while True:\n        pass\n"
        versions = [swing(), swing() + hang + "wait()\n", "1 / 0", swing(gravity=1.0)]
        with Sandbox(Limits(stall_seconds=0.3)) as sandbox:
            answers = predict_variants(sandbox, versions, swings)
        assert [bool(each.failed.any()) for each in answers] == [False, True, True, False]
        assert not np.allclose(answers[3].columns["rewards"], swings.columns["rewards"])


class TestRefiner:
    @pytest.mark.slow
    def test_hidden_rows_do_not_change_the_refined_program(self, sandbox, swings):
        columns = {name: column.copy() for name, column in swings.columns.items()}
        columns["next_observations"][~swings.fitted] += 7
        columns["rewards"][~swings.fitted] -= 3
        found = []
        for rows in (swings, replace(swings, columns=columns)):
            problem = WorldModelProblem("A swing.", rows, sandbox, AccuracyMetric.of(rows))
            found.append(Calibrate().refine(RefinementTask(problem, node(swing(**OFF)))))
        assert found[0] == found[1]
        problem = WorldModelProblem("A swing.", swings, sandbox, AccuracyMetric.of(swings))
        assert problem.judge(found[0].candidate).score == 1.0
        assert "are right in every part" in found[0].findings

    def test_other_problems_are_not_refined(self):
        assert Calibrate().refine(RefinementTask(object(), node(swing()))) is None


@pytest.mark.parametrize(("feedback", "invited"), [("full", True), ("paper", False)])
def test_prompts_ask_for_declared_constants(sandbox, swings, feedback, invited):
    metric = AccuracyMetric.of(swings)
    problem = WorldModelProblem("A swing.", swings, sandbox, metric, feedback=feedback)
    asked = problem.messages(Move("generate"))[-1].content
    assert ('PARAMETERS = {"gravity": 9.8}' in asked) == invited


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "file", "old", "new"),
    [
        ("Pendulum-v1", "pendulum_math", "10.0, 1.0, 1.0", "8.0, 1.1, 0.9"),
        ("Acrobot-v1", "acrobot_rk4_function", "LINK_MASS_2 = 1.0", "LINK_MASS_2 = 1.2"),
    ],
)
def test_the_command_fits_a_known_system(cwm, tmp_path, env, file, old, new):
    program = (PROGRAMS / f"{file}.py").read_text()
    assert old in program
    (cwm.folder / "off.py").write_text(program.replace(old, new))
    words = ["off.py", "--env", env, "--dataset", str(DATA / f"{env}.npz")]
    done = cwm.inside("calibrate", *words, "--output", "fitted.py", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["before"]["test"]["accuracy"] < 0.9
    assert result["after"]["test"]["accuracy"] == 1.0
    assert (cwm.folder / "fitted.py").read_text() == result["program"]
    assert new not in result["program"]


def test_user_errors_are_one_line(swings, tmp_path):
    draws = "class Environment:\n    def step(self, action):\n        return self.rng.normal()"
    with pytest.raises(CwmError, match="is a program with chance"):
        cwm_cli.calibrate("\n" + draws, env="CartPole-v1", dataset=DATA / "CartPole-v1.npz")
    with pytest.raises(CwmError, match=r"does not run \(.*\): fix it first"):
        cwm_cli.calibrate("\n1 / 0", env="CartPole-v1", dataset=DATA / "CartPole-v1.npz")
    with pytest.raises(CwmError, match="calibrate_second"):
        cwm_cli.calibrate("\npass", env="CartPole-v1", options=["calibrate_second=3"])
