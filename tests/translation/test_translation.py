"""Translated programs agree with the programs themselves, or leave the step to them."""

import random
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_cli.planning.model import LARGEST, Unbatched
from cwm_cli.planning.program import Checks, Program, returns
from cwm_cli.sandbox.handlers import Complaint
from cwm_cli.translation.emission import emit_scalar
from cwm_cli.translation.expressions import Unsupported
from cwm_cli.translation.forms import (
    Rows,
    Source,
    find_fastest_form,
    verify_batch,
    verify_model,
)
from cwm_cli.translation.models import (
    ARITHMETIC_ERRORS,
    ArithmeticModel,
    TableBatch,
    TableModel,
    TraceBatch,
    is_enumerable,
)
from cwm_cli.translation.paths import Tracer
from cwm_cli.translation.states import Trace
from folders import WORLD_MODELS
from world_models import expressions
from world_models.random_programs import Author
from world_models.traps import TRAPS, trap

FOLDER = WORLD_MODELS


def box(size: int, limit: float = np.inf) -> Space:
    return space_of(spaces.Box(-limit, limit, (size,), np.float64))


def number(count: int, start: int = 0) -> Space:
    return space_of(spaces.Discrete(count, start=start))


POINT, THREE = box(2), number(3)
PROGRAMS: dict[str, tuple[Space, Space, float | None]] = {
    "acrobot_arrays": (box(6), THREE, 1.0),
    "acrobot_lists": (box(6), THREE, 1.0),
    "acrobot_rk4_function": (box(6), THREE, 1.0),
    "bandit_patch": (number(8), THREE, None),
    "cartpole_cramer": (box(4), number(2), 0.1),
    "cartpole_float32": (box(4), number(2), 0.1),
    "cartpole_helpers": (box(4), number(2), 0.1),
    "cheetah_vectors": (box(17), box(6, 1.0), 0.3),
    "cliff_branches": (number(48), number(4), None),
    "cliff_grid": (number(48), number(4), None),
    "grid_position_array": (number(25), number(4), None),
    "inverted_pendulum_slices": (box(4), box(1, 3.0), 0.1),
    "lake_strings": (number(16), number(4), None),
    "lake_table": (number(16), number(4), None),
    "lander_early_returns": (box(6), number(4), 0.5),
    "mountain_car_clip": (box(2), THREE, 0.3),
    "mountain_car_continuous": (box(2), box(1, 1.0), 0.3),
    "mountain_car_scalars": (box(2), THREE, 0.3),
    "pendulum_math": (box(3), box(1, 2.0), 1.0),
    "pendulum_numpy": (box(3), box(1, 2.0), 1.0),
    "point_mass_linear": (box(4), box(2, 1.0), 1.5),
    "pong_modulo": (box(5), THREE, 2.0),
    "reacher_slices": (box(11), box(2, 1.0), 0.3),
    "tank_tuples": (box(2), THREE, 0.6),
    "taxi_map": (number(500), number(6), None),
    "taxi_walls": (number(500), number(6), None),
}
UNSUPPORTED = {"blackjack_random": "random numbers|import of random"}
# Programs with more states than a table accepts.
REMEMBERS = {"cliff_grid"}


def make(program: str) -> Any:
    """Create the environment of a program, as the sandbox does."""
    module = ModuleType("world_model")
    exec(compile(program, "<program>", "exec"), module.__dict__)
    return module.Environment()


def model(program: str, observed: Space = POINT, acting: Space = THREE) -> Program:
    def reward(value: Any) -> float:
        if not abs(float(value)) < LARGEST:
            raise Complaint("no such reward")
        return float(value)

    read = np.array if observed.is_float else int
    return Program(make(program), Checks(tuple, reward, bool, read), action_space=acting)


def trace(program: str, observed: Space = POINT, acting: Space = THREE) -> Trace:
    return Trace(program, observed, acting)


def arithmetic(program: str, observed: Space = POINT, acting: Space = THREE) -> ArithmeticModel:
    functions = emit_scalar(trace(program, observed, acting))
    return ArithmeticModel(model(program, observed, acting), functions, observed)


def batch(program: str, observed: Space = POINT, acting: Space = THREE) -> TraceBatch:
    return TraceBatch(trace(program, observed, acting), observed)


