"""Jobs on a cluster that Slurm manages: the executor `slurm`, through submitit."""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_executors() -> Mapping[str, str]:
    """Offer the executor `slurm`."""
    return {"slurm": "cwm_slurm.executor:SlurmExecutor"}
