"""The executor `slurm`: commands as Slurm job arrays, through submitit."""

import io
import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from cwm_cli.bench.executor import LONGEST_REASON, Command, Ended, Executor
from cwm_cli.credentials import without_credentials
from cwm_cli.errors import CwmError, install_command
from cwm_cli.search.spending import SPENDING
from cwm_cli.text import clean
from cwm_slurm.job import JobOutcome, carry_out

LOCAL_TICK, SLURM_TICK = 0.05, 1.0
"""Seconds between checks for results; less often on Slurm, to spare the shared file system."""

LOST = {
    "BOOT_FAIL": "its node did not start",
    "CANCELLED": "its job was cancelled",
    "COMPLETED": "its job ended without a result",
    "DEADLINE": "the deadline of its job has passed",
    "NODE_FAIL": "its node failed",
    "PREEMPTED": "another job took its place",
    "REVOKED": "its job was taken to another cluster",
    "TIMEOUT": "its time limit was reached: raise -o executor.minutes=",
}
"""Slurm states of jobs that may succeed in another attempt, with their meaning."""

BROKEN = {
    "FAILED": "its job failed before the command began",
    "OUT_OF_MEMORY": "its job had too little memory: raise -o executor.memory_gb=",
}
"""Slurm states of jobs that would fail again, with their meaning."""

GONE = "GONE"
"""The state of a job that is neither in Slurm's accounts nor in its queue."""


class _Submitted(NamedTuple):
    """A command and the submitit job that runs it."""

    command: Command
    job: Any