def draw(space: Space, count: int, scale: float | None, rng: np.random.Generator) -> list[Any]:
    """Draw random observations or actions."""
    if space.is_float:
        return list(rng.normal(size=(count, space.size)) * (scale or 1.0))
    values: list[Any] = rng.integers(0, int(space.high[0]) + 1, count).tolist()
    return values


def source(name: str) -> str:
    return (FOLDER / f"{name}.py").read_text()


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore")
def test_every_form_agrees_with_programs_of_many_styles(name: str) -> None:
    observed, acting, scale = PROGRAMS[name]
    rng = np.random.default_rng(0)
    text = source(name)
    rows = (draw(observed, 200, scale, rng), draw(acting, 200, None, rng))
    one = model(text, observed, acting)
    forms: list[Any] = [arithmetic(text, observed, acting)]
    batches: list[Any] = [batch(text, observed, acting)]
    if is_enumerable(observed, acting) and name not in REMEMBERS:
        forms.append(TableModel(model(text, observed, acting), observed))
        batches.append(TableBatch(forms[-1], observed))
    for form in forms:
        verify_model(form, model(text, observed, acting), *rows)
        assert form.fallbacks <= 10
    plans = np.array([[draw(acting, 15, None, rng) for _ in range(20)] for _ in range(3)])
    expected = one.returns(rows[0][:3], plans)
    for many in batches:
        verify_batch(many, model(text, observed, acting), *rows)
        found = returns(many, rows[0][:3], plans)
        np.testing.assert_allclose(found.returns, expected, rtol=1e-4, atol=1e-4)
        assert found.steps == one.counter[0]


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_programs_with_random_numbers_are_unsupported(name: str) -> None:
    with pytest.raises(Unsupported, match=UNSUPPORTED[name]):
        trace(source(name), number(9), number(2))


def test_every_program_of_the_folder_is_tested() -> None:
    others = {"expressions", "random_programs", "traps"}
    assert {path.stem for path in FOLDER.glob("*.py")} == {*PROGRAMS, *UNSUPPORTED, *others}


def outcome(program: str, starts: np.ndarray, plan: np.ndarray) -> str:
    """Compare the steps of all lanes with new environments; return the outcome."""
    with np.errstate(all="ignore"):
        expected = [
            trajectory(program, start, plan[:, lane]) for lane, start in enumerate(starts.T)
        ]
    try:
        found = trace(program)
    except Unsupported:
        return "refused"
    check_scalar(found, starts, plan, expected)
    return check_batch(TraceBatch(found, POINT), starts, plan, expected)


def check_scalar(
    found: Trace, starts: np.ndarray, plan: np.ndarray, expected: list[list[Any]]
) -> None:
    """Check that plain arithmetic agrees, or raises so that the program is called."""
    functions = emit_scalar(found)
    for lane, start in enumerate(starts.T):
        try:
            state = functions.enter(start.tolist())
            for answer, action in zip(expected[lane], plan[:, lane].tolist(), strict=False):
                state, seen, reward, end = functions.step(state, action)
                assert not isinstance(answer, Exception), (
                    "the program failed, but the translation did not"
                )
                np.testing.assert_allclose(seen, answer[0], 1e-7, 1e-7)
                np.testing.assert_allclose(reward, answer[1], 1e-7, 1e-7)
                assert bool(end) == answer[2]
        except ARITHMETIC_ERRORS:
            continue


def check_batch(
    many: TraceBatch, starts: np.ndarray, plan: np.ndarray, expected: list[list[Any]]
) -> str:
    """Check that lanes agree; return whether they did, raised as expected, or refused."""
    alive = np.arange(starts.shape[1])
    try:
        many.stand(starts)
        for step, actions in enumerate(plan):
            there = [expected[lane][step] for lane in alive]
            failed = any(isinstance(answer, Exception) for answer in there)
            try:
                observations, rewards, terminated = many.step(actions[alive])
            except Unbatched:
                return "raises" if failed else "refused"
            assert not failed, "the program failed in a lane, but the batch did not"
            np.testing.assert_allclose(observations.T, [o for o, _, _ in there], 1e-7, 1e-7)
            np.testing.assert_allclose(rewards, [r for _, r, _ in there], 1e-7, 1e-7)
            assert terminated.tolist() == [d for _, _, d in there]
            if terminated.all():
                break
            many.keep(~terminated)
            alive = alive[~terminated]
    except Unbatched:
        return "refused"
    return "same"


