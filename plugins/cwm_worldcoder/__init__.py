"""WorldCoder: refinement of the program that Thompson sampling picks (Tang et al., 2024)."""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_strategies() -> Mapping[str, str]:
    """Offer the `worldcoder` strategy."""
    return {"worldcoder": "cwm_worldcoder.strategy:WorldCoder"}
