"""Run generated programs in processes of their own and hand back what they predict.

`client`, `session` and what they import are the trusted side; `worker`,
`candidate`, `deciding` and `answers` run in the worker process, and `probe` is
itself a program. The exports are
lazy because the worker imports this package too and must stay small: no
pydantic, no Gymnasium.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cwm_cli.sandbox.client import Sandbox
    from cwm_cli.sandbox.limits import Limits
    from cwm_cli.sandbox.pool import SandboxError
    from cwm_cli.sandbox.protection import GAPS, Protection, Unprotected

__all__ = [
    "GAPS",
    "Limits",
    "PredictedColumns",
    "Protection",
    "Sandbox",
    "SandboxError",
    "Unprotected",
]

_HOMES = {
    "GAPS": "protection",
    "Limits": "limits",
    "PredictedColumns": "prediction",
    "Protection": "protection",
    "Sandbox": "client",
    "SandboxError": "pool",
    "Unprotected": "protection",
}


def __getattr__(name: str) -> Any:
    """Import an export when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