def trajectory(program: str, start: np.ndarray, actions: np.ndarray) -> list[Any]:
    """Return the steps of a new environment until the episode ends or the program fails."""
    answers: list[Any] = []
    try:
        environment = make(program)
        environment.set_state(start.copy())
        for action in actions.tolist():
            observation, reward, terminated = environment.step(action)
            answers.append((np.array(observation, float), float(reward), bool(terminated)))
            if terminated:
                break
    except Exception as error:  # noqa: BLE001  # programs raise anything
        answers.append(error)
    return answers


def failing(cases: Any, check: Any) -> dict[str, str]:
    """Return the message of each case that fails a check."""
    found = {}
    for name in cases:
        try:
            message = check(name)
        except AssertionError as error:
            message = str(error) or repr(error)
        if message:
            found[name] = message
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_traps_are_translated_correctly_or_unsupported() -> None:
    def check(name: str) -> str:
        program, expected = trap(name)
        rng = np.random.default_rng(0)
        starts = np.round(rng.normal(size=(2, 41)) * 1.3, 2)
        found = outcome(program, starts, rng.integers(0, 3, (5, 41)))
        return "" if found == expected else f"{found} instead of {expected}"

    assert failing(TRAPS, check) == {}


def judge(program: str, seed: int = 0) -> str:
    rng = np.random.default_rng(seed)
    starts = np.round(rng.normal(size=(2, 23)) * 2, 1)
    return outcome(program, starts, rng.integers(0, 3, (3, 23)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_functions_of_python_math_and_numpy_agree() -> None:
    def check(expression: str) -> str:
        found = judge(expressions.program(expression))
        return "" if found == "same" else found

    assert failing(expressions.EXPRESSIONS, check) == {}


def test_comparisons_narrow_the_ranges_of_integers() -> None:
    tracer = Tracer()
    symbol = tracer.graph.make("symbol", (), "i", "n")
    tracer.bound(symbol, 0, 9)

    def run() -> tuple[bool, tuple[float, float]]:
        holds = tracer.decide(tracer.graph.apply("less", symbol, 5))
        return holds, tracer.range(symbol)

    found = [result for *_, result in tracer.explore(run)]
    assert found == [(True, (0, 4)), (False, (5, 9))]


def test_batch_refuses_states_if_one_row_needs_the_program() -> None:
    many = batch("""
import math

class Environment:
    def set_state(self, o):
        self.a, self.b = o

    def step(self, action):
        return [self.a, self.b], math.sqrt(self.a), False
""")
    many.stand(np.array([[1.0, -1.0], [0.0, 0.0]]))
    with pytest.raises(Unbatched, match="needs the interpreted program"):
        many.step(np.zeros(2, np.int64))


NO_NUMBER = """
import math
import numpy as np

class Environment:
    def set_state(self, o):
        self.a, self.b = o

    def step(self, action):
        w, a, k = np.zeros(3), self.a, int(abs(self.b) * 2) % 7
        done = bool({})
        return [self.a, self.b], float(done), done
"""
COMPARED = (
    *("k <= w[2] / 0", "w[2] / 0 >= k", "w[2] / 0 != k", "0 < k <= np.nan", "not (a <= np.nan)"),
    *("a * 0 <= np.inf * 0", "np.minimum(a, np.nan) > 0", "(np.nan if a > 0 else 1.0) <= 2"),
    *("np.isnan(w[2] / 0)", "np.isnan(np.nan if a > 0 else 1.0)", "np.fmax(a, np.nan) >= 0"),
    *("np.where(a > 0, np.nan, 1.0) <= 2", "min(np.nan, a) <= 3", "max(np.nan, a) >= 3"),
    *("(a if k else math.nan) != (a if k else math.nan)", "np.clip(np.nan, -1, 1) <= 1"),
)


@pytest.mark.filterwarnings("ignore")
def test_nan_comparisons_agree_or_are_unsupported() -> None:
    def check(condition: str) -> str:
        found = judge(NO_NUMBER.format(condition))
        return "" if found in ("same", "refused") else found

    assert failing(COMPARED, check) == {}


@pytest.mark.slow
def test_deeply_nested_expressions_agree_or_are_unsupported() -> None:
    steps = "\n".join(
        f"        x = x * {1 + n / 1000} + [0.1, 0.2, {n}.0][action]" for n in range(900)
    )
    program = f"""
class Environment:
    def set_state(self, o):
        self.o = o

    def step(self, action):
        x = self.o[0]
{steps}
        if action == 1:
            x = x * x
        return [x, self.o[1]], 0.0, False
"""
    assert judge(program) in ("same", "refused")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_random_programs_agree_or_are_unsupported(seed: int) -> None:
    judge(Author(random.Random(seed)).program(), seed)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_most_random_programs_are_supported() -> None:
    outcomes = [judge(Author(random.Random(seed)).program(), seed) for seed in range(100)]
    assert outcomes.count("refused") < 0.3 * len(outcomes)


COUNTING = """
import numpy as np

class Environment:
    def __init__(self):
        self.steps = 0

    def set_state(self, observation):
        self.place = float(observation[0])
        {reset}

    def step(self, action):
        assert self.place < 3, "the episode is over"
        self.place += 0.5 * action
        self.steps += 1
        return np.array([self.place, 0.0]), float(self.steps), self.place >= 3
"""
RESET = COUNTING.format(reset="self.steps = 0")


def test_keep_selects_hidden_attributes_of_lanes() -> None:
    many = batch(RESET)
    many.stand(np.zeros((2, 5)))
    many.step(np.array([0, 1, 2, 1, 0]))
    many.keep(np.array([4, 2]))
    observations, rewards, _ = many.step(np.array([1, 1]))
    assert observations[0].tolist() == [0.5, 1.5]
    assert rewards.tolist() == [2.0, 2.0]
    many.stand(np.ones((2, 3)))
    many.step(np.zeros(3, int))
    many.keep(np.array([False, True, True]))
    assert many.step(np.zeros(2, int))[1].tolist() == [2.0, 2.0]


def test_returns_stop_at_the_end_of_the_episode() -> None:
    plans = np.random.default_rng(0).integers(0, 3, (2, 50, 12))
    starts = [np.zeros(2), np.array([1.0, 0.0])]
    one = model(RESET)
    found = returns(batch(RESET), starts, plans)
    assert found.returns.tolist() == one.returns(starts, plans).tolist()
    assert found.steps == one.counter[0] < plans.size


def test_batch_raises_if_the_program_fails() -> None:
    with pytest.raises(Unbatched, match="a row needs the interpreted program"):
        returns(batch(RESET), [np.array([3.0, 0.0])], np.zeros((1, 4, 5), int))


def test_verification_detects_memory_of_earlier_episodes() -> None:
    program = COUNTING.format(reset="pass")
    rows = [np.zeros(2)] * 20, [1] * 20
    with pytest.raises(Unbatched, match="rewards differ by up to 19 on 19 of 20 rows"):
        verify_batch(batch(program), model(program), *rows)
    with pytest.raises(Unbatched, match="rewards differ"):
        verify_model(arithmetic(program), model(program), *rows)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("0.5 * action", "0.501 * action", "observations differ"),
        ("float(self.steps)", "1.1 * self.steps", "rewards differ"),
        (">= 3", ">= 2.5", "terminated differs|the ends of episodes differ"),
        ("float(self.steps)", "1.0 if self.steps < 4 else 4.5", "rewards differ"),
    ],
)
def test_verification_detects_a_different_program(old: str, new: str, reason: str) -> None:
    wrong, rows = RESET.replace(old, new), (list(np.zeros((40, 2))), [1, 0] * 20)
    with pytest.raises(Unbatched, match=reason):
        verify_batch(batch(wrong), model(RESET), *rows)
    with pytest.raises(Unbatched, match=reason):
        verify_model(arithmetic(wrong), model(RESET), *rows)


