"""Planners: they choose actions by trying them in a model.

They run in the process of the program, so they know numpy and plain spaces only.

- What is planned with (`model`): `program` is the program itself, one step at a
  time. `batched` translates its text to numpy on many states at once, `traced` to
  plain arithmetic (run once with symbols), `compiled` makes machine code of that.
  `forms` makes and checks them, `choosing` takes the quicker one. True
  environments are models, too: `cwm_cli.envs.simulators`.
- Who plans (`planner`): `mcts` (the published search is `tree`, many at once
  `lockstep`; its own are `plans`, where states never come again, and `graph`),
  `tabular` (values from `induction`), `cem` and `icem`. `deciding` asks them.
"""

from collections.abc import Mapping

from cwm_cli.data.spaces import Space
from cwm_cli.planning.cem import Cem
from cwm_cli.planning.deciding import Decider
from cwm_cli.planning.icem import Icem
from cwm_cli.planning.mcts import Mcts
from cwm_cli.planning.planner import Moment, Planner, Unsuited
from cwm_cli.planning.tabular import Tabular

__all__ = ["PLANNERS", "Decider", "Moment", "Planner", "Unsuited", "fitting"]

PLANNERS: Mapping[str, type[Planner]] = {
    "tabular": Tabular,
    "mcts": Mcts,
    "icem": Icem,
    "cem": Cem,
}
"""Planners by name: dataclasses whose fields are their options."""


def fitting(action_space: Space) -> list[str]:
    """Name the planners that serve an action space."""
    return [name for name, planner in PLANNERS.items() if planner.serves(action_space)]
