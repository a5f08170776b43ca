"""The executor `ray`: commands as tasks of a Ray cluster, or of Ray on this machine only."""

import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from cwm_cli.bench.executor import (
    LONGEST_REASON,
    LONGEST_WAIT,
    STARTER,
    Command,
    Ended,
    Executor,
    reason_of,
)
from cwm_cli.errors import CwmError, install_command
from cwm_cli.private_parts import MissingPartError, private_part, warn_once
from cwm_cli.sandbox.linux import adopt_orphans
from cwm_cli.search.spending import SPENDING
from cwm_cli.text import clean
from cwm_ray.job import RemoteJob, RemoteOutcome, SpendingAnswers, carry_out

PASSED_ON = (
    "CWM_",
    "OPENAI_",
    "ANTHROPIC_",
    "AZURE_",
    "AWS_",
    "GEMINI_",
    "HF_",
    "FSSPEC_",
    "OTEL_",
)
"""Prefixes of environment variables that jobs need on every machine."""

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # by default Ray would hide the GPUs of a machine from tasks that reserve none
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # by default Ray would upload the working folder of what `uv run` has started
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}
"""Variables for Ray, if the user has not set them."""

OF_OWN_CLUSTER = {
    "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper": "true",
    "RAY_process_group_cleanup_enabled": "false",
}
"""End all processes that a worker leaves behind within ten seconds, in any session. Ray's default,
process groups, does not include processes with their own session, such as sandboxes."""


@dataclass
class RayExecutor(Executor):
    """Runs commands as Ray tasks (`cwm-cli[ray]`), each in a new process on some node.

    All nodes need access to the run folders. A job whose node or worker is lost keeps its saved
    results. The caller of the executor starts it again elsewhere, not Ray. API keys and variables
    that start with `CWM_` are passed on to the nodes. A node uses the Python of its Ray, which
    needs the same version of this package.
    """

    workers: int = 0
    """Maximum number of jobs at the same time; 0: limited only by the cores of the cluster."""
    address: str = "auto"
    """Ray cluster. auto: the cluster of this machine, else this machine alone; local: this machine
    alone; or HOST:PORT of the head of a cluster."""
    cores: float | None = None
    """Cores that a job reserves, including its sandbox. none: the number that the job needs."""
    gpus: float = 0.0
    """GPUs that a job reserves."""
    _pending: dict[Any, Command] = field(default_factory=dict, init=False, repr=False)
    _cluster: "RayCluster | None" = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check that Ray is installed and that the address is supported."""
        if find_spec("ray") is None:
            raise CwmError(f"the executor 'ray' needs an extra: {install_command('cwm-cli[ray]')}")
        if "://" in self.address:
            raise CwmError(
                f"the address {self.address!r} is not on the cluster: run the same command on one "
                "of its nodes, without executor.address"
            )

    def has_room(self) -> bool:
        """Return whether another command can start now."""
        if self.workers:
            return len(self._pending) < self.workers
        taken = sum(self._reserved(command) for command in self._pending.values())
        reserved = self._reserved(next(iter(self._pending.values()), None))
        return not self._pending or taken + reserved <= self._join_cluster().cores()

    def start(self, command: Command) -> None:
        """Send a command to the cluster."""
        command.log.parent.mkdir(parents=True, exist_ok=True)
        command.log.unlink(missing_ok=True)
        job = RemoteJob(
            words=tuple(command.words),
            environment={**passed_on(), **command.environment},
            python=sys.executable,
            folder=str(Path.cwd()),
            spending=str(command.spending.absolute()) if command.spending else None,
        )
        reference = self._join_cluster().send(job, cores=self._reserved(command), gpus=self.gpus)
        self._pending[reference] = command

    def wait(self) -> list[Ended]:
        """Wait for tasks to end, for a second at most."""
        if not self._pending:
            return []
        ended = self._join_cluster().wait_for_ended(list(self._pending), LONGEST_WAIT)
        return [self._task_end(self._pending.pop(reference), reference) for reference in ended]

    def close(self) -> None:
        """End all tasks with their processes, and leave the cluster or end an own one."""
        if self._cluster is not None:
            self._cluster.leave(list(self._pending))
        self._pending, self._cluster = {}, None

    def _join_cluster(self) -> "RayCluster":
        """Return the cluster; join it on first use."""
        if self._cluster is None:
            self._cluster = RayCluster.join(self.address, self.workers)
        return self._cluster

    def _reserved(self, command: Command | None) -> float:
        """Return the cores to reserve. Ray accepts fractions below 1, and integers."""
        cores = self.cores if self.cores is not None else command.cores if command else 1.0
        return cores if cores <= 1 else math.ceil(cores)

    def _task_end(self, command: Command, reference: Any) -> Ended:
        """Return how a task ended, and save its output."""
        from ray.exceptions import (
            RayError,
            RayTaskError,
            RuntimeEnvSetupError,
            TaskUnschedulableError,
        )

        try:
            outcome = self._join_cluster().result(reference)
        except RayTaskError as error:
            cause = getattr(error, "cause", None) or error
            return Ended(command.name, _line(f"{type(cause).__name__}: {cause}"))
        except (RuntimeEnvSetupError, TaskUnschedulableError) as error:
            return Ended(command.name, _line(str(error)))
        except RayError as error:
            kind = type(error).__name__
            return Ended(command.name, f"its worker or its node was lost ({kind})", lost=True)
        command.log.write_bytes(outcome.printed)
        text = outcome.printed.decode(errors="replace")
        return Ended(
            command.name,
            reason_of(outcome.end.code, text),
            peak_memory=outcome.end.peak_memory,
            place=outcome.place,
            cpu_seconds=outcome.end.cpu_seconds,
        )


def passed_on() -> dict[str, str]:
    """Return the environment variables of this process that jobs need on other machines."""
    # endings of environment variables for the providers of language models
    endings = ("_API_KEY", "_API_BASE", "_BASE_URL", "_API_VERSION")
    kept = (STARTER, SPENDING)  # variables that are valid on this machine only
    return {
        name: value
        for name, value in os.environ.items()
        if (name.startswith(PASSED_ON) or name.endswith(endings)) and name not in kept
    }


@dataclass
class RayCluster:
    """A Ray cluster that this process has joined; `is_ours` if this object joined it."""

    is_ours: bool
    _task: Any = field(init=False, repr=False)
    _answers: Any = field(default=None, init=False, repr=False)
    _nodes: list[float] = field(default_factory=list, init=False, repr=False)
    _counted: float = field(default=-math.inf, init=False, repr=False)

    def __post_init__(self) -> None:
        """Create the remote function. Ray does not retry, as the executor reports lost jobs."""
        import ray

        self._task = ray.remote(max_retries=0, scheduling_strategy="SPREAD")(carry_out)

    @classmethod
    def join(cls, address: str, workers: int) -> Self:
        """Join a cluster, or start one for `workers` jobs or more. Keep an already joined one."""
        os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
        import ray

        logging.getLogger("ray").setLevel(logging.ERROR)
        _silence()
        if ray.is_initialized():
            return cls(is_ours=False)
        _connect(address, workers)
        # On a cluster with a subreaper, Ray makes this process one as well: it would adopt
        # orphans, and a worker would not notice the end of its raylet
        adopt_orphans(adopts=False)
        if threading.current_thread() is threading.main_thread():
            # Ray's handler would hide the exit codes of child processes
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return cls(is_ours=True)

    def cores(self) -> float:
        """Return the number of cores of all nodes, cached for a few seconds."""
        import ray

        counted_seconds = 5.0  # Seconds to cache the size of the cluster. Machines may join it.
        if time.monotonic() > self._counted + counted_seconds:
            nodes = [node for node in ray.nodes() if node["Alive"]]
            self._nodes = [node["Resources"].get("CPU", 0.0) for node in nodes]
            self._counted = time.monotonic()
        return sum(self._nodes)

    def send(self, job: RemoteJob, *, cores: float, gpus: float) -> Any:
        """Send a job. A job that needs more cores than any node has gets all cores of one node."""
        self.cores()
        cores = min(cores, max(self._nodes, default=0.0) or cores)
        answers = self._spending_actor() if job.spending else None
        return self._task.options(num_cpus=cores, num_gpus=gpus).remote(job, answers)

    def wait_for_ended(self, references: list[Any], seconds: float) -> list[Any]:
        """Wait up to `seconds` for a task to end, and return all ended tasks."""
        import ray

        ended, _ = ray.wait(references, timeout=seconds)
        if ended:
            ended, _ = ray.wait(references, num_returns=len(references), timeout=0)
        return list(ended)

    def result(self, reference: Any) -> RemoteOutcome:
        """Return the outcome of a job, or raise an error of Ray."""
        import ray

        outcome: RemoteOutcome = ray.get(reference)
        return outcome

    def leave(self, references: list[Any]) -> None:
        """Cancel all unfinished tasks, and leave the cluster."""
        import ray

        with suppress(ray.exceptions.RayError, ConnectionError):
            for reference in references:
                ray.cancel(reference, force=True)
            if references:
                closing_seconds = 10.0  # timeout in seconds for the end of cancelled tasks
                ray.wait(references, num_returns=len(references), timeout=closing_seconds)
            if self._answers is not None:
                ray.kill(self._answers)
        if self.is_ours:
            ray.shutdown()

    def _spending_actor(self) -> Any:
        """Return the actor that answers from files of this machine; it reserves no core."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if self._answers is None:
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), False)
            actor = ray.remote(num_cpus=0, scheduling_strategy=here)(SpendingAnswers)
            self._answers = actor.remote()
        return self._answers