def test_single_precision_results_are_exact() -> None:
    text = """
import numpy as np
class Environment:
    def set_state(self, observation):
        self.s = np.array(observation, dtype=np.float32)
    def step(self, action):
        self.s = self.s * np.float32(1.1) + 0.1 * action
        total = np.float64(0.1) * self.s[0] + 0.1 * self.s[1]
        return self.s, total, self.s[0] > np.float32(3)
"""
    rng = np.random.default_rng(0)
    starts, plan = rng.normal(size=(2, 60)), rng.integers(0, 3, (8, 60))
    functions, many = emit_scalar(trace(text)), batch(text)
    many.stand(starts)
    observations, rewards, _ = many.step(plan[0])
    for lane, start in enumerate(starts.T):
        [(seen, reward, _), *_] = trajectory(text, start, plan[:, lane])
        state = functions.enter(start.tolist())
        _, here, received, _ = functions.step(state, int(plan[0, lane]))
        assert list(seen) == list(here) == observations[:, lane].tolist()
        assert reward == received == rewards[lane]


@pytest.mark.parametrize(
    "space",
    [space_of(spaces.Tuple((spaces.Discrete(2),))), space_of(spaces.Text(3))],
)
def test_other_spaces_are_unsupported(space: Space) -> None:
    with pytest.raises(Unsupported, match="a space of the kind"):
        trace(RESET, space, THREE)


