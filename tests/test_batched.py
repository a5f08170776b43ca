"""Programs on many states at once answer as they do on one, or refuse."""

import random
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from cwm_cli.agents.collecting import record
from cwm_cli.envs.spec import space_of
from cwm_cli.evaluation import AccuracyMetric
from cwm_cli.planning.batched import Transformed, batched, returns, verified
from cwm_cli.planning.batched import lanes as lane_functions
from cwm_cli.planning.model import Unbatched
from cwm_cli.planning.program import Checks, Program
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.search.contracts import GENERATE, Move, Request
from cwm_cli.search.reading import extract_program
from cwm_gymnasium import cwm_environments
from cwm_induction.backend import Induction
from world_models import expressions
from world_models.random_programs import Author
from world_models.traps import TRAPS, trap


def box(size, limit=np.inf):
    return space_of(spaces.Box(-limit, limit, (size,), np.float64))


def number(count):
    return space_of(spaces.Discrete(count))


PROGRAMS = {
    "acrobot_arrays": (box(6), number(3), 1.0),
    "acrobot_lists": (box(6), number(3), 1.0),
    "acrobot_rk4_function": (box(6), number(3), 1.0),
    "bandit_patch": (number(8), number(3), None),
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
    "mountain_car_clip": (box(2), number(3), 0.3),
    "mountain_car_continuous": (box(2), box(1, 1.0), 0.3),
    "mountain_car_scalars": (box(2), number(3), 0.3),
    "pendulum_math": (box(3), box(1, 2.0), 1.0),
    "pendulum_numpy": (box(3), box(1, 2.0), 1.0),
    "point_mass_linear": (box(4), box(2, 1.0), 1.5),
    "pong_modulo": (box(5), number(3), 2.0),
    "reacher_slices": (box(11), box(2, 1.0), 0.3),
    "tank_tuples": (box(2), number(3), 0.6),
    "taxi_map": (number(500), number(6), None),
    "taxi_walls": (number(500), number(6), None),
}
REFUSED = {"blackjack_random": "a call of random.choice"}

FOLDER = Path(__file__).parent / "world_models"
POINT, THREE = box(2), number(3)


def made(program):
    """Make the Environment of a program, as the process of a program does."""
    module = ModuleType("world_model")
    exec(compile(program, "<program>", "exec"), module.__dict__)
    return module.Environment()


def model(program, observation_space, action_space):
    read = np.array if observation_space.is_float else int
    checks = Checks(tuple, float, bool, read)
    return Program(made(program), checks, action_space=action_space)


def batch(program, observation_space=POINT, action_space=THREE):
    spaces_ = {"observation_space": observation_space, "action_space": action_space}
    return batched(program, made(program), **spaces_)


def drawn(space, count, scale, rng):
    """Draw observations or actions."""
    if space.is_float:
        return list(rng.normal(size=(count, space.size)) * (scale or 1.0))
    return rng.integers(0, int(space.high[0]) + 1, count).tolist()


def source(name):
    return (FOLDER / f"{name}.py").read_text()


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_many_styles_answer_the_same(name):
    observation_space, action_space, scale = PROGRAMS[name]
    rng = np.random.default_rng(0)
    program = source(name)
    many = batch(program, observation_space, action_space)
    one = model(program, observation_space, action_space)
    rows = (drawn(observation_space, 200, scale, rng), drawn(action_space, 200, None, rng))
    verified(many, one, *rows)
    assert one.counter[0] == 0

    plans = np.array([[drawn(action_space, 15, None, rng) for _ in range(20)] for _ in range(3)])
    found = returns(many, rows[0][:3], plans)
    expected = one.returns(rows[0][:3], plans)
    np.testing.assert_allclose(found.returns, expected, rtol=1e-4, atol=1e-4)
    assert found.steps == one.counter[0]


@pytest.mark.parametrize("name", REFUSED)
def test_programs_that_draw_numbers_are_refused(name):
    with pytest.raises(Unbatched, match=REFUSED[name]):
        batch(source(name), number(9), number(2))


def test_every_program_of_the_folder_is_tried():
    others = {"expressions", "random_programs", "traps"}
    assert {path.stem for path in FOLDER.glob("*.py")} == {*PROGRAMS, *REFUSED, *others}


