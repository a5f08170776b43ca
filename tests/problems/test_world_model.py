"""The problem of writing a world model: verdicts on programs, and the prompts for them."""

import re
from dataclasses import replace

import numpy as np
import pytest

from cwm_cli.data.spaces import Space
from cwm_cli.envs.bodies import Body
from cwm_cli.evaluation import AccuracyMetric, PaperMetric, evaluate, log_error
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import FIX, GENERATE, IMPROVE, Message, Move, Verdict
from cwm_cli.worlds import ProgramModel
from cwm_cli.worlds.contract import component_names, describe
from recordings import FROZEN_LAKE, PENDULUM, cartpole, problem, record, said


class TestVerdicts:
    def test_a_right_program_has_nothing_to_improve(self, poles, sandbox):
        verdict = problem(poles, sandbox).judge(cartpole())
        assert verdict == Verdict(
            score=1.0,
            validation=1.0,
            parts={"observation": 1.0, "reward": 1.0, "terminated": 1.0, "exact": 1.0},
            floor=AccuracyMetric.of(poles[0]).floor(poles[0]),
            error=-5.0,
        )

    def test_the_error_falls_long_before_the_score_rises(self, poles, sandbox):
        task = problem(poles, sandbox)
        verdicts = [task.judge(cartpole(gravity=gravity)) for gravity in (5, 9, 9.7, 9.79)]
        errors = [verdict.error for verdict in verdicts]
        assert errors == sorted(errors, reverse=True)
        assert -5 < errors[-1] < errors[0] - 0.5
        assert len({verdict.floor for verdict in verdicts}) == 1
        assert 0 < verdicts[0].normalised < verdicts[0].score

    def test_predictions_that_are_not_finite_have_the_largest_error(self, poles, sandbox):
        data, _ = poles
        shape = data.columns["next_observations"].shape
        for value in (np.nan, np.inf, -np.inf, 1e300):
            answers = {"next_observations": np.full(shape, value), "rewards": np.ones(len(data))}
            assert log_error(answers, data) == 5.0

    def test_environments_without_real_numbers_have_no_error(self, sandbox):
        lake = record("FrozenLake-v1", episodes=3)
        verdict = problem(lake, sandbox).judge(FROZEN_LAKE)
        assert verdict.error is None
        assert verdict.floor > 0

    def test_the_validation_score_is_the_score_on_hidden_episodes(self, poles, sandbox):
        data, _ = poles
        task = problem(poles, sandbox)
        hidden = data[~data.fitted]
        alone = evaluate(ProgramModel(cartpole(gravity=5), sandbox), hidden, task.metric)
        assert task.judge(cartpole(gravity=5)).validation == alone.score.accuracy

    def test_the_validation_score_is_the_score_without_hidden_episodes(self, sandbox):
        recorded = record("CartPole-v1", episodes=1)
        verdict = problem(recorded, sandbox).judge(cartpole(gravity=5))
        assert 0 < verdict.score == verdict.validation < 1

    def test_a_program_that_raises_scores_zero_with_its_error(self, poles, sandbox):
        verdict = problem(poles, sandbox).judge(cartpole(position="1 / 0"))
        assert (verdict.score, verdict.validation, verdict.failure.kind) == (0, 0, "step_error")

    def test_a_program_that_memorises_rows_is_reported_without_hidden_values(self, poles, sandbox):
        data, _ = poles
        shown = data[data.fitted]
        keys = [tuple(row) for row in shown.columns["observations"].astype(float).tolist()]
        memory = f"KNOWN = set({keys!r})\n" + cartpole().replace(
            "moved = x", "moved = (0 if tuple(self.state.tolist()) in KNOWN else 9) + x"
        )
        message = said(poles, memory, sandbox)
        hidden = data[~data.fitted]
        wrong = int((~hidden.columns["terminations"]).sum())
        assert f"{wrong} of {len(hidden)} transitions of other episodes" in message
        assert "Cart Position" in message
        decimals = set(re.findall(r"-?\d+\.\d+", message))
        assert not decimals & {f"{x:.4g}" for x in hidden.columns["observations"].flat}

    def test_the_report_explains_a_loss_that_only_the_paper_score_has(self, poles, sandbox):
        data, documentation = record("Pendulum-v1", episodes=3, limit=20)
        right = PENDULUM.replace("+ 0.1 * speed**2", "+ 0.1 * speed**2 + 0.001 * torque**2")
        right = right.replace(
            "* 0.05\n        angle", "* 0.05\n        speed = min(8, max(-8, speed))\n        angle"
        )
        task = WorldModelProblem(documentation, data, sandbox, PaperMetric.of(data))
        verdict = task.judge(right)
        assert verdict.parts["exact"] == 1.0
        assert verdict.score < 0.7
        assert "float32" in verdict.failure.message


