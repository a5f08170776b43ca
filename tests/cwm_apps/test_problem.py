"""Coding problems as a search sees them: prompts and verdicts from public tests alone."""

import pytest

from cwm_apps.judging import LIMITS
from cwm_apps.problem import CodingProblem
from cwm_apps.tasks import CodingTask, TaskTest
from cwm_cli.sandbox import Sandbox
from cwm_cli.search.contracts import FIX, GENERATE, IMPROVE, Move

TESTS = tuple(TaskTest(f"{n} {n + 1}\n", f"{2 * n + 1}\n") for n in (1, 20, 300, 4000, 50000))
SUM = CodingTask(id=1, question="Add $two numbers.", difficulty="interview", tests=TESTS)
DOUBLE = CodingTask(
    id=2,
    question="Double a number.",
    difficulty="interview",
    tests=tuple(TaskTest([n], 2 * n) for n in (3, 44, 555, 6666)),
    function="double",
    starter_code="class Solution:\n    def double(self, n: int) -> int:\n",
)
HIDDEN = ("300", "4000", "50000", "555", "6666")

RIGHT = "a, b = map(int, input().split())\nprint(a + b)\n"
HALF = "a, b = map(int, input().split())\nprint(a + b if a < 20 else 0)\n"
BROKEN = "a, b = map(int, inputt().split())\nprint(a + b)\n"


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(LIMITS) as sandbox:
        yield sandbox


def prompt(problem, move):
    messages = problem.messages(move)
    assert [message.role for message in messages] == ["system", "user"]
    return "\n".join(message.content for message in messages)


def after(problem, action, program):
    return prompt(problem, Move(action, 0, program, problem.judge(program)))


def test_score_is_share_of_public_tests_passed(sandbox):
    problem = CodingProblem(SUM, sandbox)
    assert (problem.judge(RIGHT).score, problem.judge(RIGHT).failure) == (1.0, None)
    half = problem.judge(HALF)
    assert (half.score, half.parts, half.is_bug) == (0.5, {"tests": 0.5}, False)
    broken = problem.judge(BROKEN)
    assert (broken.score, broken.is_bug) == (0.0, True)


def test_program_with_memorised_public_tests_gets_full_score(sandbox):
    memory = "print({'1 2': 3, '20 21': 41}[input()])\n"
    assert CodingProblem(SUM, sandbox).judge(memory).solved


def test_empty_program_is_a_fixable_bug(sandbox):
    problem = CodingProblem(SUM, sandbox)
    verdict = problem.judge("")
    assert (verdict.score, verdict.failure.kind) == (0.0, "no_program")
    assert "the last answer contained no program" in after(problem, FIX, "")


@pytest.mark.parametrize("task", [SUM, DOUBLE], ids=["stdin", "function"])
@pytest.mark.parametrize("action", list((GENERATE, IMPROVE, FIX)))
def test_hidden_tests_are_in_no_prompt(sandbox, task, action):
    problem = CodingProblem(task, sandbox)
    for program in ("print(0)", "def double(n): return 0", "oops(", "print(input())"):
        text = after(problem, action, program)
        assert not any(number in text for number in HIDDEN)


def test_generate_prompt_describes_input_and_shows_public_tests(sandbox):
    text = prompt(CodingProblem(SUM, sandbox), Move(GENERATE))
    assert "Add $two numbers." in text
    assert "standard input" in text
    assert "20 21" in text
    assert "4 seconds of CPU time" in text
    assert "Solution" not in text


def test_generate_prompt_names_function_and_starter_code(sandbox):
    text = prompt(CodingProblem(DOUBLE, sandbox), Move(GENERATE))
    assert "`double`" in text
    assert "def double(self, n: int) -> int:" in text
    assert "[44]" in text
    assert "standard input" not in text


def test_generate_prompt_asks_for_program_with_given_first_lines(sandbox):
    problem = CodingProblem(SUM, sandbox)
    assert "must begin" not in prompt(problem, Move(GENERATE))
    text = prompt(problem, Move(GENERATE, 0, RIGHT, None, "import sys\n"))
    assert "must begin with exactly these lines" in text
    assert "```python\nimport sys\n```" in text


def test_published_prompts_ask_without_reasoning_or_for_a_plan(sandbox):
    texts = {
        name: prompt(CodingProblem(SUM, sandbox, prompt=name), Move(GENERATE))
        for name in ("reasoned", "vanilla", "plan-and-solve")
    }
    assert all("Add $two numbers." in text and "standard input" in text for text in texts.values())
    assert ["step by step" in text for text in texts.values()] == [True, False, False]
    assert ["make a plan" in text for text in texts.values()] == [False, False, True]
    assert ["20 21" in text for text in texts.values()] == [True, False, False]
    asked = CodingProblem(SUM, sandbox, prefill=True).messages(
        Move(GENERATE, prefix="import sys\n")
    )
    assert asked[-1].content == "```python\nimport sys"
    assert "step by step" not in asked[1].content


def test_problem_uses_chosen_judging_rules(sandbox):
    guarded = f"if __name__ == '__main__':\n    {RIGHT.replace(chr(10), chr(10) + '    ')}\n"
    unimported = "print(sum(map(int, sys.stdin.read().split())))\n"
    scores = {
        rules: [
            CodingProblem(SUM, sandbox, rules=rules).judge(program).score
            for program in (guarded, unimported)
        ]
        for rules in ("ours", "published")
    }
    assert scores == {"ours": [1.0, 0.0], "published": [0.0, 1.0]}


def test_improve_prompt_shows_first_failing_public_test(sandbox):
    text = after(CodingProblem(SUM, sandbox), IMPROVE, HALF)
    assert "a + b if a < 20" in text
    assert "20 21" in text
    assert "41" in text
    assert "1 2\n" not in text


def test_fix_prompt_shows_error(sandbox):
    text = after(CodingProblem(SUM, sandbox), FIX, BROKEN)
    assert "NameError" in text
    assert "inputt" in text


def test_examples_leave_out_large_tests(sandbox):
    tests = (
        TaskTest("7\n", "8\n"),
        TaskTest("9" * 10**6, "1"),
        TaskTest("5", "5"),
        TaskTest("6", "6"),
    )
    task = CodingTask(id=3, question="?", difficulty="interview", tests=tests)
    text = prompt(CodingProblem(task, sandbox), Move(GENERATE))
    assert "Expected:\n```\n8\n```" in text
    assert len(text) < 5000
