"""Tree search for two players, in programs and in the true game."""

from typing import Any

import numpy as np
import pytest

import nim
from cwm_cli.commands.plan import choose_planners
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_cli.errors import CwmError
from cwm_cli.planning import Unsuited
from cwm_cli.planning.game_mcts import GameMcts
from cwm_cli.planning.model import Model, Step
from cwm_cli.planning.planner import Situation

MOVES = Space("discrete", low=(0,), high=(5,))


class NimModel(Model):
    """Nim without a program, to test the planner alone."""

    action_space, deterministic, turn = MOVES, True, "player"

    def __init__(self, *, lists_legal: bool = True) -> None:
        names: dict[str, Any] = {}
        exec(nim.PROGRAM, names)
        self.game, self.counter, self._lists_legal = names["Environment"](), [0], lists_legal

    def stand(self, state: Any) -> None:
        self.state = state
        self.game.set_state(state)

    def here(self) -> Any:
        return self.state

    def legal(self) -> tuple[int, ...] | None:
        return tuple(self.game.legal_actions()) if self._lists_legal else None

    def player(self) -> int:
        return int(self.state["player"])

    def step(self, action: Any) -> Step:
        self.counter[0] += 1
        self.state, reward, terminated = self.game.step(action)
        valid = () if terminated else tuple(self.game.legal_actions())
        return Step(self.state, reward, terminated, valid)


def at(heaps: tuple[int, int], player: int, seed: int = 0) -> Situation:
    return Situation({"board": np.array(heaps, np.int8), "player": player}, 100, (seed, 0, 0))


@pytest.mark.parametrize("player", [0, 1])
@pytest.mark.parametrize("heaps", [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (6, 4), (1, 5)])
def test_planned_move_wins_if_a_winning_move_exists(heaps: tuple[int, int], player: int) -> None:
    model = NimModel()
    [[move]] = GameMcts(simulations=2000, budget=50_000).plan(model, [at(heaps, player)])
    assert move in range(6) and heaps[move // 3] > move % 3
    if nim.wins(heaps):
        left = list(heaps)
        left[move // 3] -= move % 3 + 1
        moves_again = move % 3 == 1
        assert not any(left) or nim.wins((left[0], left[1])) == moves_again


def test_equal_seeds_give_equal_moves_and_the_budget_ends_a_decision() -> None:
    chosen = []
    for _ in range(2):
        model = NimModel()
        chosen.append(GameMcts(budget=60).plan(model, [at((9, 8), 0, seed=3)]))
        assert 60 <= model.counter[0] <= 60 + 20
    assert chosen[0] == chosen[1]


def test_searched_positions_are_reused_in_the_next_decision() -> None:
    model, planner = NimModel(), GameMcts(simulations=3000, budget=50_000)
    first = at((4, 4), 0)
    planner.plan(model, [first])
    before = model.counter[0]
    following = at((4, 3), 1)
    following.memory = first.memory
    planner.plan(model, [following])
    assert model.counter[0] - before < before / 4


def test_a_model_without_legal_actions_or_players_is_unsuited() -> None:
    with pytest.raises(Unsuited, match="legal_actions"):
        GameMcts().plan(NimModel(lists_legal=False), [at((3, 4), 0)])
    alone = NimModel()
    alone.turn = ""  # type: ignore[misc]
    with pytest.raises(Unsuited, match="no game of two players"):
        GameMcts().plan(alone, [at((3, 4), 0)])


def test_planners_are_chosen_by_the_number_of_players() -> None:
    spaces = (space_of(nim.Nim().seen), MOVES)
    assert [p.name for p in choose_planners("auto", (), spaces, {}, two_players=True).planners] == [
        "game-mcts"
    ]
    assert "game-mcts" not in [p.name for p in choose_planners("auto", (), spaces, {}).planners]
    with pytest.raises(CwmError, match=r"one agent, but .* choose --planner game-mcts"):
        choose_planners("mcts", (), spaces, {}, two_players=True)
    with pytest.raises(CwmError, match="needs a game of two players: choose --planner mcts"):
        choose_planners("game-mcts", (), spaces, {})


@pytest.mark.parametrize("options", [{"simulations": 0}, {"budget": 0}, {"exploration": -1.0}])
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        GameMcts(**options)