def test_batch_does_not_change_arrays_of_the_caller() -> None:
    program = COUNTING.replace(
        "self.place += 0.5 * action", "action *= 2.0; self.place += action[0]"
    )
    many = batch(program.format(reset="observation[0] = 1.0"), POINT, box(1))
    starts, actions = np.zeros((2, 4)), np.ones((1, 4))
    many.stand(starts)
    assert many.step(actions)[0][0].tolist() == [2.0] * 4
    assert starts.tolist() == [[0.0] * 4] * 2
    assert actions.tolist() == [[1.0] * 4]


def test_state_includes_hidden_attributes() -> None:
    text = """
class Environment:
    def __init__(self):
        self.cell, self.steps = 0, 0
    def set_state(self, observation):
        self.cell, self.steps = observation, 0
    def step(self, action):
        self.steps += 1
        self.cell = (self.cell + action) % 9
        return self.cell, 1.0, self.steps >= 20
"""
    observed, acting = number(9), number(5, -2)
    for form in (
        arithmetic(text, observed, acting),
        TableModel(model(text.replace("20", "3"), observed, acting), observed),
    ):
        last = 19 if isinstance(form, ArithmeticModel) else 2
        form.stand(0)
        for _ in range(last):
            assert not form.step(0).terminated
        here = form.here()
        assert form.step(0).terminated  # by the counter
        form.stand(here)
        assert form.step(-1).terminated
        form.stand(0)
        assert not form.step(0).terminated
        assert form.fallbacks == 0


def test_unused_attributes_are_removed_from_the_state() -> None:
    text = """
class Environment:
    def set_state(self, observation):
        self.x, self.v = observation
        self.steps, self.done, self.last, self.log = 0, False, None, []
    def step(self, action):
        self.steps += 1
        self.last = (action, action * 2)
        self.log.append(self.x)
        self.x, self.v = self.x + self.v, self.v - 0.1 * action
        reward = 0.0 if self.done else 1.0  # nobody steps on from the end
        self.done = self.x > 3
        return [self.x, self.v], reward, self.done
"""
    assert len(trace(text).slots) == 2


def test_program_computes_steps_for_which_arithmetic_fails() -> None:
    text = """
import numpy as np
class Environment:
    def set_state(self, observation):
        self.x, self.v = observation
    def step(self, action):
        with np.errstate(all="ignore"):
            self.x = self.x - 0.25
            reward = np.nan_to_num(np.sqrt(self.x))
        return [self.x, self.v], reward, False
"""
    form, reference = arithmetic(text), model(text)
    for each in (form, reference):
        each.stand(np.array([0.6, 0.0]))
    for _ in range(5):
        here, there = form.step(0), reference.step(0)
        assert here.reward == there.reward
        np.testing.assert_array_equal(here.observation, there.observation)
    for each in (form, reference):
        each.stand(np.array([0.6, 0.0]))
    assert form.play([0] * 5) == reference.play([0] * 5)
    assert form.counter[0] == reference.counter[0] == 10
    assert form.fallbacks > 0


