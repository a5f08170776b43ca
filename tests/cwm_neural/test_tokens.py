"""Grid tokenizer: decoding inverts encoding."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from cwm_cli.data.dataset import Dataset, Transition  # noqa: E402
from cwm_cli.data.spaces import Space  # noqa: E402
from cwm_cli.errors import CwmError  # noqa: E402
from cwm_neural.grid import GridTokenizer  # noqa: E402
from recordings import record  # noqa: E402

torch.set_num_threads(1)
pytestmark = pytest.mark.slow


def rows_of(space, observations):
    """Return rows with transitions from each observation to the next."""
    pairs = zip(observations, [*observations[1:], observations[0]], strict=True)
    rows = [Transition(one, 0, other, 0.0, False) for one, other in pairs]
    return Dataset.of(
        rows, observation_space=space, action_space=Space("discrete", low=(0,), high=(1,))
    )


def integers(shape, low, high):
    """Return a box space of whole numbers."""
    size = int(np.prod(shape))
    return Space("box", shape=shape, low=(low,) * size, high=(high,) * size)


@settings(max_examples=25)
@given(st.data())
def test_numbers_boards_and_texts_are_decoded_exactly(data):
    low, count = data.draw(st.integers(-5, 5)), data.draw(st.integers(1, 6))
    leaves = {
        "number": (Space("discrete", low=(low,), high=(low + 3,)), ()),
        "vector": (integers((3,), low, low + 9), (3,)),
        "board": (integers((4, 2), 0, 3), (4, 2)),
        "layers": (integers((2, 3, 2), -1, 1), (2, 3, 2)),
    }
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    space = Space(
        "dict",
        keys=("said", *leaves),
        children=(Space("text", max_length=9), *(leaf for leaf, _ in leaves.values())),
    )
    words = st.text(max_size=9).filter(lambda text: "\0" not in text)
    observations = [
        {"said": data.draw(words)}
        | {
            key: rng.integers(int(leaf.low[0]), int(leaf.high[0]) + 1, shape)
            for key, (leaf, shape) in leaves.items()
        }
        for _ in range(count)
    ]
    rows = rows_of(space, observations)
    tokenizer = GridTokenizer(space, None)
    tokenizer.fit(rows, 0)
    seen = rows.select("observations")
    tokens = tokenizer.encode(seen)
    again = GridTokenizer(space, None)
    again.restore(tokenizer.state())
    assert tokens.shape == (count, 1 + 1 + 3 + 8 + 6)
    assert torch.equal(again.encode(seen), tokens)
    assert tokenizer.possible.gather(1, tokens.T).all()
    back = again.decode(tokens, None)
    for name, column in seen.items():
        assert np.array_equal(back[name], column), name


@pytest.mark.parametrize("name", ["DoorKey-5x5", "ObstructedMaze-1Dlhb", "GoToObject-6x6-N2"])
def test_objects_keep_their_table_rows(name):
    from cwm_minigrid.grid import SCHEMA

    rows, _ = record(f"MiniGrid-{name}-v0", episodes=4, limit=60)
    tokenizer = GridTokenizer(rows.observation_space, SCHEMA)
    tokenizer.fit(rows, 0)
    assert tokenizer.measure(rows) == {"unknown": 0, "round_trip": 1}


def test_unknown_cells_keep_their_previous_content():
    space = integers((2, 2), 0, 9)
    tokenizer = GridTokenizer(space, None)
    tokenizer.fit(rows_of(space, [np.array([[1, 2], [3, 4]])]), 0)
    met, new = np.array([[[1, 2], [3, 4]]]), np.array([[[1, 2], [3, 9]]])
    tokens = tokenizer.encode({"observations": new})
    assert tokens[0].tolist()[-1] == 0
    assert np.array_equal(tokenizer.decode(tokens, {"observations": met})["observations"], met)


def test_real_numbers_are_rounded_to_codes():
    space = Space("box", "float32", (2,), (-np.inf,) * 2, (np.inf,) * 2)
    rng = np.random.default_rng(0)
    seen = rng.normal(size=(500, 2)).astype(np.float32)
    seen[:, 1] = rng.integers(0, 5, 500)  # each of few values is a code
    tokenizer = GridTokenizer(space, None, codes=32)
    tokenizer.fit(rows_of(space, list(seen)), 0)
    columns = {"observations": seen}
    back = tokenizer.decode(tokenizer.encode(columns), None)["observations"]
    assert np.array_equal(back[:, 1], seen[:, 1])
    assert np.abs(back[:, 0] - seen[:, 0]).mean() < 0.05


def test_too_many_tokens_are_refused():
    with pytest.raises(CwmError, match="would be 1,024 tokens"):
        GridTokenizer(integers((32, 32), 0, 9), None)
