"""Jobs as tasks of Ray, on the machines of a cluster."""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_executors() -> Mapping[str, str]:
    """Offer the `ray` executor."""
    return {"ray": "cwm_ray.executor:RayExecutor"}