@dataclass
class SlurmExecutor(Executor):
    """Runs commands as Slurm jobs, submitted as arrays.

    At most `workers` jobs are submitted at a time. Every node needs the same file system, with this
    Python and the folders that the commands write. A job that Slurm ended is lost. Slurm does not
    restart it; the caller of the executor decides.
    """

    workers: int = 100
    """Maximum number of submitted jobs at the same time."""
    cluster: Literal["slurm", "local"] = "slurm"
    """slurm: submit to the cluster; local: run processes on this machine, to test a
    configuration."""
    partition: str | None = None
    """Partition for the jobs. none: the default partition of the cluster."""
    account: str | None = None
    """Account that pays for the jobs."""
    minutes: Annotated[int, Field(gt=0)] = 24 * 60
    """Time limit of a job in minutes. Work that is cut off continues in the next job."""
    memory_gb: Annotated[float, Field(gt=0)] | None = None
    """Memory of a job in GB. none: the default of the cluster."""
    cores: Annotated[int, Field(gt=0)] | None = None
    """Cores of a job. none: the number that its command uses."""
    setup: str = ""
    """Shell line at the start of every job, such as `module load cuda`."""
    flags: dict[str, str] = field(default_factory=dict)
    """Further flags of sbatch, such as {"gres": "gpu:1", "constraint": "a100"}."""
    folder: Path | None = None
    """Folder for files of submitit while jobs run, visible on every node. none: next to the
    logs."""
    poll_seconds: Annotated[float, Field(gt=0)] = 30.0
    """Seconds between two queries of job states; new jobs wait up to this time for a free place."""
    _collected: list[Command] = field(default_factory=list, init=False, repr=False)
    _submitted: dict[str, _Submitted] = field(default_factory=dict, init=False, repr=False)
    _finished: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    _files: Path | None = field(default=None, init=False, repr=False)
    _due: float = field(default=0.0, init=False, repr=False)
    _last_query: float = field(default=0.0, init=False, repr=False)
    _keeps_files: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        try:
            import submitit
        except ImportError as error:
            raise CwmError(
                f"the executor 'slurm' needs an extra: {install_command('cwm-cli[slurm]')}"
            ) from error
        submitit.core.logger.get_logger().setLevel("CRITICAL")  # its output would break live views
        missing = [
            name for name in ("sbatch", "srun", "squeue", "scancel") if shutil.which(name) is None
        ]
        if self.cluster == "slurm" and missing:
            raise CwmError(
                f"Slurm is not installed on this machine ({missing[0]} is missing): run the "
                "command where "
                "jobs are submitted, or test it here with -o executor.cluster=local"
            )

    def has_room(self) -> bool:
        """Return whether fewer jobs than allowed are submitted or collected."""
        return len(self._collected) + len(self._submitted) < self.workers

    def start(self, command: Command) -> None:
        """Add a command to the next array."""
        if not self._collected:
            self._due = time.monotonic() + (self.poll_seconds if self._is_slurm else 0.0)
        self._collected.append(command)

    def wait(self) -> list[Ended]:
        """Submit the collected commands, and wait for jobs to end, for a second at most."""
        # maximum seconds that `wait` blocks if no job ends, so that Ctrl-C takes effect
        longest_wait = 1.0
        deadline = time.monotonic() + longest_wait
        while True:
            if self._collected and (not self._submitted or time.monotonic() >= self._due):
                self._submit()
            if (ended := self._collect_ended()) or time.monotonic() >= deadline:
                return ended
            time.sleep(min(SLURM_TICK, self.poll_seconds) if self._is_slurm else LOCAL_TICK)

    def close(self) -> None:
        """Cancel all jobs. Remove submitit's files unless a job failed without a result."""
        jobs = [submitted.job for submitted in self._submitted.values()]
        if self._is_slurm and jobs:
            arrays = {job.job_id.partition("_")[0] for job in jobs}
            _run_slurm("scancel", *sorted(arrays))
        elif jobs:
            _end_local(jobs)
        self._collected, self._submitted, self._finished = [], {}, {}
        if self._files and not self._keeps_files:
            # seconds to retry the removal of files: cancelled jobs write until they end
            longest_removal = 3.0
            deadline = time.monotonic() + longest_removal
            shutil.rmtree(self._files, ignore_errors=True)
            while self._files.exists() and time.monotonic() < deadline:  # jobs write until they end
                time.sleep(LOCAL_TICK)
                shutil.rmtree(self._files, ignore_errors=True)
        self._files = None

    @property
    def _is_slurm(self) -> bool:
        return self.cluster == "slurm"

    def _submit(self) -> None:
        """Submit the collected commands, as one array per number of cores.

        All jobs of an array share its environment, so commands with different credentials are in
        different arrays. If Slurm rejects an array while other jobs run, it is submitted again
        later, because users have job limits.
        """
        alike: dict[tuple[int, frozenset[tuple[str, str]]], list[Command]] = {}
        for command in self._collected:
            cores = self.cores or max(1, math.ceil(command.cores))
            private = frozenset(_with_credentials(command).items())
            alike.setdefault((cores, private), []).append(command)
        # maximum number of jobs per array: Slurm's default limit is 1001 (`MaxArraySize`)
        longest_array = 1000
        for (cores, private), commands in alike.items():
            for first in range(0, len(commands), longest_array):
                array = commands[first : first + longest_array]
                try:
                    with _environment_set(dict(private)):
                        jobs = self._jobs(array, cores)
                except CwmError:
                    if not self._submitted:
                        raise
                    self._due = time.monotonic() + self.poll_seconds
                    return
                for command, job in zip(array, jobs, strict=True):
                    self._submitted[job.job_id] = _Submitted(command, job)
                    self._collected.remove(command)

    def _jobs(self, commands: list[Command], cores: int) -> list[Any]:
        """Submit commands as an array."""
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError
        from submitit.helpers import clean_env

        if self._files is None:
            parent = (self.folder or commands[0].log.parent).absolute()
            parent.mkdir(parents=True, exist_ok=True)
            self._files = Path(mkdtemp(prefix="slurm-", dir=parent))
        executor = submitit.AutoExecutor(self._files, cluster=self.cluster)

        executor.update_parameters(
            name="cwm",
            timeout_min=self.minutes,
            mem_gb=self.memory_gb,
            cpus_per_task=cores,
            slurm_partition=self.partition,
            slurm_account=self.account,
            slurm_setup=[self.setup] if self.setup else None,
            slurm_array_parallelism=self.workers,
            slurm_signal_delay_s=30,  # from the signal that ends the command to the time limit
            slurm_additional_parameters={"no-requeue": True, **self.flags},
        )
        columns = (
            [tuple(command.words) for command in commands],
            [_environment(command) for command in commands],
            [command.log.absolute() for command in commands],
            [Path.cwd()] * len(commands),
        )
        output = io.StringIO()  # submitit prints the output of sbatch
        try:
            with _sigint_blocked(), clean_env(), redirect_stderr(output):
                return list(executor.map_array(carry_out, *columns))
        except (FailedJobError, FailedSubmissionError, OSError) as error:
            lines = str(error).strip().splitlines() or ["sbatch failed"]
            words = clean(lines[-1], limit=LONGEST_REASON)
            raise CwmError(f"Slurm rejected the jobs: {words}") from error

    def _collect_ended(self) -> list[Ended]:
        """Return ended jobs: jobs with a result, and jobs that two queries reported as ended."""
        if self._files is None:
            return []
        over: set[str] = set()
        if not self._is_slurm or time.monotonic() >= self._last_query + self.poll_seconds:
            states = self._states()
            self._last_query = time.monotonic()
            before = self._finished
            final = {*LOST, *BROKEN, GONE}
            self._finished = {n: state for n, state in states.items() if state in final}
            # the result of a job that ended just now may not be visible yet
            over = self._finished.keys() & before.keys()
        with suppress(OSError):  # makes NFS refresh the folder
            self._files.chmod(self._files.stat().st_mode)
        files = {file.name for file in self._files.iterdir()} if self._submitted else set()
        found = []
        for number, (command, job) in list(self._submitted.items()):
            if job.paths.result_pickle.name in files:
                found.append(self._read_outcome(command, job))
            elif number in over:
                found.append(self._failed_outcome(command, job, self._finished[number]))
            else:
                continue
            del self._submitted[number]
            self._finished.pop(number, None)
        return found

    def _read_outcome(self, command: Command, job: Any) -> Ended:
        """Return how a command ended from its job's result, and remove the job's files."""
        from submitit.core.utils import pickle_load

        success, outcome = pickle_load(job.paths.result_pickle)
        if success != "success":
            lines = str(outcome).strip().splitlines()
            return Ended(command.name, clean(lines[-1], limit=LONGEST_REASON))
        paths = job.paths
        for file in (paths.result_pickle, paths.submitted_pickle, paths.stdout, paths.stderr):
            file.unlink(missing_ok=True)
        return Ended(command.name, *JobOutcome(*outcome))

    def _failed_outcome(self, command: Command, job: Any, state: str) -> Ended:
        """Return how a job without a result ended."""
        if state in BROKEN:
            self._keeps_files = True
            reason = BROKEN[state]
            if state == "FAILED":
                reason += f": {_last_line(job.paths.stderr) or f'see {job.paths.stderr}'}"
            return Ended(command.name, clean(reason, limit=LONGEST_REASON))
        return Ended(command.name, LOST.get(state, LOST["COMPLETED"]), lost=True)

    def _states(self) -> dict[str, str]:
        """Return the known states of the jobs."""
        if not self._is_slurm:
            return {
                number: "RUNNING" if submitted.job.state == "RUNNING" else "COMPLETED"
                for number, submitted in self._submitted.items()
            }
        states = _states_in_accounts({number.partition("_")[0] for number in self._submitted})
        unknown = self._submitted.keys() - states.keys()
        if unknown and (queued := _states_in_queue()) is not None:
            states |= {number: queued.get(number, GONE) for number in unknown}
        return states


