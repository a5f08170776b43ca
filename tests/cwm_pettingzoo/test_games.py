"""Games of two players: PettingZoo's own and one of another author, from data to matches."""

import importlib
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import cwm_cli as cwm
import nim
from cwm_cli.commands.recording import record
from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.envs.simulators import Opening
from cwm_cli.errors import CwmError
from cwm_cli.evaluation import AccuracyMetric, evaluate
from cwm_cli.evaluation.finding import find_contract
from cwm_cli.export.package import export_of
from cwm_cli.export.publishing import publish
from cwm_cli.registry import environment, names
from cwm_cli.sandbox import Sandbox
from cwm_cli.worlds import ProgramModel
from cwm_induction.legality import find_legality

TICTACTOE, FOUR, NIM = "pettingzoo:tictactoe_v3", "pettingzoo:connect_four_v3", "pettingzoo:nim"
RECALLED = Path(__file__).parents[2] / "benchmarks" / "recalled"
FAST = ["game-mcts.budget=300"]


@cache
def games(env: str, episodes: int = 30) -> Dataset:
    """Record random games, as `cwm collect --policy random` does."""
    return record(environment(env), policy="random", episodes=episodes, test_episodes=10)


def written(folder: Path, program: str) -> Path:
    file = folder / "program.py"
    file.write_text(program)
    return file


def test_a_step_is_one_move_and_the_board_is_seen_by_the_first_player() -> None:
    assert {TICTACTOE, FOUR} <= set(names("environment"))
    spec = environment(TICTACTOE)
    with closing(spec.make()) as env:
        check_env(env.unwrapped, skip_render_check=True)
        observation, _ = env.reset(seed=0)
        assert (observation["player"], spec.valid_actions(env)) == (0, list(range(9)))
        for move, mover in ((0, 0), (3, 1), (1, 0), (4, 1)):
            assert observation["player"] == mover
            observation, reward, terminated, truncated, _ = env.step(move)
            assert (reward, terminated, truncated) == (0.0, False, False)
        first, second = (observation["board"].reshape(9, 2)[:, player] for player in (0, 1))
        assert (np.flatnonzero(first).tolist(), np.flatnonzero(second).tolist()) == ([0, 1], [3, 4])
        assert spec.valid_actions(env) == [2, 5, 6, 7, 8]
        _, reward, terminated, _, _ = env.step(2)
        assert (reward, terminated, spec.valid_actions(env)) == (1.0, True, [])


def test_an_illegal_move_loses_and_games_are_saved_and_restored() -> None:
    spec = environment(FOUR)
    with closing(spec.make()) as env:
        env.reset(seed=0)
        for _ in range(6):
            env.step(3)
        assert spec.valid_actions(env) == [0, 1, 2, 4, 5, 6]
        assert env.step(3)[1:3] == (-1.0, True)
    opening = Opening.of(spec, {})
    assert (opening.deterministic, opening.observed) == (True, True)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("pettingzoo:leduc_holdem_v4", {}, "hides information"),
        ("pettingzoo:texas_holdem_v4", {}, "hides information"),
        ("pettingzoo:rps_v2", {}, "action mask"),
        ("pettingzoo:hanabi_v5", {}, "instead of 0"),
        (NIM, {"secret": True}, "hides information"),
        (NIM, {"dice": True}, "random"),
        (NIM, {"heap": 3}, "cannot be made with heap=3"),
        ("pettingzoo:no_such_game", {}, "there is no module no_such_game"),
        ("pettingzoo:json", {}, "no function env"),
    ],
)
def test_other_games_are_refused_in_one_line(
    name: str, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(CwmError, match=words) as raised:
        environment(name).make(**arguments)
    assert "\n" not in str(raised.value)


def test_recorded_games_select_their_contract_and_name_legal_actions() -> None:
    rows = games(TICTACTOE)
    assert (rows.turn, find_contract(rows.train).contract) == ("player", "game")
    going = ~rows.columns["terminations"]
    cells = rows.columns["next_observations.board"].reshape(len(rows), 9, 2).any(axis=2)
    assert np.array_equal(rows.columns[VALID][going], ~cells[going])
    assert not rows.columns[VALID][~going].any()
    assert set(rows.columns["rewards"].tolist()) <= {0.0, 1.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "program", "episodes"),
    [(TICTACTOE, "tic_tac_toe.py", 50), (FOUR, "connect_four.py", 50)],
)
def test_a_recalled_program_is_exact_on_fifty_random_games(
    tmp_path: Path, env: str, program: str, episodes: int
) -> None:
    rows = games(env, episodes)
    found = cwm.synthesize(env, dataset=rows, start=RECALLED / program, run=tmp_path / "run")
    assert (found.solved, found.contract) == (True, "game")
    for score in (found.scores.train, found.scores.test):
        assert (score.exact, score.valid_actions, score.observation) == (1.0, 1.0, 1.0)


