"""Random spaces for Hypothesis, and equality of their values."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, max_side=3)

KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)


@st.composite
def boxes(draw: st.DrawFn) -> gym.Space:
    dtype = np.dtype(draw(st.sampled_from(["float32", "float64", "uint8", "int32", "int64"])))
    shape = draw(SHAPES)
    if dtype.kind == "f":
        sides = draw(
            st.sampled_from([(-1.5, 0.1), (0.0, np.inf), (-np.inf, 7.0), (-np.inf, np.inf)])
        )
        return spaces.Box(*sides, shape, dtype.type)
    high = draw(hnp.arrays(dtype, shape, elements=st.integers(0, 100)))
    return spaces.Box(np.zeros(shape, dtype), high, dtype=dtype.type)


LEAVES = st.one_of(
    boxes(),
    st.builds(spaces.Discrete, st.integers(1, 500), start=st.integers(-5, 5)),
    st.builds(spaces.MultiDiscrete, hnp.arrays(np.int64, SHAPES, elements=st.integers(1, 9))),
    st.builds(spaces.MultiBinary, hnp.array_shapes(max_dims=2, max_side=4).map(list)),
    st.builds(spaces.Text, st.integers(1, 20)),
)

SPACES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(spaces.Tuple),
        st.dictionaries(KEYS, inner, max_size=3).map(spaces.Dict),
    ),
    max_leaves=6,
)


quickly = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def same(one: object, other: object) -> bool:
    """Whether two values are equal in structure, type and every bit that counts."""
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and list(one) == list(other)
            and same([*one.values()], [*other.values()])
        )
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        equal = np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and equal
    return one == other
