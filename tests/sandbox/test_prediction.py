"""No process of a program receives answers among its questions, and answers are repeatable."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from candidates import BOX, LIMITS, dataset_of, predicting, program
from cwm_cli.data.dataset import Dataset
from cwm_cli.sandbox import Sandbox
from cwm_cli.sandbox.conversation import Reply
from cwm_cli.sandbox.failures import KILLED_WORKERS, Failure
from cwm_cli.sandbox.job import Phase
from cwm_cli.sandbox.prediction import (
    APART,
    MAX_AUDITED_DRAWS,
    ProgramAnswers,
    RowQuestions,
    check_outcome_memory,
    find_difference,
    split_rows,
)
from recordings import cartpole, record


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(LIMITS) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def poles() -> Dataset:
    return record("CartPole-v1", episodes=20)[0]


def relabelled(dataset: Dataset, episodes: np.ndarray) -> Dataset:
    """Return a dataset whose rows belong to other episodes."""
    return replace(dataset, columns=dataset.columns | {"episodes": episodes})


def split(dataset: Dataset, apart: int = 2) -> list[np.ndarray]:
    """Return the parts that have rows, shuffled."""
    return [part for part in split_rows(dataset, apart, np.random.default_rng(0)) if len(part)]


def judged(sandbox: Sandbox, text: str, dataset: Dataset, seed: int = 0) -> Failure | None:
    """Return how a program fails, if it does, when it is asked or when it is audited."""
    columns, failure = sandbox.predict(text, dataset, seed=seed)
    return failure or sandbox.audit(text, dataset, columns, seed=seed)


ROWS = dataset_of(spaces.Discrete(2), 60)

DRAWS = program("return self.state, self.rng.random(), False")


@given(episodes=st.lists(st.integers(-3, 3), max_size=60))
def test_no_part_has_two_consecutive_rows_of_an_episode(episodes: list[int]) -> None:
    labels = np.array(episodes, dtype=np.int64)
    parts = split(relabelled(ROWS[np.arange(len(labels))], labels))
    assert sorted(row for part in parts for row in part) == list(range(len(labels)))
    for part in map(set, parts):
        for episode in set(episodes):
            members = np.flatnonzero(labels == episode).tolist()
            for before, after in pairwise(members):
                assert not {before, after} <= part


@given(chosen=st.sets(st.integers(0, 59)), length=st.integers(1, 60))
def test_no_part_of_a_subset_has_consecutive_rows(chosen: set[int], length: int) -> None:
    labelled = relabelled(ROWS, np.arange(60) // length)
    rows = np.array(sorted(chosen), dtype=np.int64)
    for part in split(labelled[rows]):
        kept = set(rows[part].tolist())
        assert not [row for row in kept if row + 1 in kept and (row + 1) % length]


def test_episodes_of_one_row_are_in_one_part() -> None:
    [part] = split(relabelled(ROWS, np.arange(60)))
    assert len(part) == 60


@given(lengths=st.lists(st.integers(1, 70), max_size=6), chosen=st.sets(st.integers(0, 99)))
def test_audited_rows_of_an_episode_are_far_apart(lengths: list[int], chosen: set[int]) -> None:
    labels = np.repeat(np.arange(len(lengths)), lengths)
    whole = relabelled(dataset_of(spaces.Discrete(2), len(labels)), labels)
    rows = np.array([row for row in range(len(labels)) if row not in chosen], dtype=np.int64)
    parts = split(whole[rows], APART)
    assert sorted(row for part in parts for row in part) == list(range(len(rows)))
    for part in parts:
        for episode in set(labels.tolist()):
            together = np.sort(rows[part][labels[rows[part]] == episode])
            assert (np.diff(together) > 20).all()


def audit_jobs(text: str, dataset: Dataset, answers: ProgramAnswers) -> Any:
    """Return the jobs of each side of an audit, which are not run."""
    asked: list[Any] = []

    def run_apart(sides: Any, limits: Any) -> list[list[Reply]]:
        asked.extend(sides)
        return [[Reply({}, KILLED_WORKERS)]]

    assert RowQuestions(run_apart, LIMITS, text, dataset, 0).audit(answers) == KILLED_WORKERS
    return asked


def test_no_side_of_an_audit_has_consecutive_rows() -> None:
    rows = dataset_of(spaces.Discrete(200), 120)
    columns = rows.columns | {"observations": np.arange(120), "episodes": np.zeros(120, int)}
    sides = audit_jobs(program(), replace(rows, columns=columns), ProgramAnswers({}))
    numbers = [np.concatenate([job.columns["observations"] for job in jobs]) for jobs in sides]
    assert sorted(np.concatenate(numbers).tolist()) == list(range(120))
    assert all((np.diff(np.sort(places)) > 1).all() for places in numbers)


def test_an_audit_repeats_some_draws_in_another_order() -> None:
    answers = ProgramAnswers({"rewards": np.zeros((len(ROWS), 20))}, shape="draws")
    sides = audit_jobs(DRAWS, ROWS, answers)
    jobs = [job for side in sides for job in side]
    assert {job.starts.shape[1:] for job in jobs} == {(MAX_AUDITED_DRAWS, 2)}


def test_outcomes_of_all_rows_take_at_most_256_mb() -> None:
    assert check_outcome_memory(1 << 10, 256, 1 << 10) is None
    failure = check_outcome_memory((1 << 10) + 1, 256, 1 << 10)
    assert failure is not None
    assert "with 256 in a row" in failure.message


@pytest.mark.parametrize(("change", "is_equal"), [(1e-11, True), (1e-7, False), (np.nan, False)])
def test_answers_are_equal_up_to_rounding(change: float, is_equal: bool) -> None:
    first = {"rewards": np.array([1.0, np.nan, np.inf])}
    second = {"rewards": first["rewards"] + np.array([change, 0.0, 0.0])}
    failure = find_difference(first, second, lambda row: f"row {row}", "advice")
    assert (failure is None) == is_equal


def test_order_of_audited_rows_is_random(poles: Dataset) -> None:
    parts = split(poles, APART)
    assert len(parts) == APART
    assert all(part.tolist() != sorted(part) for part in parts if len(part) > 5)


CHEAT = program(
    "return found(self.state), 1.0, False",
    top="""