LIES = {
    "full columns": ("if self.heaps[move // 3] > move % 3", "", "valid_actions"),
    "no second move": ("if count != 2 and not ended", "if not ended", "observation"),
    "after set_state": ("range(6) if", "range(4 if self.fresh else 6) if", "valid_actions"),
}


@pytest.mark.parametrize("lie", LIES)
def test_programs_that_lie_about_legal_actions_or_the_player_lose_points(
    sandbox: Sandbox, lie: str
) -> None:
    before, after, part = LIES[lie]
    honest = nim.PROGRAM.replace(
        'self.player = observation["player"]', 'self.player, self.fresh = observation["player"], 1'
    ).replace("heap, count =", "self.fresh = 0; heap, count =")
    rows = games(NIM).train
    metric = AccuracyMetric.of(rows)
    scores = [
        evaluate(ProgramModel(text, sandbox), rows, metric).score
        for text in (honest, honest.replace(before, after, 1))
    ]
    assert scores[0].exact == 1.0
    assert getattr(scores[1], part) < 1.0
    others = {"valid_actions", "observation"} - {part}
    assert all(getattr(scores[1], other) == 1.0 for other in others)


def test_a_program_whose_answer_is_no_list_of_moves_fails_in_one_line(sandbox: Sandbox) -> None:
    rows = games(NIM).train
    text = nim.PROGRAM.replace("return [move for", 'return "all" or [move for')
    found = evaluate(ProgramModel(text, sandbox), rows, AccuracyMetric.of(rows))
    assert found.failure is not None
    assert "valid actions" in found.failure.message


@pytest.mark.slow
def test_a_game_of_another_author_is_learned_and_won(tmp_path: Path) -> None:
    rows = games(NIM)
    file = written(tmp_path, nim.PROGRAM)
    found = cwm.synthesize(NIM, dataset=rows, start=file, run=tmp_path / "run")
    assert found.solved
    played = cwm.plan(tmp_path / "run", opponent="oracle", episodes=4, options=FAST)
    assert (played.opponent, played.mismatches.wrong) == ("oracle", 0)
    # Both play perfectly: who moves first wins or loses, and that alternates.
    assert nim.wins((3, 4))
    assert [each > 0 for each in played.returns] == [True, False, True, False]
    facts = played.as_json()
    assert (facts["wins"], facts["draws"], facts["losses"], facts["illegal"]) == (2, 0, 2, 0)
    assert facts["win_rate"]["low"] < facts["win_rate"]["mean"] == 0.5 < facts["win_rate"]["high"]
    assert played.side.cost.confirmed > 0


def test_illegal_moves_lose_and_are_reported(tmp_path: Path) -> None:
    text = nim.PROGRAM.replace("if self.heaps[move // 3] > move % 3", "if move == 2")
    played = cwm.plan(
        program=written(tmp_path, text.replace("-= count", "-= min(count, self.heaps[heap])")),
        env=NIM,
        env_args={"heaps": [2, 2]},
        episodes=2,
        options=[*FAST, "planning.stop=false"],
        folder=tmp_path / "plans",
    )
    assert played.match is not None
    assert (played.match.illegal, played.match.losses, played.match.wins) == (2, 2, 0)
    assert played.returns == [-1.0, -1.0]


