"""A tiny language model that reads rules and predicts changes in words."""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_backends() -> Mapping[str, str]:
    """Register the `tiny` backend."""
    return {"tiny": "cwm_theorize.tiny.backend:Tiny"}
