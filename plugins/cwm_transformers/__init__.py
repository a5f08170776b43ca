"""Language models of the transformers library, in this process."""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_backends() -> Mapping[str, str]:
    """Add the backend `transformers`."""
    return {"transformers": "cwm_transformers.backend:Transformers"}
