"""Packing of nested values into columns, and unpacking."""

import json
import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_cli.errors import CwmError
from random_spaces import SPACES, quickly, same


@quickly
@given(SPACES, st.integers(0, 2**31))
def test_unpack_inverts_pack(space: gym.Space, seed: int) -> None:
    space.seed(seed)
    values = [space.sample() for _ in range(3)]
    plain = space_of(space)
    columns = plain.pack("observations", values)
    assert list(columns) == [leaf.name for leaf in plain.leaves("observations")]
    assert same(values, [plain.unpack("observations", columns, row) for row in range(3)])


@quickly
@given(SPACES)
def test_from_json_inverts_to_json(space: gym.Space) -> None:
    plain = space_of(space)
    assert Space.from_json(json.loads(json.dumps(plain.to_json(), allow_nan=False))) == plain


@quickly
@given(hnp.arrays(st.sampled_from([np.float32, np.float64]), (2, 3)))
def test_pack_keeps_nan_and_infinity(values: np.ndarray) -> None:
    space = Space("box", str(values.dtype), (3,), (-np.inf,) * 3, (np.inf,) * 3)
    columns = space.pack("observations", list(values))
    assert columns["observations"].tobytes() == values.tobytes()


@quickly
@given(st.lists(st.text(st.characters(exclude_characters="\0"), max_size=30), max_size=4))
def test_unpack_inverts_pack_for_texts(texts: list[str]) -> None:
    space = Space("text", max_length=30)
    columns = space.pack("observations", texts)
    assert [space.unpack("observations", columns, row) for row in range(len(texts))] == texts


def test_pack_keeps_a_wider_type_than_that_of_the_space() -> None:
    space = space_of(spaces.Box(-1, 1, (2,), np.float32))
    values = [np.array([0.1, 0.2]), np.array([0.3, 0.4], np.float32)]
    assert space.pack("observations", values)["observations"].dtype == np.float64


def test_unpack_returns_copies() -> None:
    space = space_of(spaces.Box(0, 9, (2,), np.float64))
    columns = space.pack("observations", [np.zeros(2)])
    space.unpack("observations", columns, 0)[:] = 5
    assert not columns["observations"].any()


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (spaces.Discrete(3), 0.5, "observations do not fit their space (discrete)"),
        (spaces.Discrete(3), "left", "observations do not fit their space (discrete)"),
        (
            spaces.Box(0, 255, (2,), np.uint8),
            [3, 300],
            "observations do not fit their space (box of shape (2,), uint8)",
        ),
        (
            spaces.Box(0, 1, (2,)),
            [1.0, 2.0, 3.0],
            "the shape (3,) of observations does not match their space (2,)",
        ),
        (spaces.Text(5), "end\0", "observations do not fit their space (text)"),
    ],
)
def test_pack_rejects_values_that_it_would_change(
    space: gym.Space, value: object, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        space_of(space).pack("observations", [value])


@pytest.mark.parametrize(
    ("space", "reason"),
    [
        (spaces.Box(0, 255, (96, 96, 3), np.uint8), "actions are pixels (96x96x3)"),
        (spaces.Box(0, 1, (200, 100)), "actions have 20,000 components (200x100)"),
        (spaces.Sequence(spaces.Discrete(2)), "actions of a space Sequence are not supported"),
        (spaces.Graph(spaces.Discrete(2), None), "actions of a space Graph are not supported"),
        (spaces.Dict({1: spaces.Discrete(2)}), "actions have keys that are not text"),
    ],
)
def test_unsupported_space_is_an_error(space: gym.Space, reason: str) -> None:
    with pytest.raises(CwmError) as refusal:
        space_of(spaces.Tuple([space]), "actions")
    assert str(refusal.value).startswith(reason)
    assert "\n" not in str(refusal.value)


def test_small_board_of_bytes_is_not_a_picture() -> None:
    assert space_of(spaces.Box(0, 255, (7, 7, 3), np.uint8)).size == 147


def test_dot_in_a_key_gives_its_own_column() -> None:
    space = space_of(
        spaces.Dict({"a.b": spaces.Discrete(2), "a": spaces.Dict(b=spaces.Discrete(3))})
    )
    value = {"a": {"b": 2}, "a.b": 1}
    columns = space.pack("observations", [value])
    assert len(columns) == 2
    assert space.unpack("observations", columns, 0) == value
