"""Independent programs, the best of which counts."""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_strategies() -> Mapping[str, str]:
    """Offer the `zero-shot` strategy."""
    return {"zero-shot": "cwm_zero_shot.strategy:ZeroShot"}