import gc
import sys

seen = {}

def look():
    frame, holders = sys._getframe(), []
    while frame:
        holders += frame.f_locals.values()
        frame = frame.f_back
    for holder in [*holders, *gc.get_objects()]:
        columns = getattr(holder, "columns", None)
        if isinstance(columns, dict) and "observations" in columns:
            for row in columns["observations"]:
                seen[round(float(row[0]), 6), round(float(row[2]), 6)] = row

def found(state):
    if not seen:
        look()
    guess = round(state[0] + 0.02 * state[1], 6), round(state[2] + 0.02 * state[3], 6)
    near = [seen[key] for key in seen if abs(key[0] - guess[0]) + abs(key[1] - guess[1]) < 1e-5]
    return near[0] if near else state
""",
)
"""Computes positions from speeds, and looks for all else among the questions that it finds."""


def share_found(sandbox: Sandbox, dataset: Dataset) -> float:
    """Return the share of next observations that the cheat gets exactly."""
    columns, failure = sandbox.predict(CHEAT, dataset)
    assert failure is None
    same = columns["next_observations"] == dataset.columns["next_observations"]
    return float(same.all(axis=1).mean())


def test_a_program_cannot_look_up_its_answers_among_its_questions(
    sandbox: Sandbox, poles: Dataset
) -> None:
    assert share_found(sandbox, poles) == 0.0


def test_program_could_look_up_answers_in_a_single_process(
    sandbox: Sandbox, poles: Dataset
) -> None:
    answers = sandbox.run(predicting(CHEAT, poles)).slots
    assert answers["phase"] == Phase.DONE
    same = answers["next_observations"] == poles.columns["next_observations"]
    followed = 1 - 20 / len(poles)  # the last row of an episode has no successor
    assert same.all(axis=1).mean() == pytest.approx(followed, abs=0.02)
    assert followed > 0.9


def test_looked_up_answers_differ_in_the_audit(sandbox: Sandbox, poles: Dataset) -> None:
    apart = relabelled(poles, np.arange(len(poles)))
    failure = judged(sandbox, CHEAT, apart)
    assert failure is not None
    assert failure.kind == "nondeterministic"


VARYING = {
    "a clock": program("return self.state, time.perf_counter(), False"),
    "a clock in the observation": program("return self.state + time.time() % 1, 0.0, False"),
    "the operating system": program("return self.state, os.urandom(1)[0] + 0.5, False"),
    "SystemRandom": program("return self.state, random.SystemRandom().random(), False"),
    "an unseeded generator": program("return self.state, np.random.default_rng().random(), False"),
    "a generator with its own state": program(
        "return self.state, self.own.random(), False", init="self.own = np.random.default_rng(0)"
    ),
    "a counter": program("self.n += 1; return self.state, self.n, False", init="self.n = 0"),
    "a counter in the class": program(
        "Environment.n += 1; return self.state, Environment.n, False",
        init="Environment.n = 0",
    ),
    "the row before": program(
        "return self.state, self.old, False",
        init="self.state = [0.0]",
        set_state="self.old = self.state[0]; self.state = observation",
    ),
    "a global that grows": program(
        "seen.append(0); return self.state, 0.0, len(seen) % 2 == 0", top="seen = []"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VARYING)
def test_varying_answers_fail_with_the_reason(sandbox: Sandbox, name: str) -> None:
    failure = judged(sandbox, VARYING[name], BOX)
    assert failure is not None
    assert failure.kind == "nondeterministic"
    first, advice = failure.message.splitlines()
    assert first.startswith("two calls of set_state([")
    assert " returned different results: " in first
    assert " and then " in first
    assert advice.startswith("A prediction may only depend on the observation and the action")


STEADY = {
    "random": program("return self.state, random.gauss(0, 1), False"),
    "numpy.random": program("return self.state + np.random.rand(4), np.random.rand(), False"),
    "a generator for each row": program(
        "return self.state, np.random.default_rng(3).random(), False"
    ),
    "sets of texts": program("return self.state, hash(''.join({*map(str, self.state)})), False"),
    "numpy": program("return np.linalg.inv(np.diag(self.state) + np.eye(4))[0], 0.0, False"),
    "a last bit that depends on earlier rows": program(
        "self.last *= -1; return self.state * (1 + 1e-15 * self.last), 1.0, False",
        init="self.last = 1",
    ),
    "no numbers": program("return self.state * np.nan, float('nan'), False"),
    "zero with a sign": program("return self.state * -0.0, -0.0, False"),
    "memory of the same row": program(
        "return self.state, memory.setdefault(str(self.state), self.state.sum()), False",
        top="memory = {}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STEADY)
def test_stable_answers_are_kept(sandbox: Sandbox, name: str) -> None:
    first, second = (sandbox.predict(STEADY[name], BOX) for _ in range(2))
    assert (first.failure, second.failure) == (None, None)
    assert sandbox.audit(STEADY[name], BOX, first.columns) is None
    for column, values in first.columns.items():
        np.testing.assert_array_equal(values, second.columns[column])


def test_exception_in_the_audit_is_a_failure(sandbox: Sandbox) -> None:
    breaking = program(
        "self.n += 1; assert self.n > 1 or self.state[0] > 0; return self.state, 0.0, False",
        init="self.n = 0",
    )
    failures = [judged(sandbox, breaking, BOX, seed=seed) for seed in range(6)]
    messages = {
        failure.message.splitlines()[0]
        for failure in failures
        if failure and failure.kind == "nondeterministic"
    }
    assert messages == {
        "in a second run with another order of rows, the program failed: AssertionError"
    }


PLAIN = """
memory = {}

