"""Planners: they choose actions by trying them in a world model.

They run in the process of the program, so they know numpy and plain spaces only.
"""

from collections.abc import Mapping

from cwm_cli.packing import Space
from cwm_cli.planning.cem import Cem
from cwm_cli.planning.mcts import Mcts
from cwm_cli.planning.model import Checks, Model

__all__ = ["PLANNERS", "Checks", "Model", "fitting"]

PLANNERS: Mapping[str, type[Mcts] | type[Cem]] = {"mcts": Mcts, "cem": Cem}
"""Planners by name: dataclasses whose fields are their options."""


def fitting(action_space: Space) -> list[str]:
    """Name the planners that serve an action space."""
    return [name for name, planner in PLANNERS.items() if planner.serves(action_space)]
