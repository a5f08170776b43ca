"""World models: what predicts the next observation, reward and end, and can be planned with.

`model` is the seam: `WorldModel`, its `Predictions`, and the planning session that it opens.
`program` is a program in the sandbox, `contract` what its class has to define, `environment`
the true environment as a model of itself.
Plugins add kinds by the hook `cwm_world_models`.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cwm_cli.worlds.contract import Contract
    from cwm_cli.worlds.environment import EnvironmentModel
    from cwm_cli.worlds.model import Planning, PlanningSession, Predictions, WorldModel
    from cwm_cli.worlds.program import ProgramModel

__all__ = [
    "CONTRACTS",
    "WORLD_MODELS",
    "Contract",
    "EnvironmentModel",
    "Planning",
    "PlanningSession",
    "Predictions",
    "ProgramModel",
    "WorldModel",
]

WORLD_MODELS: Mapping[str, str] = {
    "program": "cwm_cli.worlds.program:ProgramModel",
    "environment": "cwm_cli.worlds.environment:EnvironmentModel",
}
"""Addresses of the kinds of world models by name."""

CONTRACTS: Mapping[str, str] = {
    "plain": "cwm_cli.worlds.contract:Contract",
    "chance": "cwm_cli.worlds.contract:ChanceContract",
    "memory": "cwm_cli.worlds.contract:MemoryContract",
}
"""Addresses of what programs can be asked to define, by name."""

_HOMES = {
    "Contract": "contract",
    "EnvironmentModel": "environment",
    "Planning": "model",
    "PlanningSession": "model",
    "Predictions": "model",
    "ProgramModel": "program",
    "WorldModel": "model",
}


def __getattr__(name: str) -> Any:
    """Import an export when it is first used: who asks for one kind needs no other."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