@pytest.mark.slow
def test_perfect_players_draw_tictactoe_and_the_games_alternate(tmp_path: Path) -> None:
    played = cwm.plan(
        program=RECALLED / "tic_tac_toe.py",
        env=TICTACTOE,
        opponent="self",
        episodes=2,
        folder=tmp_path / "plans",
    )
    assert played.match is not None
    assert (played.match.draws, played.lengths) == (2, [5, 4])


@pytest.mark.long
@pytest.mark.parametrize(
    ("env", "program"), [(TICTACTOE, "tic_tac_toe.py"), (FOUR, "connect_four.py")]
)
def test_planned_moves_never_lose_to_random_ones(tmp_path: Path, env: str, program: str) -> None:
    played = cwm.plan(
        program=RECALLED / program, env=env, episodes=100, workers=2, folder=tmp_path / "plans"
    )
    assert played.match is not None
    assert (played.match.losses, played.match.illegal, played.match.games) == (0, 0, 100)
    assert played.match.wins == 100 or env == TICTACTOE


def test_matches_refuse_what_does_not_fit(tmp_path: Path) -> None:
    file = written(tmp_path, nim.PROGRAM)
    with pytest.raises(CwmError, match="CartPole-v1 is no game of two players: leave out --oppo"):
        cwm.plan(program=file, env="CartPole-v1", opponent="self")
    with pytest.raises(CwmError, match="cannot be filmed"):
        cwm.plan(program=file, env=NIM, render=tmp_path / "film.gif")
    with pytest.raises(CwmError, match="unknown opponent 'selv'"):
        cwm.plan(program=file, env=NIM, opponent="selv")  # type: ignore[arg-type]
    with pytest.raises(CwmError, match="`cwm learn` acts for one agent: run `cwm synth"):
        cwm.learn(NIM)
    with pytest.raises(CwmError, match="cannot be replaced: leave out --reward-expression"):
        cwm.plan(program=written(tmp_path, nim.PROGRAM), env=NIM, reward_expression="action")


def test_programs_without_legal_actions_cannot_plan(tmp_path: Path) -> None:
    text = nim.PROGRAM.replace("def legal_actions", "def moves")
    text = text.replace("float(ended), ended\n", "float(ended), ended, self.moves()\n")
    with pytest.raises(CwmError, match="a program needs `legal_actions`"):
        cwm.plan(
            program=written(tmp_path, text),
            env=NIM,
            episodes=1,
            options=FAST,
            folder=tmp_path / "plans",
        )


def test_induced_rules_of_legal_actions_are_exact() -> None:
    for env in (TICTACTOE, FOUR):
        rows = games(env, 50)
        found = find_legality(rows.train)
        assert found.right == 1.0
        test = rows.test
        board = test.columns["next_observations.board"]
        going = np.flatnonzero(~test.columns["terminations"])
        for action, rule in found.rules.items():
            holds = [eval(rule, {"observation": {"board": board[row]}}) for row in going]
            assert holds == test.columns[VALID][going, action].tolist()


def test_exported_games_name_their_legal_actions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, nim.PROGRAM)
    cwm.synthesize(NIM, dataset=games(NIM), start=file, run=tmp_path / "run")
    export = export_of(tmp_path / "run")
    publish(export, tmp_path / "package")
    [place] = (tmp_path / "package").rglob("world.json")
    monkeypatch.syspath_prepend(str(place.parents[1]))
    module = importlib.import_module(f"{place.parent.name}.environment")
    with closing(module.WorldModelEnv()) as env:
        observation, info = env.reset(seed=0)
        assert (observation["player"], info["valid_actions"]) == (0, [0, 1, 2, 3, 4, 5])
        observation, reward, terminated, _, info = env.step(2)
        assert (observation["board"].tolist(), observation["player"]) == ([0, 4], 1)
        assert (reward, terminated, info["valid_actions"]) == (0.0, False, [3, 4, 5])
