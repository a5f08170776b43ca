"""Simulated completions: programs with known errors, to compare strategies without a model."""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_backends() -> Mapping[str, str]:
    """Add the backend `simulated`."""
    return {"simulated": "cwm_simulated.backend:Simulated"}
