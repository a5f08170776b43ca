"""Simplification: shorter programs with the same behaviour, and the search that asks for them."""

import json
import random
import textwrap
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cwm_cli.errors import CwmError
from cwm_cli.runs.searches import SearchRun
from cwm_cli.sandbox.failures import Failure
from cwm_cli.search.contracts import (
    GENERATE,
    IMPROVE,
    SIMPLIFY,
    Backend,
    Completion,
    Message,
    Problem,
    Turn,
    Usage,
    Verdict,
)
from cwm_cli.search.loop import Search
from cwm_cli.search.simplification import Simplify, measure, simplify
from cwm_zero_shot.strategy import ZeroShot
from openai_server import OpenAIServer, answer
from recordings import cartpole

SIMPLIFICATIONS = {
    "unreachable statements": ("return x\nprint(x)\nprint(y)", "return x"),
    "a branch that never runs": ("if False:\n    x = 2\nreturn x", "return x"),
    "a branch that always runs": (
        "if True:\n    # twice\n    x = 2 * x\nelse:\n    x = 3\nreturn x",
        "# twice\nx = 2 * x\nreturn x",
    ),
    "an elif that never runs": (
        "if x > y:\n    x = 2\nelif False:\n    x = 3\nelse:\n    x = 4\nreturn x",
        "if x > y:\n    x = 2\nelse:\n    x = 4\nreturn x",
    ),
    "rules with the same end": (
        "if x > 1:\n    return 3\n# again\nif y > 1:\n    return 3\nreturn 4",
        "if x > 1 or y > 1:\n    return 3\nreturn 4",
    ),
    "branches with the same body": (
        "if x > 1:\n    z = 1\nelif y > 1:\n    z = 1\nelse:\n    z = 2\nreturn z",
        "if x > 1 or y > 1:\n    z = 1\nelse:\n    z = 2\nreturn z",
    ),
    "a last rule that changes nothing": (
        "if x > 1:\n    z = 1\nelif y > 1:\n    z = 2\nelse:\n    z = 2\nreturn z",
        "if x > 1:\n    z = 1\nelse:\n    z = 2\nreturn z",
    ),
    "a repeated condition": (
        "if x > 1 and y > 2 and (x > 1):\n    return 1\nreturn 2",
        "if x > 1 and y > 2:\n    return 1\nreturn 2",
    ),
    "an implied condition": (
        "if x > 3 and x >= 1:\n    return 1\nreturn x < 2 or x <= 1",
        "if x > 3:\n    return 1\nreturn x < 2",
    ),
    "a condition that was true before": (
        "if x > 1:\n    return 1\nelif x > 1:\n    return 2\nreturn 3",
        "if x > 1:\n    return 1\nreturn 3",
    ),
    "arithmetic of constants": ("return x + (2 * 3 - 10)", "return x + (-4)"),
    "a variable without a use": ("z = x + 1\nreturn x", "return x"),
    "statements without an effect": (
        "pass\nif x:\n    pass\n    x = 2\nreturn x",
        "if x:\n    x = 2\nreturn x",
    ),
}

KEPT = {
    "calls in conditions": "if print(x) and print(x):\n    return 1\nreturn 2",
    "a rule after another one": "if x > 1:\n    x = 3\nif y > 1:\n    x = 3\nreturn x",
    "an assignment that a later addition reads": "z = 1\nz += x\nreturn x",
    "a fraction whose value is longer": "return x * (1 / 3)",
    "a generator": "return x\nyield y",
    "division by zero": "return x if y else 1 / 0",
}


def function(body):
    return "def step(x, y):\n" + textwrap.indent(body, "    ") + "\n"


def method(body):
    return "class Environment:\n" + textwrap.indent(function(body), "    ")


@pytest.mark.parametrize("name", SIMPLIFICATIONS)
def test_simplification_removes(name):
    before, after = map(method, SIMPLIFICATIONS[name])
    assert simplify(before) == after
    assert measure(after).bits < measure(before).bits


@pytest.mark.parametrize("name", KEPT)
def test_simplification_keeps(name):
    assert simplify(method(KEPT[name])) == method(KEPT[name])


def test_simplification_removes_names_without_a_use_and_keeps_the_others():
    program = '''
import math
import random

# the old limit
OLD = 3
LIMIT = 4


def unused(x):
    return OLD


class Environment:
    """Moves."""

    _GAIN = 2
    WIDTH = 5

    def _unused(self):
        return self._GAIN

    def step(self, action):
        return math.pi * LIMIT
'''
    assert (
        simplify(program)
        == '''import math

LIMIT = 4


class Environment:
    """Moves."""

    WIDTH = 5

    def step(self, action):
        return math.pi * LIMIT
'''
    )
    looked_up = program.replace("return math.pi * LIMIT", "return globals()['OLD']")
    assert "OLD = 3" in simplify(looked_up)


