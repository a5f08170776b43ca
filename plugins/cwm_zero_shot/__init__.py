"""Zero-shot synthesis: independent programs, and the best one is the result."""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_strategies() -> Mapping[str, str]:
    """Add the strategy `zero-shot`."""
    return {"zero-shot": "cwm_zero_shot.strategy:ZeroShot"}
