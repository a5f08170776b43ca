"""Jobs on a Slurm cluster: the executor `slurm`, through submitit."""

from collections.abc import Mapping

from cwm_cli import hookimpl


@hookimpl
def cwm_executors() -> Mapping[str, str]:
    """Add the executor `slurm`."""
    return {"slurm": "cwm_slurm.executor:SlurmExecutor"}


@hookimpl
def cwm_test_examples() -> Mapping[str, str]:
    """Return examples for the conformance tests."""
    return {
        "executor slurm": "cwm_slurm.examples:executor",
    }