@pytest.mark.parametrize("text", ["", "def step(:", "\0", "(" * 500])
def test_a_text_that_is_no_program_stays_and_has_the_length_of_its_characters(text):
    assert simplify(text) == text
    assert measure(text).bits == 8 * len(text)


def random_block(draw, depth):
    """Return the lines of random statements about x, y and z."""
    lines = []
    for _ in range(draw.randint(1, 3)):
        kind = draw.random()
        if kind < 0.5 and depth:
            lines.append(f"if {random_condition(draw)}:")
            lines += ["    " + line for line in random_block(draw, depth - 1)]
            for _ in range(draw.randint(0, 2)):
                lines.append(f"elif {random_condition(draw)}:")
                lines += ["    " + line for line in random_block(draw, depth - 1)]
            if draw.random() < 0.5:
                lines.append("else:")
                lines += ["    " + line for line in random_block(draw, depth - 1)]
        elif kind < 0.6:
            lines.append(f"return {draw.choice(['x', 'y', '1', '2 * 3'])}")
        elif kind < 0.65:
            lines.append("pass")
        else:
            value = draw.choice(["x", "y + 1", "2 * 3 - 8", "4 - (1 - 3)", "z"])
            lines.append(f"{draw.choice('xyz')} = {value}")
    return lines


def random_condition(draw):
    def one():
        return f"{draw.choice('xyz')} {draw.choice(['<', '<=', '>', '>='])} {draw.randint(0, 2)}"

    parts = [draw.choice([one(), "True", "False"]) if draw.random() < 0.2 else one()]
    parts += [draw.choice(["{}", "({})"]).format(one()) for _ in range(draw.randint(0, 2))]
    return draw.choice([" and ", " or "]).join(parts)


@pytest.mark.slow
@given(st.integers(0, 10**9))
def test_simplification_keeps_the_results_of_random_programs(seed):
    draw = random.Random(seed)
    program = function("z = 0\n" + "\n".join(random_block(draw, 3)) + "\nreturn x, y, z")
    program += "\n\nclass Environment:\n    run = staticmethod(step)\n"
    short = simplify(program)
    before, after = {}, {}
    exec(program, before)
    exec(short, after)
    for x in range(-1, 4):
        for y in range(-1, 4):
            assert before["step"](x, y) == after["step"](x, y), (program, short)
    assert measure(short).bits <= measure(program).bits
    assert simplify(short) == short


def test_description_length_ignores_layout_and_counts_new_names():
    program = function("return x + y")
    laid_out = '"""Adds."""\n\n' + function('"""Add."""\n# the sum\nreturn (\n    x + y\n)')
    assert measure(program).lines == 2
    assert measure(laid_out).bits > measure(program).bits  # the parentheses
    assert measure("# a\n\n" + program).bits == measure(program).bits
    assert measure(function("return x + x")).bits < measure(function("return x + xx")).bits


class Sorted(Problem):
    """Programs of the lines `a`, `b` and `c` in order are right, however often each is there."""

    moves = (GENERATE, IMPROVE, SIMPLIFY)

    def messages(self, move):
        return (Message(role="user", content=f"{move.action} {move.program}"),)

    def judge(self, candidate):
        lines = candidate.split()
        right = lines == sorted(lines) and {*lines} == {*"abc"}
        failure = None if right else Failure(kind="mismatch", message="unsorted")
        return Verdict(score=float(right), validation=float(right), failure=failure)


@dataclass
class Answers(Backend):
    """Gives prepared answers, then the last one again and again; raises errors among them."""

    is_language_model = True
    answers: tuple[str | Exception, ...] = ()
    asked: list[str] = field(default_factory=list)

    def complete(self, request):
        found = self.answers[min(len(self.asked), len(self.answers) - 1)]
        self.asked.append(request.move.action)
        if isinstance(found, Exception):
            raise found
        return Completion(f"```python\n{found}\n```", Usage())


def searched(*answers, simplify=1, budget=10, **more):
    backend = Answers(answers)
    search = Search(Sorted(), ZeroShot(), backend, simplify=simplify, **more)
    return search, [record.node for record in search.run(budget)], backend


