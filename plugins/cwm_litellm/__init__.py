"""Language models through LiteLLM."""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_backends() -> Mapping[str, str]:
    """Add the backend `litellm`."""
    return {"litellm": "cwm_litellm.backend:LiteLLM"}


@hookimpl
def cwm_defaults() -> Mapping[str, str]:
    """Make it the default backend if a model is named."""
    return {"model": "litellm"}
