"""Jobs as tasks of Ray, on the machines of a cluster."""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_executors() -> Mapping[str, str]:
    """Offer the `ray` executor."""
    return {"ray": "cwm_ray.executor:RayExecutor"}


@hookimpl
def cwm_test_examples() -> Mapping[str, str]:
    """Offer examples for the conformance tests."""
    return {
        "executor ray": "cwm_ray.examples:executor",
    }
