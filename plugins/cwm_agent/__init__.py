"""External coding agents as a backend: `--backend agent -o command='my-agent {folder}'`."""

from __future__ import annotations

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_backends() -> Mapping[str, str]:
    """Add the backend that starts a coding agent."""
    return {"agent": "cwm_agent.backend:AgentBackend"}
