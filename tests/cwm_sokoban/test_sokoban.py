"""Sokoban: its rules, that every board can be solved, and what `cwm` does with it."""

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


def standing(*rows, **arguments):
    """Return a game with the drawn inner cells, in a frame of walls."""
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
    """Return the results of each action without observations."""
    return [game.step(action)[1:4] for action in actions]


STEP = (-0.1, False, False)


class TestRules:
    def test_a_box_is_pushed_and_neither_pulled_nor_pushed_against_a_wall(self):
        game = standing("@$  .")
        assert play(game, RIGHT, RIGHT) == [STEP, STEP]
        assert game.render().splitlines()[1] == "#  @$.#"
        assert play(game, LEFT, RIGHT) == [STEP, STEP]
        assert game.render().splitlines()[1] == "#  @$.#"
        assert play(standing("@#$ ."), RIGHT) == play(standing("@$#."), RIGHT) == [STEP]
        blocked = standing("@$#  ", " .   ")
        play(blocked, RIGHT)
        assert blocked.render().splitlines()[1] == "#@$#  #"

    def test_two_boxes_in_a_row_do_not_move(self):
        game = standing("@$$..")
        assert play(game, RIGHT) == [STEP]
        assert game.render().splitlines()[1] == "#@$$..#"

    def test_boxes_are_rewarded_on_targets_punished_off_them_and_the_last_ends_the_episode(self):
        game = standing("@$. .", "$    ")
        assert play(game, RIGHT, RIGHT) == [(0.9, False, False), (-1.1, False, False)]
        assert play(game, RIGHT) == [(0.9, False, False)]
        last = standing("@$.  ")
        assert play(last, RIGHT) == [(10.9, True, False)]

    def test_a_box_that_goes_from_a_target_onto_another_is_worth_a_step(self):
        assert play(standing("@$..", "$    "), RIGHT, RIGHT) == [(0.9, False, False), STEP]

    def test_a_teleporter_takes_the_player_to_the_other_unless_a_box_is_there(self):
        game = standing("@ o  ", "#### ", "o $ .")
        assert play(game, ACTIVATE) == [STEP] and game.position.player == (1, 1)
        play(game, RIGHT, RIGHT, ACTIVATE)
        assert game.position.player == (1, 3)
        play(game, ACTIVATE)
        assert game.position.player == (3, 1)
        taken = standing("@o   ", "#### ", "  $ .", "o    ")
        taken.position = Positions((2, 1), ((1, 4),))
        play(taken, ACTIVATE)
        assert taken.position == Positions((2, 1), ((1, 4),))

    def test_a_box_on_a_teleporter_stays_there_when_the_other_is_activated(self):
        game = standing("@$o  ", "o   .")
        play(game, RIGHT, LEFT, DOWN, ACTIVATE)
        assert game.position == Positions((1, 2), ((3, 1),))


class TestBoards:
    @ALL
    def test_every_board_can_be_solved_and_the_solution_earns_what_the_rules_say(self, name):
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
    def test_a_share_of_boards_is_solved_by_teleporting_only(self, share, least, most):
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
    def test_it_keeps_to_its_spaces_and_shows_every_object_in_a_row_of_its_own(self, name):
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
    def test_it_is_restored_exactly_from_what_is_seen(self, name):
        rows = record(environment(name), episodes=1, test_episodes=1, max_steps=25, policy="random")
        answers = EnvironmentModel(environment(name)).predict(rows)
        assert answers.answered.all()
        for column, values in answers.columns.items():
            if column.startswith(("next_observations", "rewards", "terminations")):
                np.testing.assert_array_equal(values, rows.columns[column])

    def test_it_is_saved_and_loaded_exactly_and_its_observations_tell_its_states(self):
        opening = Opening.of(environment("Sokoban-Teleport-v0"), {})
        assert opening.deterministic and opening.observed

    def test_an_episode_is_cut_off_after_120_steps(self):
        env = environment("Sokoban-v0").make()
        env.reset(seed=0)
        game = env.unwrapped
        free = next(a for a in range(4) if game.board.after(game.position, a) == game.position)
        ends = [env.step(free)[2:4] for _ in range(120)]
        assert ends == [(False, False)] * 119 + [(False, True)]

    def test_it_draws_itself_as_text_and_as_a_picture(self):
        game = standing("@$.  ", " o  o")
        assert game.render() == "\n".join(
            ["#######", "#@$.  #", "# o  o#", *["#     #"] * 3, "#######"]
        )
        game.render_mode = "rgb_array"
        picture = game.render()
        assert picture.shape == (112, 112, 3) and picture.dtype == np.uint8
        assert len(np.unique(picture.reshape(-1, 3), axis=0)) >= 6

    def test_a_shift_draws_other_rewards_and_the_guide_gives_none_away(self):
        spec = environment("Sokoban-v0")
        standard, shifted = spec.make(), spec.make(shift=3)
        assert "rewards -0.1" in spec.describe(standard)
        told = spec.describe(shifted)
        assert not any(f"{value:g}" in told for value in shifted.unwrapped.rewards.values())
        for name, value in standard.unwrapped.rewards.items():
            assert 0.04 < abs(shifted.unwrapped.rewards[name] / value - 1) < 0.26

    def test_wrong_arguments_are_refused_in_one_line(self):
        for name, arguments, told in (
            ("Sokoban-v0", {"teleport_share": 1.0}, "unknown argument of Sokoban-v0"),
            ("Sokoban-Teleport-v0", {"teleport_share": 2}, "it must be from 0 to 1"),
        ):
            with pytest.raises(CwmError, match=told):
                environment(name).make(**arguments)