@pytest.mark.parametrize("factor", ["1e302", "1e308 * 1e3"])
@pytest.mark.filterwarnings("ignore")
def test_failures_come_from_the_program_itself(factor: str) -> None:
    form = arithmetic(RESET.replace("float(self.steps)", f"float(self.steps) * {factor}"))
    form.stand(np.zeros(2))
    with pytest.raises(Complaint, match="no such reward"):
        form.step(0)
    with pytest.raises(Complaint, match="no such reward"):
        form.play([0])
    form = arithmetic(RESET)
    form.stand(np.array([3.5, 0.0]))
    with pytest.raises(AssertionError, match="the episode is over"):
        form.step(1)


@pytest.mark.parametrize(
    "answer",
    [
        "[self.place], 1.0, False",
        "[self.place, 0.0], 1.0, self.place",
        "[self.place, 0.0], '1.0', False",
        "[self.place, 0.0], 1.0",
        "np.sort([self.place, 0.0]), 1.0, False",
    ],
)
def test_invalid_answers_are_unsupported(answer: str) -> None:
    text = RESET.split("        return")[0] + f"        return {answer}\n"
    with pytest.raises(Unsupported):
        trace(text)


def test_program_computes_long_loops() -> None:
    text = """
import math
class Environment:
    def set_state(self, observation):
        self.x, self.v = float(observation[0]), float(observation[1])
    def step(self, action):
        self.x += self.v
        while self.x > math.pi:
            self.x -= 2 * math.pi
        return [self.x, self.v], 1.0, False
"""
    form, reference = arithmetic(text), model(text)
    for each in (form, reference):
        each.stand(np.array([200.0, 1.0]))
    assert form.step(1).observation == pytest.approx(reference.step(1).observation)
    assert form.fallbacks == 1
    far = [np.array([200.0, 1.0])] * 20
    with pytest.raises(Unbatched, match="too many rows"):
        verify_model(form, reference, far, [1] * 20)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("WORLD['n'] = self.x", "a global changes"),
        ("self.x = WORLD.setdefault('n', 1.0)", "a global changes"),
        ("Environment.K = 2", "a class changes"),
        ("try:\n            1 / self.x\n        except:\n            pass", "everything is caught"),
        ("import random\n        self.x = random.random()", "import of random"),
    ],
)
def test_changes_outside_attributes_are_unsupported(step: str, reason: str) -> None:
    text = f"""
WORLD = {{}}
class Environment:
    K = 1
    def set_state(self, observation):
        self.x = float(observation[0])
    def step(self, action):
        {step}
        return [self.x, 0.0], 1.0, False
"""
    with pytest.raises(Unsupported, match=reason):
        trace(text)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(int, value))
    return {"a": int(value["a"])} if isinstance(value, dict) else value


def test_tables_accept_every_finite_space() -> None:
    text = """
class Environment:
    def set_state(self, observation):
        self.o = observation
    def step(self, action):
        self.o = MOVED
        return self.o, 1.0, False
"""
    cases = {
        "(self.o[0], (self.o[1] + action) % 3)": spaces.Tuple(
            [spaces.Discrete(2), spaces.Discrete(3)]
        ),
        "{'a': (self.o['a'] + action) % 3}": spaces.Dict({"a": spaces.Discrete(3)}),
        "(self.o + action) % 3": spaces.MultiDiscrete([3, 3]),
    }
    for moved, space in cases.items():
        observed, program = space_of(space), text.replace("MOVED", moved)
        space.seed(0)
        rows = [_plain(space.sample()) for _ in range(60)]
        one = Program(
            make(program), Checks(tuple, float, bool, lambda value: value), action_space=THREE
        )
        found = find_fastest_form(one, Source(program, observed), Rows(rows, [0, 1, 2] * 20), "")
        assert isinstance(found.model, TableModel), one.notes


def test_table_refuses_programs_that_change_globals() -> None:
    text = """
SEEN = []
class Environment:
    def set_state(self, observation):
        self.o = observation
    def step(self, action):
        SEEN.append(action)
        return self.o, float(len(SEEN)), False
"""
    with pytest.raises(Unbatched, match="more changes than its attributes"):
        TableModel(model(text, number(3)), number(3))
