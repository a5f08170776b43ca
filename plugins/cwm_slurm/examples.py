"""An example of the executor, for the conformance tests."""

from cwm_cli.testing.conftest import Material
from cwm_slurm.executor import SlurmExecutor


def executor(material: Material) -> SlurmExecutor:
    """Return an executor that works without a cluster."""
    return SlurmExecutor(workers=2, cluster="local")
