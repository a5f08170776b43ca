"""Best of n with restarts, as a plugin of `cwm`."""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_strategies() -> Mapping[str, str]:
    """Add the strategy, which is imported on first use."""
    return {"best-of-n": "best_of_n.strategy:BestOfN"}
