"""The Atari plugin, if its emulator is installed."""

import numpy as np
import pytest

from cwm_cli.envs.spec import space_of
from folders import ROOT

EXTRA = ROOT / "extras" / "cwm-atari"


@pytest.fixture
def games(monkeypatch):
    pytest.importorskip("ale_py")
    pytest.importorskip("PIL")
    monkeypatch.syspath_prepend(str(EXTRA))
    from cwm_atari import Games

    return Games()


def test_game_continues_from_a_saved_state(games):
    spec = games["Atari-Breakout-v0"]()
    env = spec.make(noops=1)
    first, _ = env.reset(seed=1)
    assert space_of(env.observation_space).is_picture and first.shape == (64, 64, 3)
    seen, reward, *_ = env.step(1)
    assert env.observation_space.contains(seen) and reward == 0
    rewinder = spec.rewinder(env)
    state, runs = rewinder.save(), []
    for _ in range(2):
        rewinder.load(state)
        runs.append([env.step(action) for action in (2, 3, 0, 2)])
    for one, other in zip(*runs, strict=True):
        assert np.array_equal(one[0], other[0]) and one[1:4] == other[1:4]
    assert "repeated for 4 frames" in spec.describe(env)


def test_lost_life_terminates_and_frame_limit_truncates(games):
    spec = games["Atari-Breakout-v0"]()
    env = spec.make(noops=1)
    env.reset(seed=1)
    over, steps = False, 0
    while not over:
        _, _, over, cut, _ = env.step(1)
        steps += 1
        assert not cut and steps < 2000
    lives = env.unwrapped.left
    env.reset()
    assert env.unwrapped.left == lives > 0
    short = spec.make(noops=1, max_frames=9)
    short.reset(seed=1)
    assert [short.step(0)[3] for _ in range(2)] == [False, True]
