"""Programs that are exact in different parts are joined to one that is exact in all parts."""

import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset
from cwm_cli.search.contracts import (
    GENERATE,
    ROOT,
    START,
    Node,
    RefinementTask,
    Usage,
)
from cwm_induction.refining.joining import Join
from recordings import cartpole, problem, record

WRONG_ANGLE = (
    cartpole()
    .replace("angle + 0.02 * spin, spin", "angle, spin")
    .replace("abs(self.state[2])", "abs(angle + 0.02 * spin)")
)
WRONG_END = cartpole(limit=0.1)
ALL_BUT_END_WRONG = """
import math
import numpy as np

LIMIT = 12 * 2 * math.pi / 360


class Environment:
    def set_state(self, observation):
        self.state = list(observation)

    def step(self, action):
        position, speed, angle, spin = self.state
        over = abs(position + 0.02 * speed) > 2.4 or abs(angle + 0.02 * spin) > LIMIT
        return self.state, 0.5, over
"""


@pytest.fixture(scope="module")
def recorded():
    return record("CartPole-v1", episodes=12)


@pytest.fixture
def task(recorded, sandbox):
    """Return the task of improving a program with the help of others."""
    asked = problem(recorded, sandbox)

    def make(program, *others, start=""):
        nodes = [
            Node(
                n,
                n,
                ROOT,
                START if text == start else GENERATE,
                text,
                asked.judge(text),
                "",
                Usage(),
            )
            for n, text in enumerate([program, *others])
        ]
        return RefinementTask(asked, nodes[0], nodes[1:])

    return make


def joined(task, **options):
    return Join(join_induction=False, **options).refine(task)


def test_a_component_is_taken_from_a_program_that_is_exact_there(task):
    found = joined(task(WRONG_ANGLE, WRONG_END))
    verdict = task(found.candidate).node.verdict
    assert verdict.solved, found.candidate
    assert "Pole Angle" in found.candidate
    assert "which predict them exactly: Pole Angle" in found.findings


def test_an_end_is_taken_from_a_program_with_other_faults(task):
    found = joined(task(WRONG_END, ALL_BUT_END_WRONG))
    assert task(found.candidate).node.verdict.solved, found.candidate
    assert "class EndModel" in found.candidate
    assert "LIMIT" in found.candidate


def test_a_program_with_one_exact_part_contributes_it(task):
    found = joined(task(ALL_BUT_END_WRONG, WRONG_END))
    assert task(found.candidate).node.verdict.solved, found.candidate


def test_a_joined_program_predicts_many_steps(task):
    found, whole = joined(task(WRONG_ANGLE, WRONG_END)), cartpole()
    steps = []
    for text in (found.candidate, whole):
        namespace = {}
        exec(text, namespace)  # ours
        env = namespace["Environment"]()
        env.set_state([0.0, 0.1, 0.02, -0.1])
        steps.append([[float(v) for v in env.step(n % 2)[0]] for n in range(9)])
    np.testing.assert_allclose(steps[0], steps[1])


def test_a_joined_program_is_joined_again(task):
    wrong_reward = WRONG_ANGLE.replace("1.0, bool", "0.0, bool")
    first = joined(task(wrong_reward, ALL_BUT_END_WRONG.replace("0.5, over", "1.0, over")))
    assert first.candidate.count("Model()") == 2
    second = joined(task(first.candidate, WRONG_END))
    assert task(second.candidate).node.verdict.solved, second.candidate


def test_clashing_names_are_renamed(task):
    mine = cartpole().replace("12 * np.pi / 180", "LIMIT")
    mine = "LIMIT = 99.0\n" + mine.replace("> 0.20943951023931953", "> LIMIT")
    found = joined(task(mine, ALL_BUT_END_WRONG))
    assert task(found.candidate).node.verdict.solved, found.candidate
    assert "LIMIT_2" in found.candidate


def test_exact_programs_and_unknown_parts_are_not_joined(task):
    assert joined(task(cartpole(), WRONG_END)) is None
    assert joined(task(WRONG_END)) is None
    assert joined(task(WRONG_END, WRONG_END.replace("1.0, bool", "2.0, bool"))) is None
    assert joined(task("raise SystemExit", cartpole())) is None
    assert joined(task(WRONG_END, cartpole())._replace(problem=object())) is None


@pytest.mark.slow
def test_a_missing_part_is_induced_from_data_once(task):
    join = Join()
    asked = task(WRONG_END.replace("1.0, bool", "2.0, bool"))
    told = []
    found = join.refine(asked._replace(tell=told.append))
    assert task(found.candidate).node.verdict.score > asked.node.verdict.score, found.candidate
    assert any("data alone" in words for words in told)
    told.clear()
    join.refine(asked._replace(tell=told.append))
    assert not any("data alone" in words for words in told)


def test_hidden_rows_are_not_used(recorded, sandbox, monkeypatch):
    asked = problem(recorded, sandbox)
    rows: list[Dataset] = []
    predict = sandbox.predict

    def spied(program, dataset, **options):
        rows.append(dataset)
        return predict(program, dataset, **options)

    nodes = [
        Node(n, n, ROOT, GENERATE, text, asked.judge(text), "", Usage())
        for n, text in enumerate((WRONG_ANGLE, WRONG_END))
    ]
    monkeypatch.setattr(sandbox, "predict", spied)
    Join().refine(RefinementTask(asked, nodes[0], nodes[1:]))
    fitted = asked.dataset[asked.dataset.fitted].digest
    assert rows
    assert {data.digest for data in rows} == {fitted}
