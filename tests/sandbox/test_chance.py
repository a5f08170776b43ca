"""Programs with outcomes or random draws: their answers are checked and audited."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces

from candidates import LIMITS, dataset_of
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.envs.spec import space_of
from cwm_cli.sandbox import Sandbox, episodes
from cwm_cli.sandbox.episodes import episodes_of
from cwm_cli.sandbox.failures import Failure
from cwm_cli.worlds import ProgramModel
from recordings import record

LINE = dataset_of(spaces.Discrete(8), 60)
POINTS = dataset_of(spaces.Box(-1, 1, (3,)), 40)


def cases(names: Iterable[str], *quick: str) -> list[object]:
    """Return cases; mark all but the quick ones as slow."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(LIMITS) as sandbox:
        yield sandbox


def chance(
    outcomes: str = "return [(0.5, self.state, 0.0, False), (0.5, action, 1.0, True)]",
    step: str = "return self.outcomes(action)[0][1:]",
    init: str = "pass",
) -> str:
    """Return a program with outcomes; the method `outcomes` begins in line 11."""
    return f"""
import os, time, random
import numpy as np

class Environment:
    def __init__(self):
        {init}
    def set_state(self, observation):
        self.state = observation
    def outcomes(self, action):
        {outcomes}
    def step(self, action):
        {step}
"""


def drawn(step: str, init: str = "pass", top: str = "") -> str:
    """Return a program that draws."""
    return f"""{top}
import os, time, random
import numpy as np

class Environment:
    def __init__(self):
        {init}
    def set_state(self, observation):
        self.state = observation
    def step(self, action):
        {step}
"""


def judged(sandbox: Sandbox, text: str, rows: Dataset, seed: int = 0) -> Failure | None:
    """Return the failure of a program in the first pass or in the audit, or None."""
    model = ProgramModel(text, sandbox)
    found = model.predict(rows, seed=seed, draws=12)
    return found.failure or model.audit(rows, found, seed=seed).failure


def test_probabilities_of_outcomes_sum_to_one(sandbox):
    some = "return [(3, self.state, 0.0, False), (1, action, 1, True), (0, 0, 2.0, False)]"
    model = ProgramModel(chance(some), sandbox)
    found = model.predict(LINE)
    assert found.shape == "outcomes"
    assert found.probabilities.tolist() == [[0.75, 0.25, 0.0]] * 60
    rows = LINE.columns["observations"], LINE.columns["actions"], np.zeros(60)
    assert np.array_equal(found.columns["next_observations"], np.stack(rows, axis=1))
    assert found.columns["rewards"].tolist() == [[0.0, 1.0, 2.0]] * 60
    assert found.columns["terminations"].tolist() == [[False, True, False]] * 60
    assert model.audit(LINE, found).failure is None
    found.checked(LINE)
    one = sandbox.predict(model.text, LINE)
    assert np.array_equal(one.columns["next_observations"], LINE.columns["observations"])


@pytest.mark.slow
def test_width_of_outcomes_fits_the_largest_row(sandbox):
    every = "return [(1, place % 8, place, False) for place in range(1 + 20 * self.state)]"
    model = ProgramModel(chance(every), sandbox)
    found = model.predict(LINE)
    seen = LINE.columns["observations"]
    assert found.probabilities.shape == (60, 1 + 20 * seen.max())
    assert np.array_equal((found.probabilities > 0).sum(axis=1), 1 + 20 * seen)
    assert found.columns["rewards"].max(axis=1).tolist() == (20.0 * seen).tolist()
    assert model.audit(LINE, found).failure is None


def test_program_with_outcomes_needs_no_step(sandbox):
    text = chance("yield 1, self.state, 0.0, False").replace("def step", "def other")
    assert judged(sandbox, text, POINTS) is None


def test_draws_depend_on_row_draw_and_seed(sandbox):
    model = ProgramModel(
        drawn("return self.state, self.rng.normal(), self.rng.random() < 0.5"), sandbox
    )
    found = model.predict(LINE, seed=1, draws=64)
    assert found.shape == "draws"
    rewards = found.columns["rewards"]
    assert rewards.shape == (60, 64)
    assert len(np.unique(rewards)) == 60 * 64
    assert abs(rewards.mean()) < 0.1 and abs(rewards.std() - 1) < 0.1
    again, few = (model.predict(LINE, seed=1, draws=draws) for draws in (64, 3))
    assert np.array_equal(again.columns["rewards"], rewards)
    assert np.array_equal(few.columns["rewards"], rewards[:, :3])
    assert not np.isin(model.predict(LINE, seed=2).columns["rewards"], rewards).any()
    assert model.audit(LINE, found, seed=1).failure is None
    assert (
        sandbox.predict(model.text, LINE, seed=1).columns["rewards"].tolist()
        == rewards[:, 0].tolist()
    )