def outcome(program, starts, plan):
    """Compare every answer with that of a new object for each lane; say how it ended."""
    with np.errstate(all="ignore"):
        expected = [
            trajectory(program, start, plan[:, lane]) for lane, start in enumerate(starts.T)
        ]
    alive = np.arange(starts.shape[1])
    try:
        many = batch(program)
        many.stand(starts)
        for step, actions in enumerate(plan):
            there = [expected[lane][step] for lane in alive]
            failed = any(isinstance(answer, Exception) for answer in there)
            try:
                observations, rewards, terminated = many.step(actions[alive])
            except Unbatched:
                return "raises" if failed else "refused"
            assert not failed, "a lane failed and nobody noticed"
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


def trajectory(program, start, actions):
    """Return what a new object answers until the episode ends or it fails."""
    answers = []
    try:
        environment = made(program)
        environment.set_state(start.copy())
        for action in actions.tolist():
            observation, reward, terminated = environment.step(action)
            answers.append((np.array(observation, float), float(reward), bool(terminated)))
            if terminated:
                break
    except Exception as error:  # noqa: BLE001  # whatever the program raises
        answers.append(error)
    return answers


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRAPS)
def test_what_is_easily_translated_wrongly_is_right_or_refused(name):
    program, expected = trap(name)
    rng = np.random.default_rng(0)
    starts = np.round(rng.normal(size=(2, 41)) * 1.3, 2)
    assert outcome(program, starts, rng.integers(0, 3, (5, 41))) == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("expression", expressions.EXPRESSIONS)
def test_functions_of_python_math_and_numpy_answer_the_same(expression):
    assert judge(expressions.program(expression)) == "same"


