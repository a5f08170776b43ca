"""Programs as machine code: the same numbers, faster still, in a process that may do nothing."""

import os
import resource
from typing import Any

import numpy as np
import pytest

from cwm_cli.planning import compiled
from cwm_cli.planning.compiled import CompiledModel
from cwm_cli.planning.traced.model import Traced
from cwm_cli.planning.traced.plain import plain
from cwm_cli.planning.traced.tracing import traced
from test_traced import PROGRAMS, Arm, Hill, formula, program, rows

pytestmark = pytest.mark.slow  # the loops take seconds to compile


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    pytest.importorskip("numba")
    compiled.warm_up()


def both(make: Any) -> tuple[CompiledModel, Traced]:
    trace = traced(make, *make.SPACES)
    model = Traced(program(make), plain(trace), make.SPACES[0])
    model.returns = _never  # nothing but machine code may answer
    return compiled.compiled(model, trace), Traced(program(make), plain(trace), make.SPACES[0])


def _never(*_: Any) -> Any:
    raise AssertionError("the program was asked")


@pytest.mark.parametrize("make", PROGRAMS)
def test_plans_return_what_they_return_in_the_program(make: Any) -> None:
    model, reference = both(make)
    observations, actions = rows(make)
    plans = np.array([[actions[:30], actions[10:40]], [actions[20:50], actions[30:60]]])
    states = observations[:2]
    np.testing.assert_allclose(
        model.returns(states, plans), reference.returns(states, plans), rtol=1e-9
    )
    assert model.counter[0] == reference.counter[0]


def test_rollouts_of_bytes_run_in_machine_code() -> None:
    model, reference = both(Hill)
    for each in (model, reference):
        each.stand(np.array([-0.5, 0.1]))
    actions = bytes([0, 1, 1, 0, 1] * 4)
    assert model.play(actions, 0.9) == pytest.approx(reference.play(actions, 0.9), rel=1e-12)
    assert model.counter[0] == reference.counter[0]


@pytest.mark.parametrize("seed", range(30))
def test_expressions_compute_what_plain_arithmetic_computes(seed: int) -> None:
    model, reference = both(formula(seed))
    compared = 0
    for observation, action in zip(*rows(formula(seed), 40), strict=True):
        reference.stand(observation)
        with np.errstate(all="ignore"):
            reward = reference.step(action).reward
        if not reference.redone:
            found = model.returns([observation], np.array([[[action]]]))
            assert found[0, 0] == pytest.approx(reward, rel=1e-9, abs=1e-9)
            compared += 1
        reference.redone = 0
    assert compared > 5


def test_what_machine_code_cannot_say_the_program_does() -> None:
    class Root(Hill):
        def step(self, action: Any) -> Any:
            observation, _, end = super().step(action)
            return observation, np.sqrt(self.position - 5), end

    trace, asked = traced(Root, *Root.SPACES), []
    model = Traced(program(Root), plain(trace), Root.SPACES[0])

    def answer(states: Any, plans: np.ndarray) -> np.ndarray:
        asked.append(states)
        return np.zeros(plans.shape[:2])

    model.returns = answer
    compiled.compiled(model, trace).returns([np.ones(2)], np.zeros((1, 3, 5)))
    assert len(asked) == 1


def test_a_process_that_can_open_nothing_compiles() -> None:
    trace = traced(Arm, *Arm.SPACES)
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
        model = compiled.compiled(Traced(program(Arm), plain(trace), Arm.SPACES[0]), trace)
        plans = np.zeros((1, 1, 3, 2))
        os._exit(0 if np.isfinite(model.returns([np.ones(2)], plans)).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