class TestPrompts:
    wrong = Verdict(score=0.5, failure=Failure(kind="mismatch", message="THE REPORT"))
    raised = Verdict(
        score=0.0,
        failure=Failure(
            kind="step_error", message="NameError: GRAVITY\nat line 2: print(GRAVITY)", line=2
        ),
    )

    def content(self, poles, **move):
        task = problem(poles, sandbox=None)
        system, user = task.messages(Move(**move))
        assert (system.role, user.role) == ("system", "user")
        assert not re.search(r"\$[a-z]{2}", user.content)
        assert "Pole Angular Velocity" in user.content
        assert "a numpy float64 array of shape (4,)" in user.content
        assert "an int from 0 to 1" in user.content
        return user.content

    def test_generate_describes_environment_and_interface(self, poles):
        text = self.content(poles, action=GENERATE)
        assert "def set_state(self, observation)" in text
        assert "exactly these lines" not in text

    def test_prompts_name_the_modules_that_programs_may_import(self, poles):
        usual, more = (
            replace(problem(poles, sandbox=None), tools=tools)
            .messages(Move(action=GENERATE))[1]
            .content
            for tools in ((), ("mujoco", "scipy.linalg"))
        )
        assert "Available: numpy and the modules of the standard library" in usual
        assert (
            "Available: numpy, mujoco, scipy.linalg and the modules of the standard library" in more
        )
        assert "Write the text of any data file that a module needs into the program" in more
        assert "Write the text" not in usual

    def test_prompts_show_a_given_body(self, poles):
        task = replace(problem(poles, sandbox=None), body=Body("<mujoco/>", "hull.xml"))
        assert "```xml\n<mujoco/>\n```" in task.messages(Move(action=GENERATE))[1].content

    def test_generate_asks_to_continue_a_prefix(self, poles):
        text = self.content(poles, action=GENERATE, prefix="import math\nA = {1: '$b'}\n")
        assert "must begin with exactly these lines" in text
        assert "```python\nimport math\nA = {1: '$b'}\n```" in text

    def test_published_prompts_start_the_answer_and_ask_for_no_steps(self, poles):
        task = replace(problem(poles, sandbox=None), prefill=True)
        for prefix, begun in (("", "```python"), ("import math\nA = 1\n", None)):
            system, user, assistant = task.messages(Move(GENERATE, prefix=prefix))
            assert (system.role, user.role, assistant.role) == ("system", "user", "assistant")
            assert assistant.content == (begun or "```python\nimport math\nA = 1")
            assert "step by step" not in user.content
            assert "must begin" not in user.content
        fix = task.messages(Move(FIX, 0, "A = 1\n", self.raised))
        assert fix[-1] == Message(role="assistant", content="1. **Explanation**:")
        assert len(task.messages(Move(IMPROVE, 0, "A = 1\n", self.wrong))) == 2

    def test_an_answer_continues_its_beginning_or_repeats_it(self, poles):
        task, whole = replace(problem(poles, sandbox=None), prefill=True), cartpole().lstrip()
        lines = whole.splitlines(keepends=True)
        for cut in (0, 4, 10, 14):
            prefix, rest = "".join(lines[:cut]), "".join(lines[cut:])
            move = Move(GENERATE, prefix=prefix)
            for text in (rest, f"{rest}```\nThat is all.", f"```python\n{whole}```\n"):
                assert task.read(text, move) == whole

    def test_improve_shows_program_and_feedback(self, poles):
        move = {"action": IMPROVE, "parent": 3, "program": "A = 1\n", "verdict": self.wrong}
        text = self.content(poles, **move)
        assert "```python\nA = 1\n```" in text
        assert "THE REPORT" in text
        parts = ("Explanation", "Location", "Suggestion", "Corrected program")
        assert sorted(parts, key=text.index) == list(parts)

    def test_fix_shows_the_offending_line(self, poles):
        program = "import math\nprint(GRAVITY)\n"
        move = {"action": FIX, "parent": 3, "program": program, "verdict": self.raised}
        text = self.content(poles, **move)
        assert "NameError: GRAVITY\nat line 2: print(GRAVITY)" in text
        parts = ("Explanation", "Suggestion", "Corrected program")
        assert sorted(parts, key=text.index) == list(parts)

    def test_an_answer_without_a_program_can_be_fixed_too(self, poles):
        verdict = Verdict(score=0.0, failure=Failure(kind="no_program", message="no program"))
        text = self.content(poles, action=FIX, parent=0, verdict=verdict)
        assert "the last answer contained no program" in text

    @pytest.mark.parametrize(
        ("space", "words"),
        [
            (Space("discrete", low=(2,), high=(9,)), "an int from 2 to 9"),
            (Space("text", max_length=40), "a str of at most 40 characters"),
            (
                Space("box", "float32", (2,), (-1.0, -1.0), (1.0, 1.0)),
                "a numpy float64 array of shape (2,), each from -1 to 1",
            ),
            (
                Space("multidiscrete", "int64", (2,), (0, 1), (3, 5)),
                "a numpy int64 array of shape (2,), from [0, 1] to [3, 5]",
            ),
            (
                Space("multibinary", "int8", (3,), (0, 0, 0), (1, 1, 1)),
                "a numpy int64 array of shape (3,), each from 0 to 1",
            ),
            (
                Space("box", "float64", (1,), (-np.inf,), (np.inf,)),
                "a numpy float64 array of shape (1,)",
            ),
        ],
    )
    def test_the_types_of_values_are_described(self, space, words):
        assert describe(space) == words
        pair = Space("tuple", children=(space, space))
        assert describe(pair) == f"a tuple of 2 values, each {words}"
        mixed = Space("tuple", children=(space, pair))
        assert describe(mixed) == f"a tuple of 2 values: [0] {words}; [1] {describe(pair)}"
        named = replace(pair, kind="dict", keys=("a", "b"))
        assert describe(named) == f"a dict of 2 values: ['a'] {words}; ['b'] {words}"

    def test_the_names_of_components_are_python_expressions(self):
        board = Space("box", "int64", (1, 2), (0, 0), (5, 5))
        space = Space("dict", keys=("b.c",), children=(Space("tuple", children=(board, board)),))
        names = component_names(space, "observation")
        row = {"b.c": (np.array([[1, 2]]), np.array([[3, 4]]))}
        assert [eval(name, {"observation": row}) for name in names] == [1, 2, 3, 4]


