"""Planners, which choose actions by simulating them in a model.

- `planner`: the base class, and `Decider`, which plans the decisions of several episodes with the
  first suitable planner of a list.
- `game_mcts` for games of two players.
- `tabular` and `mcts` for discrete actions, `grid` for models with few real-valued components,
  `cem` (also iCEM) and `feedback` for continuous actions.
- `encoding`: actions of other spaces, as discrete or continuous ones.
- `model`: the base class of models. A program (`program`, translated by `cwm_cli.translation`) is
  a model, and so is a true environment (`cwm_cli.envs.simulators`).

Planners run in the process of the program, so they use only numpy and plain spaces.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import cast

from cwm_cli.planning.planner import Decider, Moment, Planner, Unsuited, automatic, rank_of, serving

__all__ = [
    "PLANNERS",
    "Decider",
    "Moment",
    "Planner",
    "Unsuited",
    "automatic",
    "find_planner",
    "rank_of",
    "serving",
]

PLANNERS: Mapping[str, str] = {
    "tabular": "cwm_cli.planning.tabular:Tabular",
    "grid": "cwm_cli.planning.grid:StateGrid",
    "mcts": "cwm_cli.planning.mcts:Mcts",
    "game-mcts": "cwm_cli.planning.game_mcts:GameMcts",
    "feedback": "cwm_cli.planning.feedback:Feedback",
    "icem": "cwm_cli.planning.cem:Icem",
    "cem": "cwm_cli.planning.cem:Cem",
}
"""Addresses of planners by name, imported on first use."""


def find_planner(name: str) -> type[Planner]:
    """Return the planner class of a name, or of an address `module:Class`."""
    module, _, attribute = PLANNERS.get(name, name).partition(":")
    return cast("type[Planner]", getattr(import_module(module), attribute))
