"""Sokoban: rules, solvable boards, observations and restoring."""

from collections import Counter

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from cwm_cli.commands.recording import record
from cwm_cli.envs.simulators import Opening
from cwm_cli.errors import CwmError
from cwm_cli.registry import environment
from cwm_cli.worlds.environment import EnvironmentModel
from cwm_sokoban import GAMES
from cwm_sokoban.boards import OUTER, Positions, Warehouse
from cwm_sokoban.game import Sokoban

UP, DOWN, LEFT, RIGHT, ACTIVATE = range(5)
ALL = pytest.mark.parametrize("name", GAMES)

SIGNS = {"@": "agent", "$": "box", ".": "target", "o": "teleporter"}


def make_game(*rows, **arguments):
    """Return a game with these rows of inner cells, surrounded by walls."""
    found = {kind: [] for kind in SIGNS.values()}
    walls = set(OUTER)
    for y, row in enumerate(rows, 1):
        for x, sign in enumerate(row, 1):
            if sign in SIGNS:
                found[SIGNS[sign]].append((x, y))
            elif sign == "#":
                walls.add((x, y))
    game = Sokoban(
        boxes=len(found["box"]),
        teleports=bool(found["teleporter"]),
        render_mode="ansi",
        **arguments,
    )
    game.board = Warehouse(frozenset(walls), tuple(found["target"]), tuple(found["teleporter"]))
    game.position = Positions(found["agent"][0], tuple(found["box"]))
    return game


def play(game, *actions):
    """Return reward, terminated and truncated of each action."""
    return [game.step(action)[1:4] for action in actions]


STEP = (-0.1, False, False)


class TestRules:
    def test_box_is_pushed_but_not_pulled_or_pushed_into_a_wall(self):
        game = make_game("@$  .")
        assert play(game, RIGHT, RIGHT) == [STEP, STEP]
        assert game.render().splitlines()[1] == "#  @$.#"
        assert play(game, LEFT, RIGHT) == [STEP, STEP]
        assert game.render().splitlines()[1] == "#  @$.#"
        assert play(make_game("@#$ ."), RIGHT) == play(make_game("@$#."), RIGHT) == [STEP]
        blocked = make_game("@$#  ", " .   ")
        play(blocked, RIGHT)
        assert blocked.render().splitlines()[1] == "#@$#  #"

    def test_two_boxes_in_a_row_do_not_move(self):
        game = make_game("@$$..")
        assert play(game, RIGHT) == [STEP]
        assert game.render().splitlines()[1] == "#@$$..#"

    def test_rewards_of_boxes_on_and_off_targets_and_of_the_last_box(self):
        game = make_game("@$. .", "$    ")
        assert play(game, RIGHT, RIGHT) == [(0.9, False, False), (-1.1, False, False)]
        assert play(game, RIGHT) == [(0.9, False, False)]
        last = make_game("@$.  ")
        assert play(last, RIGHT) == [(10.9, True, False)]

    def test_box_pushed_from_target_to_target_has_the_reward_of_a_step(self):
        assert play(make_game("@$..", "$    "), RIGHT, RIGHT) == [(0.9, False, False), STEP]

    def test_teleporter_moves_the_player_unless_a_box_is_on_the_other(self):
        game = make_game("@ o  ", "#### ", "o $ .")
        assert play(game, ACTIVATE) == [STEP] and game.position.player == (1, 1)
        play(game, RIGHT, RIGHT, ACTIVATE)
        assert game.position.player == (1, 3)
        play(game, ACTIVATE)
        assert game.position.player == (3, 1)
        occupied = make_game("@o   ", "#### ", "  $ .", "o    ")
        occupied.position = Positions((2, 1), ((1, 4),))
        play(occupied, ACTIVATE)
        assert occupied.position == Positions((2, 1), ((1, 4),))

    def test_teleporter_does_not_move_boxes(self):
        game = make_game("@$o  ", "o   .")
        play(game, RIGHT, LEFT, DOWN, ACTIVATE)
        assert game.position == Positions((1, 2), ((3, 1),))