class Environment:
    turns = 0

    def set_state(self, observation):
        self.state = observation

    def step(self, action):
        self.turns += 1
        return self.state, ANSWER, False
"""
"""Calls no function whose results differ between processes."""

CARRYING = {
    "a counter": "self.turns",
    "the first answer that it gave": "memory.setdefault(0, self.state[0])",
    "how many answers it has given": "len(memory.setdefault(0, [])) + (memory[0].append(0) or 0)",
    "its turn, kept for each row": "memory.setdefault(self.state.tobytes(), self.turns)",
}


@pytest.mark.parametrize("name", CARRYING)
def test_state_carried_between_rows_is_a_failure(sandbox: Sandbox, name: str) -> None:
    failure = judged(sandbox, PLAIN.replace("ANSWER", CARRYING[name]), BOX)
    assert failure is not None
    assert failure.kind == "nondeterministic"


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_audit_accepts_few_rows(sandbox: Sandbox, rows: int) -> None:
    columns, failure = sandbox.predict(program(), BOX[np.arange(rows)])
    assert failure is None
    assert sandbox.audit(program(), BOX[np.arange(rows)], columns) is None
    assert np.array_equal(columns["next_observations"], BOX.columns["observations"][:rows])
    assert columns["rewards"].shape == columns["terminations"].shape == (rows,)


def test_correct_program_is_confirmed(sandbox: Sandbox, poles: Dataset) -> None:
    columns, failure = sandbox.predict(cartpole(), poles)
    assert failure is None
    assert sandbox.audit(cartpole(), poles, columns) is None
    wrong = np.abs(columns["next_observations"] - poles.columns["next_observations"])
    assert wrong.max() < 1e-5
    assert np.array_equal(columns["terminations"], poles.columns["terminations"])
