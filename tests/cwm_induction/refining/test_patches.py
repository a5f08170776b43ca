"""Programs that are almost correct are improved with the rows that they predict wrongly."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.evaluation import AccuracyMetric, evaluate
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.sandbox import Sandbox
from cwm_cli.search.contracts import Node, RefinementTask, Usage, Verdict
from cwm_cli.worlds import ProgramModel
from cwm_induction.refining.patches import Patch

GLIDER = '''class Environment:
    """A glider over a field: it is pushed, and slowed down by the air."""

    def set_state(self, observation):
        self.place, self.speed = float(observation[0]), float(observation[1])

    def step(self, action):
        place, speed = self.place, self.speed
        push = 0.5 * (action - 1)
        # The air, which is thick in places.
        speed = speed + 0.1 * (push - 0.3 * speed)
        place = place + 0.1 * speed
        place = min(max(place, -2.0), 2.0)
        self.place, self.speed = place, speed
        return [place, speed], -abs(place), abs(speed) > 1.9
'''

SHOP = '''class Environment:
    """Goods are ordered, and sold by the day of the week."""

    DEMAND = [2, 3, 3, 4, 6]

    def set_state(self, observation):
        self.stock, self.day = int(observation[0]), int(observation[1])

    def step(self, action):
        sold = min(self.stock, self.DEMAND[self.day])
        stock = min(self.stock - sold + 2 * int(action), 12)
        day = (self.day + 1) % 5
        self.stock, self.day = stock, day
        return [stock, day], float(3 * sold - stock), stock == 0
'''

SPACES = {
    GLIDER: Space("box", "float64", (2,), (-2.0, -2.0), (2.0, 2.0)),
    SHOP: Space("box", "int64", (2,), (0.0, 0.0), (12.0, 4.0)),
}


def _recorded(truth: str, base: str, seed: int = 0, rows: int = 560) -> Dataset:
    """Return rows of a correct program over its whole space; a third is held out."""
    names: dict[str, Any] = {}
    exec(truth, names)
    environment, space = names["Environment"](), SPACES[base]
    rng = np.random.default_rng(seed)
    found = []
    for row in range(rows):
        seen = rng.uniform(space.low, space.high)
        if not space.is_float:
            seen = rng.integers(space.low, np.array(space.high) + 1)
        action = int(rng.integers(3))
        environment.set_state(seen)
        after, reward, end = environment.step(action)
        after = np.array(after, space.dtype)
        split = int(row % 3 == 2)
        found.append(Transition(seen, action, after, reward, end, False, row // 15, split))
    actions = Space("discrete", low=(0,), high=(2,))
    return Dataset.of(found, observation_space=space, action_space=actions)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


Repair = Callable[[str, Dataset], str]


@pytest.fixture
def repair(sandbox: Sandbox) -> Repair:
    def repair(program: str, data: Dataset) -> str:
        found = Patch().refine(_task(program, data, sandbox))
        return found.candidate if found else ""

    return repair


def _task(program: str, data: Dataset, sandbox: Sandbox) -> RefinementTask:
    train = data.train
    problem = WorldModelProblem("A glider.", train, sandbox, AccuracyMetric.of(train))
    node = Node(0, 0, -1, "generate", program, Verdict(0.5), "", Usage())
    return RefinementTask(problem, node)


def _is_exact(program: str, data: Dataset, sandbox: Sandbox) -> bool:
    found = evaluate(ProgramModel(program, sandbox), data, AccuracyMetric.of(data.train))
    return found.failure is None and found.score.value == 1.0


@pytest.mark.slow
def test_a_region_with_another_law_is_added(repair: Repair, sandbox: Sandbox) -> None:
    here = "        # The air"
    region = "        if place < 0.5 and speed > -0.4:\n            push = push + 0.25\n"
    data = _recorded(GLIDER.replace(here, region + here), GLIDER)
    text = repair(GLIDER, data)
    assert "# The air, which is thick in places." in text, "the author's words stay"
    assert _is_exact(text, data.train, sandbox)
    assert len(text.splitlines()) == len(GLIDER.splitlines()) + 3
    assert repair(text, data) == "", "a correct program does not change"


@pytest.mark.slow
def test_hidden_rows_do_not_change_a_patch(repair: Repair) -> None:
    data = _recorded(GLIDER.replace("0.3 * speed", "0.45 * speed"), GLIDER)
    other = data.columns["rewards"].copy()
    mask = np.zeros(len(data), bool)
    mask[np.flatnonzero(data.columns["split"] == 0)[~data.train.fitted]] = True
    other[mask | (data.columns["split"] == 1)] = 77.0
    strange = replace(data, columns=data.columns | {"rewards": other})
    assert repair(GLIDER, data) == repair(GLIDER, strange) != ""


def test_programs_that_fail_are_not_patched(sandbox: Sandbox) -> None:
    data = _recorded(GLIDER, GLIDER)
    for program in ("", "class Environment:", "print(1)", GLIDER.replace("0.1 * speed", "1 / 0")):
        assert Patch().refine(_task(program, data, sandbox)) is None, program
    task = _task(GLIDER, data, sandbox)
    assert Patch().refine(task._replace(problem=object())) is None


@pytest.mark.slow
def test_faults_of_every_kind_are_repaired(repair: Repair, sandbox: Sandbox) -> None:
    faults = {
        "a term": (GLIDER, " - 0.3 * speed", ""),
        "a clamp": (GLIDER, "        place = min(max(place, -2.0), 2.0)\n", ""),
        "an order": (
            GLIDER,
            "        place = place + 0.1 * speed\n",
            "        place = place + 0.1 * self.speed\n",
        ),
        "a table": (SHOP, "4, 6]", "4, 4]"),
        "a rule": (SHOP, "- sold + 2", "- sold + 3"),
        "a limit": (SHOP, ", 12)", ", 13)"),
    }
    failed = []
    for name, (right, old, new) in faults.items():
        data = _recorded(right, right)
        text = repair(right.replace(old, new), data)
        if not _is_exact(text, data, sandbox):
            failed.append(name)
    assert not failed
