"""An example of the executor, for the conformance tests."""

from cwm_cli.testing.conftest import Material
from cwm_ray.executor import RayExecutor


def executor(material: Material) -> RayExecutor:
    """Return an executor that joins no running cluster."""
    return RayExecutor(workers=2, address="local")
