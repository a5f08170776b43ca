"""A tiny language model that reads rules and predicts in words, for want of a large one."""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_backends() -> Mapping[str, str]:
    """Offer the `tiny` backend."""
    return {"tiny": "cwm_theorize.tiny.backend:Tiny"}