class TestBoards:
    @ALL
    def test_every_board_can_be_solved_with_the_expected_return(self, name):
        env = environment(name).make()
        for seed in range(4):
            env.reset(seed=seed)
            game = env.unwrapped
            solution = game.board.solution(game.position)
            *before, last = [env.step(action) for action in solution]
            assert last[2] and not any(step[2] for step in before)
            total = sum(step[1] for step in (*before, last))
            assert total == pytest.approx(10 + game.boxes - 0.1 * len(solution))

    @pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0, 0), (0.5, 4, 20), (1.0, 24, 24)])
    def test_teleport_share_is_the_fraction_of_boards_that_need_teleporters(
        self, share, least, most
    ):
        env = environment("Sokoban-Teleport-v0").make(teleport_share=share)
        needed = 0
        for seed in range(24):
            env.reset(seed=seed)
            game = env.unwrapped
            alone = game.board._replace(teleporters=()).solution(game.position)
            needed += alone is None
        assert least <= needed <= most


class TestEnvironment:
    @ALL
    def test_observation_has_a_row_for_every_object(self, name):
        env = environment(name).make()
        check_env(env.unwrapped, skip_render_check=True)
        observation, _ = env.reset(seed=1)
        schema = environment(name).objects(env)
        kinds = [thing.kind for thing in schema.decode(observation["objects"])]
        counted = Counter(kinds)
        assert kinds[0] == "agent" and counted["wall"] >= 24
        assert counted["box"] == counted["target"] == GAMES[name]["boxes"]
        assert counted["teleporter"] == 2 * ("teleports" in GAMES[name])

    @ALL
    def test_game_is_restored_exactly_from_observations(self, name):
        rows = record(environment(name), episodes=1, test_episodes=1, max_steps=25, policy="random")
        answers = EnvironmentModel(environment(name)).predict(rows)
        assert answers.answered.all()
        for column, values in answers.columns.items():
            if column.startswith(("next_observations", "rewards", "terminations")):
                np.testing.assert_array_equal(values, rows.columns[column])

    def test_opening_detects_a_deterministic_fully_observed_game(self):
        opening = Opening.of(environment("Sokoban-Teleport-v0"), {})
        assert opening.deterministic and opening.observed

    def test_episode_is_truncated_after_120_steps(self):
        env = environment("Sokoban-v0").make()
        env.reset(seed=0)
        game = env.unwrapped
        free = next(a for a in range(4) if game.board.after(game.position, a) == game.position)
        ends = [env.step(free)[2:4] for _ in range(120)]
        assert ends == [(False, False)] * 119 + [(False, True)]

    def test_game_renders_as_text_and_as_image(self):
        game = make_game("@$.  ", " o  o")
        assert game.render() == "\n".join(
            ["#######", "#@$.  #", "# o  o#", *["#     #"] * 3, "#######"]
        )
        game.render_mode = "rgb_array"
        picture = game.render()
        assert picture.shape == (112, 112, 3) and picture.dtype == np.uint8
        assert len(np.unique(picture.reshape(-1, 3), axis=0)) >= 6

    def test_shift_changes_rewards_and_the_guide_does_not_reveal_them(self):
        spec = environment("Sokoban-v0")
        standard, shifted = spec.make(), spec.make(shift=3)
        assert "rewards -0.1" in spec.describe(standard)
        guide = spec.describe(shifted)
        assert not any(f"{value:g}" in guide for value in shifted.unwrapped.rewards.values())
        for name, value in standard.unwrapped.rewards.items():
            assert 0.04 < abs(shifted.unwrapped.rewards[name] / value - 1) < 0.26

    def test_invalid_arguments_are_errors(self):
        for name, arguments, message in (
            ("Sokoban-v0", {"teleport_share": 1.0}, "unknown argument of Sokoban-v0"),
            ("Sokoban-Teleport-v0", {"teleport_share": 2}, "it must be from 0 to 1"),
        ):
            with pytest.raises(CwmError, match=message):
                environment(name).make(**arguments)