def judge(program, seed=0):
    rng = np.random.default_rng(seed)
    starts = np.round(rng.normal(size=(2, 23)) * 2, 1)
    return outcome(program, starts, rng.integers(0, 3, (3, 23)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_programs_drawn_at_random_answer_the_same_or_refuse(seed):
    judge(Author(random.Random(seed)).program(), seed)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_most_programs_drawn_at_random_need_no_refusal():
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


def test_hidden_attributes_go_with_their_lanes():
    many = batch(COUNTING.format(reset="self.steps = 0"))
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


def test_returns_count_until_the_end_although_nobody_may_step_beyond_it():
    program = COUNTING.format(reset="self.steps = 0")
    plans = np.random.default_rng(0).integers(0, 3, (2, 50, 12))
    starts = [np.zeros(2), np.array([1.0, 0.0])]
    one = model(program, POINT, THREE)
    found = returns(batch(program), starts, plans)
    assert found.returns.tolist() == one.returns(starts, plans).tolist()
    assert found.steps == one.counter[0] < plans.size


def test_an_episode_that_cannot_go_on_is_refused():
    many = batch(COUNTING.format(reset="self.steps = 0"))
    with pytest.raises(Unbatched, match="line 13: an assertion fails"):
        returns(many, [np.array([3.0, 0.0])], np.zeros((1, 4, 5), int))


def test_a_program_that_remembers_earlier_episodes_is_refused():
    program = COUNTING.format(reset="pass")
    rows = [np.zeros(2)] * 20, [1] * 20
    with pytest.raises(Unbatched, match="rewards differ by up to 19 on 19 of 20 rows"):
        verified(batch(program), model(program, POINT, THREE), *rows)


def test_a_batch_of_another_program_is_refused():
    right = COUNTING.format(reset="self.steps = 0")
    for wrong, reason in (
        (right.replace("0.5 * action", "0.501 * action"), "observations differ by up to 0.00"),
        (right.replace("float(self.steps)", "1.1 * self.steps"), "rewards differ by up to 0.1"),
        (right.replace(">= 3", ">= 2.5"), r"terminated differs on .* rows, \d+ steps on"),
        (right.replace("float(self.steps)", "1.0 if self.steps < 4 else 4.5"), "rewards differ by"),
    ):
        rows = list(np.zeros((40, 2))), [1, 0] * 20
        with pytest.raises(Unbatched, match=reason):
            verified(batch(wrong), model(right, POINT, THREE), *rows)


def test_single_precision_is_taken_for_what_it_is():
    program = source("acrobot_arrays").replace("np.array([theta1", "np.float32([theta1")
    program = program.replace(
        "np.float32([theta1, theta2, dtheta1, dtheta2])",
        "np.array([theta1, theta2, dtheta1, dtheta2], dtype=np.float32)",
    )
    rng = np.random.default_rng(0)
    observations = list(rng.normal(size=(300, 6)).astype(np.float32))
    spaces_ = PROGRAMS["acrobot_arrays"][:2]
    many, one = batch(program, *spaces_), model(program, *spaces_)
    verified(many, one, observations, rng.integers(0, 3, 300).tolist())
    many.stand(np.stack(observations, -1))
    assert many.step(np.zeros(300, int))[0].dtype == np.float32


@pytest.mark.parametrize(
    ("observation_space", "action_space"),
    [
        (space_of(spaces.MultiDiscrete([2, 3])), THREE),
        (space_of(spaces.Box(0, 1, (2, 2))), THREE),
        (space_of(spaces.Tuple((spaces.Discrete(2),))), THREE),
        (POINT, space_of(spaces.MultiBinary(2))),
    ],
)
def test_other_spaces_are_refused(observation_space, action_space):
    with pytest.raises(Unbatched, match="neither one integer nor a vector of real numbers"):
        batch(COUNTING.format(reset="pass"), observation_space, action_space)


def test_reasons_name_the_line():
    program = COUNTING.format(reset="f = lambda x: x")
    with pytest.raises(Unbatched, match="line 10: a lambda"):
        batch(program)


def test_the_arrays_of_the_caller_stay_as_they_are():
    program = COUNTING.replace(
        "self.place += 0.5 * action", "action *= 2.0; self.place += action[0]"
    )
    many = batch(program.format(reset="observation[0] = 1.0"), POINT, box(1))
    starts, actions = np.zeros((2, 4)), np.ones((1, 4))
    many.stand(starts)
    assert many.step(actions)[0][0].tolist() == [2.0] * 4
    assert starts.tolist() == [[0.0] * 4] * 2
    assert actions.tolist() == [[1.0] * 4]


def test_blocks_can_be_entered_whatever_the_lanes_say():
    program = """
class Environment:
    def set_state(self, observation):
        self.x = observation[0]

    def step(self, action):
        if self.x > 0:
            self.x = self.x - 1
        else:
            self.x = self.x + 1
        return [self.x, 0.0], 0.0, False
"""
    transformed = Transformed(program, made(program))
    entered = []
    with lane_functions.replaced(settled=lambda mask: entered.append(mask) or mask):
        environment = transformed.make(3)
        environment.set_state(np.ones((2, 3)))
        environment.step(np.zeros(3, int))
    assert environment.x.tolist() == [0.0, 0.0, 0.0]
    assert [mask.tolist() for mask in entered] == [[True] * 3]


def induced(problem):
    text = Induction().complete(Request((), 0, Move(GENERATE), problem)).text
    return extract_program(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("CartPole-v1", {}),
        ("MountainCar-v0", {}),
        ("MountainCarContinuous-v0", {}),
        ("Pendulum-v1", {}),
        ("Acrobot-v1", {}),
        ("FrozenLake-v1", {"is_slippery": False}),
        ("FrozenLake8x8-v1", {"is_slippery": False}),
        ("CliffWalking-v1", {}),
        ("Taxi-v4", {}),
    ],
)
def test_induced_programs_can_be_batched(name, arguments, sandbox):
    data = record(cwm_environments()[name](), env_args=arguments, policy="random")
    program = induced(WorldModelProblem("", data.train, sandbox, AccuracyMetric.of(data.train)))
    columns = data.train.select("observations", "actions")
    rows = [list(columns[key]) for key in ("observations", "actions")]
    spaces_ = data.observation_space, data.action_space
    verified(batch(program, *spaces_), model(program, *spaces_), *rows)


@pytest.mark.slow
def test_programs_that_weigh_chances_are_left_to_themselves(sandbox):
    data = record(cwm_environments()["FrozenLake-v1"](), policy="random")
    program = induced(WorldModelProblem("", data.train, sandbox, AccuracyMetric.of(data.train)))
    assert "CHANCES" in program
    with pytest.raises(Unbatched):
        batch(program, data.observation_space, data.action_space)