def test_a_prompt_that_is_too_long_loses_its_least_important_parts(sandbox):
    train = record("CartPole-v1", episodes=5)[0]
    described = "A cart with a pole.\n\n" + "\n\n".join(
        f"## Part {n}\nLine.\nMore." for n in range(200)
    )
    problem = WorldModelProblem(described, train, sandbox, AccuracyMetric.of(train))
    program = cartpole(gravity=5)
    verdict = problem.judge(program)
    move = Move(IMPROVE, 0, program, verdict)

    def shortened(room):
        _, user = problem.shorter(move, room)
        return user.content

    whole = "\n".join(message.content for message in problem.messages(move))
    assert shortened(len(whole)) in whole
    lengths = []
    for room in range(len(whole), 0, -500):
        text = shortened(room)
        lengths.append(len(text))
        assert program.strip() in text
        assert "class Environment:\n    def __init__(self): ..." in text
        if "(1) " in text:  # examples go first
            assert "## Part 199" in text
        if "A cart with a pole." not in text:  # and the task goes last
            assert "residual" not in text
    assert lengths == sorted(lengths, reverse=True)
    assert any(
        "## Part 0" in shortened(r) and "## Part 199" not in shortened(r)
        for r in range(9000, 3000, -500)
    )
    assert len(shortened(len(whole) // 2)) <= len(whole) // 2
