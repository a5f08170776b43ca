"""Answers of every space arrive unchanged, or fail with a message."""

from collections.abc import Iterator

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from candidates import BOX, LIMITS, dataset_of, program
from cwm_cli.sandbox import Sandbox
from cwm_cli.sandbox.job import NEVER


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(LIMITS) as sandbox:
        yield sandbox


SPACES = [
    spaces.Box(-np.inf, np.inf, (3,)),
    spaces.Box(-1, 1, (2, 2), np.float64),
    spaces.Box(0, 1, ()),
    spaces.Box(0, 255, (5,), np.uint8),
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([3, 4]),
    spaces.MultiBinary([2, 3]),
    spaces.Text(7, charset="abc é☃😀"),
    spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (2,)), spaces.Text(4)]),
    spaces.Dict({"a.b": spaces.Discrete(3), "c%": spaces.Tuple([spaces.MultiBinary(2)])}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_values_of_every_space_survive_the_round_trip(sandbox: Sandbox, space: gym.Space) -> None:
    dataset = dataset_of(space)
    columns, failure = sandbox.predict(program(), dataset)
    assert failure is None
    predicted = {name: column for name, column in columns.items() if "observation" in name}
    assert predicted.keys() == dataset.select("next_observations").keys()
    for name, column in predicted.items():
        assert column.dtype.kind in "fiU"
        assert np.array_equal(column, dataset.columns[name])


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_actions_of_every_space_reach_the_program(sandbox: Sandbox, space: gym.Space) -> None:
    dataset = dataset_of(space)
    columns, failure = sandbox.predict(program("return action, 0.0, True"), dataset)
    assert failure is None
    for name, column in dataset.select("actions").items():
        assert np.array_equal(columns[f"next_observations{name[len('actions') :]}"], column)


@pytest.mark.parametrize(
    ("space", "observation", "words"),
    [
        (spaces.Discrete(3), "'1'", "the observation should hold numbers"),
        (spaces.Discrete(3), "np.zeros(2)", "should have the shape (), got the shape (2,)"),
        (spaces.Text(3), "5", "the observation should be a str, got 5"),
        (spaces.Tuple([spaces.Discrete(2)] * 2), "(1,)", "a tuple of 2 parts, got a tuple of 1"),
        (spaces.Tuple([spaces.Discrete(2)] * 2), "(1, 'x')", "the observation[1] should hold"),
        (spaces.Dict(a=spaces.Discrete(2)), "{'b': 1}", "keys 'a', got a dict with the keys 'b'"),
        (spaces.Dict(a=spaces.Discrete(2)), "{'a': None}", "the observation['a'] should hold"),
    ],
)
def test_wrong_structure_is_named_in_the_failure(
    sandbox: Sandbox, space: gym.Space, observation: str, words: str
) -> None:
    failure = sandbox.predict(
        program(f"return {observation}, 0.0, False"), dataset_of(space)
    ).failure
    assert failure is not None
    assert failure.kind == "wrong_output"
    assert words in failure.message


@pytest.mark.parametrize(
    "value",
    ["1.5", "float('nan')", "float('inf')", "-1e300", "2**63", "10**30", "np.uint64(2**64 - 1)"],
)
def test_fraction_for_an_integer_is_wrong_but_no_failure(sandbox: Sandbox, value: str) -> None:
    for space, answer in (
        (spaces.Discrete(3), value),
        (spaces.MultiDiscrete([3, 3]), f"[0, {value}]"),
    ):
        columns, failure = sandbox.predict(
            program(f"return {answer}, 0.0, False"), dataset_of(space)
        )
        assert failure is None
        assert columns["next_observations"].reshape(20, -1)[0, -1] == NEVER


def test_whole_numbers_of_any_type_match_integers(sandbox: Sandbox) -> None:
    for answer in ("2.0", "np.float32(2)", "np.int8(2)", "True + 1", "np.array(2)", "np.uint64(2)"):
        columns, failure = sandbox.predict(
            program(f"return {answer}, 0.0, False"), dataset_of(spaces.Discrete(3))
        )
        assert failure is None
        assert (columns["next_observations"] == 2).all()


def test_too_long_text_never_matches(sandbox: Sandbox) -> None:
    dataset = dataset_of(spaces.Text(3))
    columns, failure = sandbox.predict(program("return self.state + 'x' * 5, 0.0, False"), dataset)
    assert failure is None
    assert not (columns["next_observations"] == dataset.columns["next_observations"]).any()
    columns, _ = sandbox.predict(program("return '\\ud800', 0.0, False"), dataset)
    assert (np.char.str_len(columns["next_observations"]) > 0).all()


def test_nan_and_infinity_are_kept(sandbox: Sandbox) -> None:
    step = "return self.state * np.nan, float('-inf'), False"
    columns, failure = sandbox.predict(program(step), BOX)
    assert failure is None
    assert np.isnan(columns["next_observations"]).all()
    assert (columns["rewards"] == -np.inf).all()
