"""Programs from data alone: the offline backend, used when no language model is named.

`backend` answers a question, `portfolio` chooses between the attempts of
`families` by trajectories that were held back. `discrete` reads rules off few
whole numbers; `continuous` looks for equations, with `mechanics` and `flows`
fitted through integrators, and `rewards`; `writing` puts findings into words.
"""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_backends() -> Mapping[str, str]:
    """Offer the backend; it is imported on first use."""
    return {"induction": "cwm_induction.backend:Induction"}


@hookimpl
def cwm_defaults() -> Mapping[str, str]:
    """Ask it where no model is named."""
    return {"backend": "induction"}


@hookimpl
def cwm_refiners() -> Mapping[str, str]:
    """Offer to correct programs by what they leave over."""
    return {"patch": "cwm_induction.patching:Patch"}
