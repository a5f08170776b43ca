"""Jobs as Ray tasks on the machines of a cluster."""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_executors() -> Mapping[str, str]:
    """Add the executor `ray`."""
    return {"ray": "cwm_ray.executor:RayExecutor"}


@hookimpl
def cwm_test_examples() -> Mapping[str, str]:
    """Return examples for the conformance tests."""
    return {
        "executor ray": "cwm_ray.examples:executor",
    }