def _silence() -> None:
    """Keep Ray's messages about its nodes off standard output; `log_to_driver` does not."""
    try:
        worker: Any = import_module("ray._private.worker")
        private_part(worker, "_worker_logs_enabled")
    except (ImportError, MissingPartError) as error:
        warn_once(f"{error}: messages of Ray about its nodes will appear in the output")
    else:
        worker._worker_logs_enabled = False


def _connect(address: str, workers: int) -> None:
    """Join a cluster, or start one on this machine."""
    import ray

    how = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    if address != "local":
        try:
            if address != "auto":
                _check_reachable(address)
            ray.init(address=address, **how)
            return
        except ConnectionError as error:
            if address != "auto":
                raise _unreachable(address, error) from error
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise _unreachable(address, error) from error
    os.environ.update(OF_OWN_CLUSTER)
    # memory for results on the executor's own cluster: each result is the end of a job's output
    object_store_bytes = 128 << 20
    ray.init(
        address="local",
        num_cpus=max(workers, os.cpu_count() or 1),
        include_dashboard=False,
        object_store_memory=object_store_bytes,
        **how,
    )


def _check_reachable(address: str) -> None:
    """Check that a server listens at HOST:PORT; Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("it is not HOST:PORT")
    knocking_seconds = 5.0  # timeout in seconds for a connection to the head of a named cluster
    socket.create_connection((host, int(port)), timeout=knocking_seconds).close()


def _unreachable(address: str, error: Exception) -> CwmError:
    """Return the error of a cluster that cannot be joined."""
    return CwmError(
        f"cannot join a Ray cluster at {address!r} ({_line(str(error))}): start one there with "
        "`ray start --head`, or leave out executor.address"
    )


def _line(text: str) -> str:
    """Return the first line of a message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return clean(lines[0] if lines else "unknown", limit=LONGEST_REASON)
