"""Planners: they choose actions by trying them in a model.

- `planner`: the base class, and `Decider`, which makes the decisions of several episodes
  with the first planner of a list that suits the model.
- `mcts` and `tabular` for discrete actions, `icem` and `cem` for continuous ones.
- `model`: what is planned with, a base class. A program (`program`, translated by
  `cwm_cli.translation`) is one, a true environment (`cwm_cli.envs.simulators`) another.

Planners run in the process of the program, so they know numpy and plain spaces only.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import cast

from cwm_cli.planning.planner import Decider, Moment, Planner, Unsuited, automatic, serving

__all__ = [
    "PLANNERS",
    "Decider",
    "Moment",
    "Planner",
    "Unsuited",
    "automatic",
    "find_planner",
    "serving",
]

PLANNERS: Mapping[str, str] = {
    "tabular": "cwm_cli.planning.tabular:Tabular",
    "mcts": "cwm_cli.planning.mcts:Mcts",
    "icem": "cwm_cli.planning.icem:Icem",
    "cem": "cwm_cli.planning.cem:Cem",
}
"""Addresses of planners by name; they are imported when they are first used."""


def find_planner(name: str) -> type[Planner]:
    """Return the planner of a name, or of an address `module:Class`."""
    module, _, attribute = PLANNERS.get(name, name).partition(":")
    return cast("type[Planner]", getattr(import_module(module), attribute))