def test_rng_exists_before_the_environment_is_made(sandbox):
    text = drawn(
        "return self.state, float(self.kept is not None), False", "self.kept = self.rng.random()"
    )
    assert judged(sandbox, text, LINE) is None
    own = drawn("return self.state, self.rng.random(), False", "self.rng = np.random.default_rng()")
    assert judged(sandbox, own, LINE) is None, "the provided generator replaces it"


IGNORING = {
    "a generator of its own": drawn(
        "self.rng; return self.state, self.own.random(), False",
        "self.own = np.random.default_rng(7)",
    ),
    "an unseeded one": drawn(
        "self.rng = np.random.default_rng(); return self.state, self.rng.random(), False"
    ),
    "the clock": drawn("return self.state, self.rng.random() + time.perf_counter() % 1, False"),
    "the operating system": drawn("return self.state, self.rng.random() + os.urandom(1)[0], False"),
    "its earlier draws": drawn(
        "self.last = 0.9 * self.last + self.rng.normal(); return self.state, self.last, False",
        "self.last = 0.0",
    ),
    "outcomes that vary": chance(
        "p = np.random.default_rng().random(); return [(p, 0, 0.0, False), (1 - p, 1, 1.0, False)]"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", cases(IGNORING, "a generator of its own", "outcomes that vary"))
def test_draws_from_another_generator_are_refused(sandbox, name):
    failure = judged(sandbox, IGNORING[name], LINE)
    assert failure.kind == "nondeterministic"
    assert "Random outcomes may only use `self.rng`" in failure.message
    if name != "its earlier draws":
        line = IGNORING[name].split("\n")[failure.line - 1]
        assert failure.message.endswith(f"at line {failure.line}: {line.strip()}")
        assert any(word in line for word in ("default_rng", "perf_counter", "urandom"))


@pytest.mark.slow
def test_global_generators_are_seeded_for_every_draw(sandbox):
    text = drawn("return self.state, self.rng.random() + random.random() + np.random.rand(), False")
    assert judged(sandbox, text, LINE) is None


WRONG = {
    "negative": ("return [(1.5, 0, 0.0, False), (-0.5, 1, 0.0, False)]", "a probability is -0.5"),
    "not finite": ("return [(float('nan'), 0, 0.0, False)]", "a probability is nan"),
    "infinite": ("return [(float('inf'), 0, 0.0, False)]", "a probability is inf"),
    "sum to nothing": ("return [(0.0, 0, 0.0, False)]", "sum to 0"),
    "none": ("return []", "returned an empty list"),
    "too many": ("return [(1, 0, 0.0, False)] * 257", "more than 256 outcomes"),
    "endless": ("return ((1, 0, 0.0, False) for _ in iter(int, 1))", "more than 256 outcomes"),
}


def test_wrong_probabilities_fail_with_the_line(sandbox):
    for name, (body, words) in WRONG.items():
        failure = judged(sandbox, chance(body), LINE)
        assert (failure.kind, failure.line) == ("wrong_probabilities", 10), name
        assert words in failure.message, name
        assert "at line 10: def outcomes(self, action):" in failure.message, name
        assert "when asked for set_state(" in failure.message, name
        assert "and outcomes(" in failure.message, name


SHAPES = {
    "no list": "return 3",
    "a dict": "return {0: 1.0}",
    "one outcome": "return (1.0, 0, 0.0, False)",
    "a part too few": "return [(1.0, 0, 0.0)]",
    "a text": "return [('1', 0, 0.0, False)]",
    "an observation": "return [(1, [0, 1], 0.0, False)]",
}


def test_malformed_outcomes_fail_with_the_line(sandbox):
    for name, body in SHAPES.items():
        failure = judged(sandbox, chance(body), LINE)
        assert (failure.kind, failure.line) == ("wrong_output", 10), name


def test_step_outside_the_outcomes_is_a_contradiction(sandbox):
    failure = judged(sandbox, chance(step="return self.state, 0.5, False"), LINE)
    assert failure.kind == "contradiction"
    assert "which is not one of its outcomes" in failure.message
    assert failure.line == 10
    moving = "self.state = (self.state + 1) % 8; return [(1, self.state, 0.0, False)]"
    moves = chance(moving, "return (self.state + 1) % 8, 0.0, False")
    assert judged(sandbox, moves, LINE).kind == "contradiction"
    at_the_end = chance("return [(1, 0, 1.0, True)]", "return 5, 1.0, True")
    assert judged(sandbox, at_the_end, LINE) is None, "after the end nothing is observed"


def test_steps_with_other_frequencies_contradict_the_outcomes(sandbox):
    many = dataset_of(spaces.Discrete(8), 400)
    slips = "return [(1, (self.state + d) % 8, 0.0, False) for d in (0, 1, 7)]"
    draws = "return (self.state + [0, 1, 7][self.rng.integers(3)]) % 8, 0.0, False"
    assert judged(sandbox, chance(slips, draws), many) is None
    never = draws.replace("integers(3)", "integers(2)")
    failure = judged(sandbox, chance(slips, never), many)
    assert failure.kind == "contradiction"
    assert "led to outcome" in failure.message
    certain = draws.replace("self.rng.integers(3)", "0")
    assert judged(sandbox, chance(slips, certain), many) is None, (
        "a deterministic step is one of the outcomes"
    )


def test_missing_method_fails_with_the_line(sandbox):
    lacking = chance().replace("def set_state", "def reset")
    failure = judged(sandbox, lacking, LINE)
    assert (failure.kind, failure.line) == ("wrong_contract", 8)
    assert "no method set_state, and a program with reset also needs correct" in failure.message


def counting(count: int = 6, length: int = 12) -> Dataset:
    """Record a place that moves by a hidden speed, which differs between episodes."""
    rows, rng = [], np.random.default_rng(0)
    for episode in range(count):
        speed, place = episode + 1, float(rng.integers(50))
        for step in range(length + episode % 3):
            action = int(rng.integers(2))
            after = place + speed * (1 if action else -1)
            end = step == length + episode % 3 - 1
            rows.append(
                Transition(
                    np.array([place]),
                    action,
                    np.array([after]),
                    after - place,
                    end,
                    episode=episode,
                )
            )
            place = after
    box = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    return Dataset.of(
        rows, observation_space=space_of(box), action_space=space_of(spaces.Discrete(2))
    )


HIDDEN = counting()

REPEATED = HIDDEN.concatenate(
    replace(HIDDEN, columns=HIDDEN.columns | {"episodes": HIDDEN.columns["episodes"] + 6})
)
"""The same episodes twice: one copy reveals the answers of the other."""


def remembering(top: str, step: str, correct: str = "pass", reset: str = "pass") -> str:
    """Return a program with memory."""
    return f"""{top}
import os, time
import numpy as np

class Environment:
    seen = {{}}
    def reset(self, observation):
        self.place = observation
        {reset}
    def step(self, action):
        {step}
    def correct(self, observation, reward):
        {correct}
"""


MEMORY = """
class Environment:
    def reset(self, observation):
        self.place, self.speed = observation, 0.0
    def step(self, action):
        self.before, self.moved = self.place, 1 if action else -1
        reward = float(self.speed * self.moved)
        self.place = self.place + reward
        return self.place, reward, False
    def correct(self, observation, reward):
        self.speed = (observation - self.before)[0] * self.moved
        self.place = observation
"""
"""A program that infers the speed from the first step."""


def test_program_with_memory_predicts_each_step_and_is_then_corrected(sandbox):
    model = ProgramModel(MEMORY, sandbox)
    found = model.predict(HIDDEN)
    assert found.failure is None
    assert found.shape == "certain"
    right = (found.columns["next_observations"] == HIDDEN.columns["next_observations"])[:, 0]
    first = np.diff(HIDDEN.columns["episodes"], prepend=-1) > 0
    assert np.array_equal(right, ~first)
    assert model.audit(HIDDEN, found).failure is None
    found.checked(HIDDEN)


FILTER = """
import numpy as np

class Environment:
    def reset(self, observation):
        self.x, self.theta = observation
        self.speeds = None
    def step(self, action):
        self.action = action
        x_dot, theta_dot = self.speeds or (0.0, 0.0)
        force = 10.0 if action == 1 else -10.0
        sine, cosine = np.sin(self.theta), np.cos(self.theta)
        temp = (force + 0.05 * theta_dot**2 * sine) / 1.1
        angular = (9.8 * sine - cosine * temp) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        linear = temp - 0.05 * angular * cosine / 1.1
        self.gained = 0.02 * linear, 0.02 * angular
        self.before = self.x, self.theta
        self.x, self.theta = self.x + 0.02 * x_dot, self.theta + 0.02 * theta_dot
        self.speeds = x_dot + self.gained[0], theta_dot + self.gained[1]
        end = abs(self.x) > 2.4 or abs(self.theta) > 12 * 2 * np.pi / 360
        return np.array([self.x, self.theta]), 1.0, bool(end)
    def correct(self, observation, reward):
        x, theta = observation
        x_dot, theta_dot = (x - self.before[0]) / 0.02, (theta - self.before[1]) / 0.02
        self.x, self.theta = x_before, theta_before = self.before
        self.speeds = x_dot, theta_dot
        self.step(self.action)
        self.x, self.theta = x, theta
"""
"""A program for CartPole without speeds: it computes them from consecutive positions."""


@pytest.fixture(scope="module")
def poles() -> Dataset:
    return record("CartPole-v1", episodes=8)[0]


def without_speeds(poles: Dataset) -> Dataset:
    """Remove the speeds from the observations of CartPole."""
    names = "observations", "next_observations"
    columns = poles.columns | {name: poles.columns[name][:, [0, 2]].astype(float) for name in names}
    box = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    return replace(poles, columns=columns, observation_space=space_of(box))


def test_correct_program_with_memory_is_confirmed(sandbox, poles):
    hidden = without_speeds(poles)
    model = ProgramModel(FILTER, sandbox)
    found = model.predict(hidden)
    assert found.failure is None
    assert model.audit(hidden, found).failure is None
    wrong = np.abs(found.columns["next_observations"] - hidden.columns["next_observations"])
    later = np.concatenate([np.arange(len(each)) for each in episodes_of(hidden)]) > 1
    assert wrong[later].max() < 1e-5


LEAKING = {
    "outcomes of other episodes": (
        "seen = {}",
        "self.asked = (round(float(self.place[0])), action); "
        "self.place = self.place + seen.get(self.asked, 0.0); return self.place, 0.0, False",
        "seen[self.asked] = float(reward); self.place = observation",
    ),
    "the same, kept in the class": (
        "",
        "self.asked = (round(float(self.place[0])), action); "
        "self.place = self.place + Environment.seen.get(self.asked, 0.0); "
        "return self.place, 0.0, False",
        "Environment.seen[self.asked] = float(reward); self.place = observation",
    ),
    "how many episodes there are": (
        "begun = []",
        "return self.place, float(len(begun)), False",
        "begun.append(0)",
    ),
    "the number of the draw": (
        "numbers = iter(range(10**6))",
        "self.n = getattr(self, 'n', None) or next(numbers); return self.place, self.n, False",
        "pass",
    ),
    "the clock": ("", "return self.place, time.perf_counter(), False", "pass"),
    "a generator of its own": (
        "from numpy.random import default_rng; own = default_rng(0)",
        "return self.place, own.random(), False",
        "pass",
    ),
}


@pytest.mark.parametrize("name", cases(LEAKING, "outcomes of other episodes"))
def test_audit_refuses_leaks_between_episodes(sandbox, name):
    failure = judged(sandbox, remembering(*LEAKING[name]), REPEATED)
    assert failure.kind == "nondeterministic"
    assert failure.message.startswith("two calls of reset([")
    assert "store the memory in self" in failure.message
    if "seen" in LEAKING[name][0] or "clock" in name:
        assert failure.message.rsplit("\n", 1)[1].startswith(f"at line {failure.line}: ")


def around(count: int = 48, length: int = 11) -> Dataset:
    """Record walks around twelve places from different starts, with a reward for each place."""
    pays = np.random.default_rng(1).normal(size=12)
    rows = [
        Transition((e + t) % 12, 0, (e + t + 1) % 12, pays[(e + t) % 12], False, episode=e)
        for e in range(count)
        for t in range(length)
    ]
    place, one = space_of(spaces.Discrete(12)), space_of(spaces.Discrete(1))
    return Dataset.of(rows, observation_space=place, action_space=one)


def test_single_episodes_reveal_use_of_almost_all_other_episodes(sandbox, monkeypatch):
    waiting = remembering(
        "seen = {}",
        "self.n = getattr(self, 'n', -1) + 1; self.asked = self.place; "
        "return (self.place + 1) % 12, seen.get(self.place, 0.0) if self.n > 7 else 0.0, False",
        "seen[self.asked] = reward; self.place = observation",
    )
    rows = around()
    right = sandbox.predict(waiting, rows).columns["rewards"] == rows.columns["rewards"]
    assert right.mean() > 0.25
    assert judged(sandbox, waiting, rows).kind == "nondeterministic"
    monkeypatch.setattr(episodes, "SINGLE_EPISODES", 0)
    assert judged(sandbox, waiting, rows) is None


@pytest.mark.slow
def test_leaks_between_episodes_gain_without_an_audit(sandbox):
    seen = REPEATED.columns["next_observations"]
    gains = []
    for name in list(LEAKING)[:2]:
        columns, failure = sandbox.predict(remembering(*LEAKING[name]), REPEATED)
        assert failure is None
        gains.append(float((columns["next_observations"] == seen).mean()))
    assert min(gains) > 0.2
    plain = remembering("", "return self.place, 0.0, False", "self.place = observation")
    columns, failure = sandbox.predict(plain, REPEATED)
    assert failure is None
    assert float((columns["next_observations"] == seen).mean()) == 0.0


def test_outcome_of_a_step_arrives_after_its_prediction(sandbox):
    """A program that searches all reachable objects finds only past outcomes."""
    text = remembering("import gc, sys", LOOKING, "self.place = observation")
    columns, failure = sandbox.predict(text, HIDDEN)
    assert failure is None
    assert columns["rewards"].max() > 0, "it sees past outcomes"
    assert not (columns["rewards"] == HIDDEN.columns["next_observations"][:, 0]).any()


LOOKING = """
        frame, most = sys._getframe(), 0.0
        while frame:
            for value in list(frame.f_locals.values()):
                if isinstance(value, np.ndarray) and value.dtype.names:
                    most = max(most, *value["observations"].ravel().tolist())
            frame = frame.f_back
        return self.place, 1e6 + most, False"""


def test_program_with_memory_may_have_outcomes_or_draw(sandbox):
    told = MEMORY.replace(
        "    def correct",
        "    def outcomes(self, action):\n"
        "        after = self.place + self.speed * (1 if action else -1)\n"
        "        return [(3, after, float(after[0] - self.place[0]), False),\n"
        "                (1, self.place, 0.0, True)]\n"
        "    def correct",
    )
    model = ProgramModel(told, sandbox)
    found = model.predict(HIDDEN)
    assert found.failure is None
    assert found.shape == "outcomes"
    assert np.unique(found.probabilities, axis=0).tolist() == [[0.75, 0.25]]
    assert model.audit(HIDDEN, found).failure is None
    right = found.columns["next_observations"][:, 0] == HIDDEN.columns["next_observations"]
    assert right.mean() > 0.8
    leaping = told.replace("reward = float(self.speed * self.moved)", "reward = 99.0")
    failure = judged(sandbox, leaping, HIDDEN)
    assert (failure.kind, failure.line) == ("contradiction", 10)
    assert "when asked for reset([" in failure.message

    noise = MEMORY.replace("return self.place, reward", "return self.place, self.noisy(reward)")
    noise += "    def noisy(self, reward):\n        return reward + 0.1 * self.rng.normal()\n"
    model = ProgramModel(noise, sandbox)
    found = model.predict(HIDDEN, draws=16)
    assert found.failure is None
    assert found.columns["rewards"].shape == (len(HIDDEN), 16)
    assert len(np.unique(found.columns["rewards"])) == 16 * len(HIDDEN)
    assert model.audit(HIDDEN, found).failure is None
    few = model.predict(HIDDEN, draws=2)
    assert np.array_equal(few.columns["rewards"], found.columns["rewards"][:, :2])
    place = found.columns["next_observations"]
    assert (place == place[:, :1]).all(), "every draw starts at the state of the first draw"


INCOMPLETE = {
    "correct without reset": ("def reset", "def begin", "no method reset", 10),
    "correct without step": ("def step", "def go", "no method step", 10),
}


@pytest.mark.parametrize("name", INCOMPLETE)
def test_incomplete_memory_contract_fails_with_the_line(sandbox, name):
    method, other, words, line = INCOMPLETE[name]
    failure = judged(sandbox, MEMORY.replace(method, other), HIDDEN)
    assert (failure.kind, failure.line) == ("wrong_contract", line)
    assert words in failure.message


HOSTILE = {
    "hangs in reset": ("", "while True: pass", "pass", "pass", "timeout_cpu"),
    "hangs in correct": ("", "pass", "while True: pass", "pass", "timeout_cpu"),
    "hangs in a step": ("", "pass", "pass", "while True: pass", "timeout_cpu"),
    "sleeps in correct": ("", "pass", "time.sleep(9)", "pass", "timeout_wall"),
    "grows": ("kept = []", "pass", "kept.append(np.ones(1 << 22))", "pass", "memory"),
    "ends in correct": ("", "pass", "os._exit(0)", "pass", "early_exit"),
    "kills itself": ("", "pass", "os.kill(os.getpid(), 9)", "pass", "step_error"),
    "fails in correct": ("", "pass", "1 / 0", "pass", "step_error"),
    "writes replies of its own": ("", "pass", "pass", "os.write(5, b'x' * 99)", "wrong_output"),
    "closes its pipe": ("", "pass", "os.close(5)", "pass", "step_error"),
    "reads its questions": ("", "pass", "pass", "os.read(4, 1 << 16)", "timeout_wall"),
}


@pytest.mark.parametrize(
    "name", cases(HOSTILE, "fails in correct", "ends in correct", "writes replies of its own")
)
def test_hostile_programs_with_memory_fail(sandbox, name):
    top, reset, correct, step, kind = HOSTILE[name]
    body = f"{step}; return self.place, 0.0, False" if "while" not in step else step
    correct = f"self.place = observation; {correct}" if "while" not in correct else correct
    failure = judged(sandbox, remembering(top, body, correct, reset), HIDDEN)
    assert failure.kind == kind
    if name == "fails in correct":
        assert failure.message.splitlines()[1].startswith("at line ")
        assert "1 step with correct and step(" in failure.message
    assert sandbox.predict(MEMORY, HIDDEN).failure is None, "the next program is not affected"


@pytest.mark.slow
def test_steps_of_an_episode_share_the_time():
    spinning = remembering(
        "", "end = time.process_time() + 0.1; self.spin(end); return self.place, 0.0, False"
    )
    spinning += "    def spin(self, end):\n        while time.process_time() < end: pass\n"
    one = counting(count=1, length=40)
    with Sandbox(replace(LIMITS, cpu_seconds=0.6)) as sandbox:
        failure = judged(sandbox, spinning, one)
        assert failure.kind == "timeout_cpu"
        assert "more than 0.6 s of CPU time" in failure.message


def test_missing_rows_start_a_new_episode(sandbox):
    rows = np.delete(np.arange(len(HIDDEN)), [4, 5, 20])
    parts = episodes_of(HIDDEN[rows])
    assert len(parts) == 8
    assert np.concatenate(parts).tolist() == list(range(len(rows)))
    assert judged(sandbox, MEMORY, HIDDEN[rows]) is None


def test_audit_accepts_zero_or_one_row(sandbox):
    draws = drawn("return self.state, self.rng.random(), False")
    for text, rows in ((chance(), LINE), (draws, LINE), (MEMORY, HIDDEN)):
        for count in (0, 1):
            assert judged(sandbox, text, rows[np.arange(count)]) is None, (text, count)


@pytest.mark.slow
def test_one_worker_suffices_for_several_processes():
    with Sandbox(LIMITS, workers=1) as sandbox:
        assert judged(sandbox, MEMORY, HIDDEN) is None


@pytest.mark.slow
def test_arguments_of_reset_and_correct_are_copies(sandbox):
    changing = remembering(
        "",
        "self.place += 1; return self.place, 0.0, False",
        "observation += 1; self.place = observation",
    )
    assert judged(sandbox, changing, HIDDEN) is None