def _environment(command: Command) -> dict[str, str]:
    """Return the variables of a command without credentials, which submitit writes to a file."""
    spending = {SPENDING: f"file:{command.spending.absolute()}"} if command.spending else {}
    private = _with_credentials(command)
    return {n: v for n, v in command.environment.items() if n not in private} | spending


def _with_credentials(command: Command) -> dict[str, str]:
    """Return the variables of a command that contain credentials."""
    given = command.environment.items()
    return {name: value for name, value in given if without_credentials(value) != value}


@contextmanager
def _environment_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process, so that sbatch passes them on without a file."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _states_in_accounts(arrays: set[str]) -> dict[str, str]:
    """Return the states of jobs in Slurm's accounts, which not every cluster keeps."""
    from submitit.slurm.slurm import SlurmInfoWatcher

    if not arrays or shutil.which("sacct") is None:
        return {}
    words = ("-X", "-o", "JobID,State,NodeList", "--parsable2", "-j", ",".join(sorted(arrays)))
    output = _run_slurm("sacct", *words) or ""
    found: Mapping[str, Mapping[str, str]] = SlurmInfoWatcher().read_info(output)
    # a state may be "CANCELLED by 1000"
    return {n: facts["State"].split()[0] for n, facts in found.items() if facts.get("State")}


def _states_in_queue() -> dict[str, str] | None:
    """Return the states of jobs in the queue, None if Slurm does not answer."""
    output = _run_slurm("squeue", "--me", "--noheader", "--array", "--format=%i %T")
    if output is None:
        return None
    return dict(line.split(maxsplit=1) for line in output.splitlines() if " " in line)


def _run_slurm(*words: str) -> str | None:
    """Return the output of a Slurm command, None if it failed."""
    asked = subprocess.run(words, capture_output=True, text=True, check=False)
    return None if asked.returncode else asked.stdout


def _end_local(jobs: list[Any]) -> None:
    """Terminate processes on this machine, repeatedly, as a new one may not handle signals yet."""
    left = list(jobs)
    while left := [job for job in left if job.state == "RUNNING"]:
        for job in left:
            with suppress(ProcessLookupError):
                os.kill(int(job.job_id), signal.SIGTERM)
        time.sleep(LOCAL_TICK)


def _last_line(file: Path) -> str:
    """Return the last line of a job's output, empty if there is none."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block Ctrl-C for started processes: sbatch has to report which jobs it submitted.

    Processes of a local cluster never receive it; the executor ends them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
