"""A warehouse with a key, a door and conveyor belts, as a plugin of `cwm`."""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_environments() -> Mapping[str, str]:
    """Add the environment, which is imported on first use."""
    return {"Warehouse-v0": "warehouse.environment:specify"}
