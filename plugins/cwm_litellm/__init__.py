"""Language models through LiteLLM."""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_backends() -> Mapping[str, str]:
    """Offer the `litellm` backend."""
    return {"litellm": "cwm_litellm.backend:LiteLLM"}


@hookimpl
def cwm_defaults() -> Mapping[str, str]:
    """Ask it where a model is named."""
    return {"model": "litellm"}
