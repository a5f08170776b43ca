"""Programs from data alone: the offline backend, used when no language model is named."""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_backends() -> Mapping[str, str]:
    """Offer the backend; it is imported on first use."""
    return {"induction": "cwm_induction.backend:Induction"}
