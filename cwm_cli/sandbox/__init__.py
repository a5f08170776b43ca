"""Run generated programs in processes of their own and hand back what they predict.

`client`, `session` and what they import are the trusted side; `worker`,
`candidate`, `deciding` and `answers` run in the worker process. The exports are
lazy because the worker imports this package too and must stay small: no
pydantic, no Gymnasium.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cwm_cli.sandbox.client import Predictions, Sandbox
    from cwm_cli.sandbox.limits import Limits
    from cwm_cli.sandbox.process import SandboxError
    from cwm_cli.sandbox.session import Plan, Session

__all__ = ["Limits", "Plan", "Predictions", "Sandbox", "SandboxError", "Session"]

_HOMES = {
    "Limits": "limits",
    "Plan": "session",
    "Predictions": "client",
    "Sandbox": "client",
    "SandboxError": "process",
    "Session": "session",
}


def __getattr__(name: str) -> Any:
    """Import an export when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
