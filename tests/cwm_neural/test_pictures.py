"""Images as observations: two games, recordings, and commands that refuse images."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from cwm_cli import learn, synthesize
from cwm_cli.commands.recording import record
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import refuse_pictures
from cwm_cli.envs.simulators import Opening
from cwm_cli.envs.spec import space_of
from cwm_cli.errors import CwmError
from cwm_cli.registry import environment
from cwm_cli.worlds.environment import EnvironmentModel
from cwm_neural.pictures import GAMES
from cwm_neural.pictures.games import Catch, CatchState, DotState, MovingDots

LEFT, STAY, RIGHT = range(3)


class TestCatch:
    def test_caught_ball_has_reward_1_and_missed_ball_minus_1(self):
        for column, reward in ((3, 1.0), (5, -1.0)):
            game = Catch(rows=4, columns=4, tile=8)
            game.state = CatchState(min(column, 3), 1, 2 if column == 3 else 0)
            assert game.step(RIGHT)[1:4] == (0.0, False, False)
            assert game.step(STAY)[1:4] == (reward, True, False)

    def test_paddle_stops_at_the_sides(self):
        game = Catch()
        game.state = CatchState(3, 0, 0)
        game.step(LEFT)
        assert game.state.paddle == 0

    def test_every_ball_can_be_caught(self):
        game = Catch()
        for seed in range(20):
            game.reset(seed=seed)
            over = False
            while not over:
                ball, _, paddle = game.state
                _, reward, over, _, _ = game.step(1 + int(np.sign(ball - paddle)))
            assert reward == 1

    def test_state_is_restored_from_any_image(self):
        game, other = Catch(), Catch()
        for row in range(8):
            for ball in range(8):
                for paddle in range(8):
                    game.state = CatchState(ball, row, paddle)
                    assert other.restore(game.picture())
                    assert other.state == game.state
        assert not other.restore(np.zeros((32, 32, 3), np.uint8))
        assert not other.restore(game.picture() + 1)


class TestMovingDots:
    def test_dots_bounce_off_the_sides(self):
        game = MovingDots(size=16, dots=2, dot=4)
        game.state = DotState(((1, 11), (5, 5)), ((-2, 2), (0, 1)))
        assert game.step(0)[1] == 0
        assert game.state == DotState(((1, 11), (5, 6)), ((2, -2), (0, 1)))

    def test_nudge_moves_the_red_dot_only_and_overlap_has_reward_1(self):
        game = MovingDots(size=16, dots=2, dot=4)
        game.state = DotState(((2, 2), (7, 2)), ((1, 0), (0, 0)))
        _, reward, *_ = game.step(2)
        assert (reward, game.state) == (1, DotState(((4, 2), (7, 2)), ((2, 0), (0, 0))))
        assert game.step(2)[1] == 1
        assert game.state.velocities[0] == (2, 0)

    def test_one_image_does_not_determine_the_next(self):
        one, other = MovingDots(), MovingDots()
        one.state = DotState(((9, 9), (0, 0)), ((1, 0), (0, 0)))
        other.state = DotState(((9, 9), (0, 0)), ((-1, 0), (0, 0)))
        assert np.array_equal(one.picture(), other.picture())
        assert not np.array_equal(one.step(0)[0], other.step(0)[0])
        assert environment("MovingDots-v0").restore is None


@pytest.mark.parametrize("name", GAMES)
def test_games_pass_check_env_and_restore_states(name):
    spec = environment(name)
    check_env(spec.make(render_mode="rgb_array").unwrapped)
    assert Opening.of(spec, {}).simulator(0) is not None
    game = spec.make(render_mode="rgb_array")
    game.reset(seed=1)
    assert game.render().shape == (256, 256, 3)


def test_catch_predicts_its_own_rows():
    spec = environment("Catch-v0")
    rows = record(spec, policy="random", episodes=3, test_episodes=0)
    found = EnvironmentModel(spec).predict(rows)
    for name in ("next_observations", "rewards", "terminations"):
        np.testing.assert_array_equal(found.columns[name], rows.columns[name])


def test_recorded_images_are_compressed_and_reloaded(tmp_path):
    rows = record(environment("MovingDots-v0"), policy="random", episodes=4, test_episodes=1)
    rows.save(tmp_path / "dots.npz")
    again = Dataset.load(tmp_path / "dots.npz")
    assert again.digest == rows.digest
    assert rows.observation_space.is_picture
    assert (tmp_path / "dots.npz").stat().st_size < 20_000 < rows.columns["observations"].nbytes


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"rows": 3}, "some balls cannot be caught"),
        ({"tile": 1}, "16 to 128 pixels"),
        ({"ball": 1}, "unknown argument of Catch-v0 'ball'"),
    ],
)
def test_invalid_game_arguments_are_refused(arguments, reason):
    with pytest.raises(CwmError, match=reason):
        environment("Catch-v0").make(**arguments)


SCREEN = spaces.Box(0, 255, (210, 160, 3), np.uint8)


def test_screens_are_images_and_photographs_are_too_large():
    assert space_of(SCREEN).is_picture
    with pytest.raises(CwmError, match="the limit is 262,144"):
        space_of(spaces.Box(0, 255, (600, 800, 3), np.uint8))


def test_programs_refuse_nested_images_with_a_remedy():
    seen = space_of(gym.spaces.Dict(mission=spaces.Discrete(2), screen=SCREEN))
    with pytest.raises(CwmError) as refusal:
        refuse_pictures(seen)
    message = str(refusal.value)
    assert message.startswith("observations.screen are pixels (210x160x3)")
    assert "cwm train" in message and "\n" not in message
    refuse_pictures(space_of(spaces.Box(0, 255, (7, 7, 3), np.uint8)))


@pytest.mark.parametrize("work", [synthesize, pytest.param(learn, marks=pytest.mark.slow)])
def test_program_searches_refuse_images(work, tmp_path):
    with pytest.raises(CwmError, match="are pixels"):
        work("Catch-v0", run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


NOISY = {"noise": {"pixels": 0.1}}


def test_pixel_noise_is_relative_and_keeps_bytes():
    spec = environment("Catch-v0")
    clean, noisy, again = spec.make(), spec.make(**NOISY), spec.make(**NOISY)
    seen = [env.reset(seed=4)[0] for env in (clean, noisy, again)]
    assert seen[1].dtype == np.uint8 and space_of(noisy.observation_space).is_picture
    assert np.array_equal(seen[1], seen[2])
    black = seen[0] == 0
    brighter = seen[1][black & (seen[1] > 0)].astype(float)
    assert len(brighter) / black.sum() == pytest.approx(0.5, abs=0.05)
    assert np.sqrt(np.mean(brighter**2)) == pytest.approx(25.5, rel=0.05)
    assert not spec.restore(noisy.unwrapped, seen[1]), "a noisy image does not determine the state"
    assert "standard deviation of 0.1 of their largest value" in spec.describe(noisy)
    with pytest.raises(
        CwmError, match="unknown observation component or attribute of CartPole-v1 'pixels'"
    ):
        environment("CartPole-v1").make(**NOISY)


SLOW = pytest.mark.slow  # minigrid draws all of its tiles
VIEWED = ("Sokoban-v0", "Sokoban-Teleport-v0", pytest.param("MiniGrid-Empty-5x5-v0", marks=SLOW))


@pytest.mark.parametrize("name", VIEWED)
def test_pixel_views_of_boards_determine_the_state(name):
    if name.startswith("MiniGrid"):
        pytest.importorskip("minigrid")
    spec, args = environment(name), {"view": "pixels"}
    rows = record(spec, env_args=args, policy="random", episodes=2, test_episodes=0, max_steps=20)
    space = rows.observation_space
    assert space.is_picture and 32 <= space.shape[0] == space.shape[1] <= 64
    found = EnvironmentModel(spec, args).predict(rows)
    assert found.answered is not None and found.answered.all()
    for column in ("next_observations", "rewards", "terminations"):
        np.testing.assert_array_equal(found.columns[column], rows.columns[column])
    env = spec.make(**args)
    assert f"bytes of shape {space.shape}" in spec.describe(env)
    assert spec.objects(env) is None


@pytest.mark.slow
def test_grid_images_do_not_show_carried_objects():
    pytest.importorskip("minigrid")
    spec = environment("MiniGrid-DoorKey-5x5-v0")
    env = spec.make(view="pixels")
    picture, _ = env.reset(seed=1)
    assert spec.restore(spec.make(view="pixels").unwrapped, picture)
    taken = env.unwrapped.grid
    key = next(thing for thing in taken.grid.grid if thing is not None and thing.type == "key")
    taken.grid.set(*key.cur_pos, None)
    taken.carrying = key
    assert not spec.restore(spec.make(view="pixels").unwrapped, env.unwrapped.observation())
