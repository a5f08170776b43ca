"""Random segments of episodes for training."""

import numpy as np
import pytest

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.errors import CwmError
from cwm_neural.sampling import EpisodeSampler

SPACE = Space("discrete", low=(0,), high=(999,))


def rows_of(*lengths: int) -> Dataset:
    """Return interleaved rows of episodes with the given lengths."""
    rows = [
        Transition(10 * episode + step, 0, 10 * episode + step + 1, 0.0, False, episode=episode)
        for step in range(max(lengths, default=0))
        for episode, length in enumerate(lengths)
        if step < length
    ]
    return Dataset.of(rows, observation_space=SPACE, action_space=SPACE)


def test_segments_are_ordered_parts_of_one_episode() -> None:
    rows = rows_of(3, 8, 5)
    sampler = EpisodeSampler(rows)
    for anchor in ("start", "end"):
        places, mask = sampler.draw(np.random.default_rng(0), 200, 4, anchor=anchor)
        seen = rows.columns["observations"][places]
        for segment, counted in zip(seen, mask, strict=True):
            part = segment[counted]
            assert (np.diff(part) == 1).all()
            assert len(set(part // 10)) == 1
            assert counted[0 if anchor == "start" else -1]
            assert counted.all() or part[-1 if anchor == "start" else 0] % 10 == (
                {0: 2, 1: 7, 2: 4}[part[0] // 10] if anchor == "start" else 0
            )


def test_episodes_are_equally_likely_unless_recent() -> None:
    rows = rows_of(1, 9, 1, 9, 1, 9, 1, 9)
    draws = [
        EpisodeSampler(rows, recent=recent).draw(np.random.default_rng(1), 4000, 1)
        for recent in (False, True)
    ]
    even, recent = (
        np.bincount(rows.columns["episodes"][places[:, 0]], minlength=8) / 4000
        for places, _ in draws
    )
    np.testing.assert_allclose(even, 1 / 8, atol=0.02)
    np.testing.assert_allclose(
        recent.reshape(4, 2).sum(axis=1), (0.125, 0.125, 0.25, 0.5), atol=0.03
    )


def test_samples_depend_on_the_generator_and_zero_rows_are_refused() -> None:
    sampler = EpisodeSampler(rows_of(4, 6), recent=True)
    left, right = (sampler.draw(np.random.default_rng(5), 9, 3) for _ in range(2))
    np.testing.assert_array_equal(left.rows, right.rows)
    with pytest.raises(CwmError, match="no rows"):
        EpisodeSampler(rows_of())
