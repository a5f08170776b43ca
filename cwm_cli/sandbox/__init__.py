"""Run generated programs in confined processes and return their answers or failures.

The trusted side consists of `client` (start here), `conversation`, `prediction`, `episodes`,
`pool`, `protection` and `failures`. A `worker` process starts and watches the processes of
programs. The modules `candidate`, `handlers`, `confinement` and `linux` run in the process of a
program; `probe` is itself a program. Both sides share `job` and `protocol`. A `Job` is a request to
a program, and its `Handler` executes the request: a new kind of job needs one of each, and no
change here.

The exports are lazy because the worker imports this package too and must stay small: no
pydantic, no Gymnasium.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cwm_cli.sandbox.client import Sandbox
    from cwm_cli.sandbox.conversation import Conversation, Reply
    from cwm_cli.sandbox.failures import Failure
    from cwm_cli.sandbox.handlers import ConfinedProgram, Handler
    from cwm_cli.sandbox.job import Job
    from cwm_cli.sandbox.pool import SandboxError
    from cwm_cli.sandbox.prediction import PredictedColumns, ProgramAnswers
    from cwm_cli.sandbox.protection import GAPS, Protection, Unprotected
    from cwm_cli.sandbox.protocol import Limits

_MODULES = {
    "GAPS": "protection",
    "ConfinedProgram": "handlers",
    "Conversation": "conversation",
    "Failure": "failures",
    "Handler": "handlers",
    "Job": "job",
    "Limits": "protocol",
    "PredictedColumns": "prediction",
    "ProgramAnswers": "prediction",
    "Protection": "protection",
    "Reply": "conversation",
    "Sandbox": "client",
    "SandboxError": "pool",
    "Unprotected": "protection",
}

__all__ = [
    "GAPS",
    "ConfinedProgram",
    "Conversation",
    "Failure",
    "Handler",
    "Job",
    "Limits",
    "PredictedColumns",
    "ProgramAnswers",
    "Protection",
    "Reply",
    "Sandbox",
    "SandboxError",
    "Unprotected",
]


def __getattr__(name: str) -> Any:
    """Import an export when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
