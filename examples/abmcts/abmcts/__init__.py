"""AB-MCTS of TreeQuest, as a plugin of `cwm`."""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_strategies() -> Mapping[str, str]:
    """Add the strategy, which is imported on first use."""
    return {"ab-mcts": "abmcts.strategy:AbMcts"}