def test_a_solved_program_is_shortened_within_the_limits():
    search, nodes, backend = searched("b\na\nc", "a\na\nb\nc", "a\nb\nc")
    assert backend.asked == [GENERATE, GENERATE, SIMPLIFY]
    assert search.best is nodes[-1]
    assert search.best.program.split() == ["a", "b", "c"]
    assert search.best.verdict.saved_bits > 0
    assert search.unsimplified is nodes[1]
    assert not search.given_up
    for limits in ({"simplify": 0}, {"budget": 2}):
        search, nodes, backend = searched("b\na\nc", "a\na\nb\nc", "a\nb\nc", **limits)
        assert backend.asked == [GENERATE, GENERATE]
        assert search.best is search.unsimplified is nodes[1]


@pytest.mark.parametrize("worse", ["a\na\na\nb\nc", "a\nb", "no program", "b\na\nc"])
def test_a_longer_or_wrong_answer_changes_nothing(worse):
    search, nodes, backend = searched("a\na\nb\nc", worse, simplify=2)
    assert backend.asked == [GENERATE, SIMPLIFY, SIMPLIFY]
    assert search.best is nodes[0]
    assert search.solved


def test_an_error_of_the_backend_ends_only_the_simplification():
    said = []
    search, nodes, _ = searched("a\na\nb\nc", CwmError("out of quota"), log=said.append)
    assert search.best is nodes[0]
    assert said == ["simplification stopped: out of quota"]


def test_a_search_resumes_between_the_solution_and_its_simplification():
    first, nodes, _ = searched("a\na\nb\nc", simplify=0)
    search = Search(Sorted(), ZeroShot(), Answers(("a\nb\nc",)), simplify=1)
    search.resume(nodes)
    assert [record.node.action for record in search.run(10)] == [SIMPLIFY]
    again = Search(Sorted(), ZeroShot(), Answers(("unused",)), simplify=1)
    again.resume(search.nodes)
    assert [*again.run(10)] == []
    assert again.best == search.best
    assert first.best is not None
    assert again.best.verdict.saved_bits > first.best.verdict.saved_bits == 0


def test_the_refiner_shortens_a_solved_program_without_a_completion():
    redundant = "a\nb\nc\nif False:\n    d"

    class Sums(Sorted):
        def judge(self, candidate):
            return super().judge(candidate.partition("if")[0])

    search = Search(Sums(), ZeroShot(), Answers((redundant,)), refiners={"simplify": Simplify()})
    nodes = [record.node for record in search.run(5)]
    assert [(node.action, node.asked) for node in nodes] == [(GENERATE, True), ("simplify", False)]
    assert search.best.program.split() == ["a", "b", "c"]

    class Recorded(Answers):
        def recorded(self):
            return [Turn(0, 0), Turn(0, 1, nodes[1])]

    again = Search(Sums(), ZeroShot(), Recorded((redundant,)))
    assert [record.node.program for record in again.run(5)] == [node.program for node in nodes]
    assert again.best.verdict.saved_bits == search.best.verdict.saved_bits


@pytest.mark.slow
def test_synthesize_asks_a_model_to_shorten_a_solved_program(cwm):
    cwm.environment["OPENAI_API_KEY"] = "sk-of-the-tests"
    long = cartpole().replace(
        "def step(self, action):", "def step(self, action):\n        spare = 1"
    )
    script = [answer(f"```python\n{each}\n```") for each in (long, cartpole())]
    arguments = ("synthesize", "--model", "openai/gpt-4o-mini", "--env", "CartPole-v1")
    arguments += ("--start", "none", "-o", "refine=none", "--run", "r")
    with OpenAIServer(script) as server:
        run = cwm.inside(*arguments, "--api-base", server.url, "--json")
        assert run.returncode == 0, run.stderr
        assert "predicts every recorded transition" in server.requests[1].prompt
        assert len(server.requests) == 2
    result = json.loads(run.stdout)
    assert (result["solved"], result["completions"]) == (True, 2)
    assert result["size"]["lines"] == result["original_size"]["lines"] - 1
    assert result["size"]["bits"] < result["original_size"]["bits"]
    best = (cwm.folder / "r" / "best.py").read_text()
    assert "spare" not in best
    assert SearchRun.load(cwm.folder / "r").best_program() == best
    assert "★ #1 simplify 1.000" in cwm.inside("runs", "show", "r").stdout
    repeated = ("synthesize", "--env", "CartPole-v1", "--backend", "replay", "--model", "r")
    replayed = cwm.inside(*repeated, "--run", "again", "--json")
    assert json.loads(replayed.stdout)["completions"] == 2, replayed.stderr
    assert (cwm.folder / "again" / "best.py").read_text() == best
