"""The Slurm commands that submitit and `cwm` use, for one machine without Slurm.

`install` puts sbatch, srun, sacct, squeue and scancel into a folder that has to be on PATH; jobs
are processes, and the state of each is a file in the folder `$FAKE_SLURM`.
"""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

COMMANDS = ("sbatch", "srun", "sacct", "squeue", "scancel")
STATE, PROCESS = ".state", ".pid"


def install(folder: Path) -> dict[str, str]:
    """Write the commands into a folder; return the environment variables that use them."""
    (folder / "bin").mkdir(parents=True)
    (folder / "jobs").mkdir()
    for name in COMMANDS:
        file = folder / "bin" / name
        file.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {name} "$@"\n')
        file.chmod(0o755)
    return {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "FAKE_SLURM": str(folder / "jobs"),
    }


def states(jobs: Path) -> dict[str, str]:
    """Return the state of every job that was submitted; one whose process is gone has failed."""
    found = {}
    for file in sorted(jobs.glob(f"*{STATE}")):
        state = file.read_text()
        if state == "RUNNING":
            process = (jobs / f"{file.stem}{PROCESS}").read_text()
            state = state if Path(f"/proc/{process}").exists() else "NODE_FAIL"
        found[file.stem] = state
    return found


def end(jobs: Path, job: str, state: str) -> None:
    """Have the processes of a job killed, as when its node fails."""
    (jobs / f"{job}{STATE}").write_text(state)
    with suppress(OSError, ValueError):
        os.killpg(os.getpgid(int((jobs / f"{job}{PROCESS}").read_text())), signal.SIGKILL)


def tell(jobs: Path, job: str, number: int) -> None:
    """Send a signal to the task of a job, as before its time is up."""
    os.kill(int((jobs / f"{job}{PROCESS}").read_text()), number)


def _sbatch(jobs: Path, words: list[str]) -> None:
    script = Path(words[-1])
    text = script.read_text()
    if "--partition=closed" in text:
        sys.exit("sbatch: error: invalid partition specified: closed")
    array = re.search(r"--array=0-(\d+)", text)
    number = 101 + len(list(jobs.glob("*.sh")))
    (jobs / f"{number}.sh").write_text(text)
    for place in range(int(array[1]) + 1) if array else [None]:
        job = str(number) if place is None else f"{number}_{place}"
        (jobs / f"{job}{STATE}").write_text("PENDING")
        about = {"SLURM_JOB_ID": str(number)}
        if place is not None:
            about |= {"SLURM_ARRAY_JOB_ID": str(number), "SLURM_ARRAY_TASK_ID": str(place)}
        subprocess.Popen(
            [sys.executable, __file__, "_begin", job, str(jobs / f"{number}.sh")],
            env=os.environ | about,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    print(f"Submitted batch job {number}")


def _begin(jobs: Path, words: list[str]) -> None:
    state = jobs / f"{words[0]}{STATE}"
    (jobs / f"{words[0]}{PROCESS}").write_text(str(os.getpid()))
    if state.read_text() == "PENDING":
        state.write_text("RUNNING")
        code = subprocess.run(["bash", words[1]]).returncode
        if state.read_text() == "RUNNING":
            state.write_text("FAILED" if code else "COMPLETED")


def _srun(jobs: Path, words: list[str]) -> None:
    array, task = (os.environ.get(f"SLURM_ARRAY_{part}_ID") for part in ("JOB", "TASK"))
    job = os.environ["SLURM_JOB_ID"] if array is None else f"{array}_{task}"
    (jobs / f"{job}{PROCESS}").write_text(str(os.getpid()))
    marks = {"%A": array or "", "%a": task or "", "%j": job, "%t": "0"}
    for option, descriptor in (("--output", 1), ("--error", 2)):
        name = words[words.index(option) + 1]
        for mark, value in marks.items():
            name = name.replace(mark, value)
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    command = words[words.index("--error") + 2 :]
    os.execvp(command[0], command)


def _sacct(jobs: Path, words: list[str]) -> None:
    if (jobs / "no-accounts").exists():
        sys.exit("Slurm accounting storage is disabled")
    asked = set(words[words.index("-j") + 1].split(","))
    print("JobID|State|NodeList")
    for job, state in states(jobs).items():
        if job.partition("_")[0] in asked:
            print(f"{job}|{state}|here")


def _squeue(jobs: Path, words: list[str]) -> None:
    for job, state in states(jobs).items():
        if state in ("PENDING", "RUNNING"):
            print(f"{job} {state}")


def _scancel(jobs: Path, words: list[str]) -> None:
    for job, state in states(jobs).items():
        if job.partition("_")[0] in words and state in ("PENDING", "RUNNING"):
            (jobs / f"{job}{STATE}").write_text("CANCELLED by 1000")
            with suppress(OSError, ValueError):
                tell(jobs, job, signal.SIGTERM)


if __name__ == "__main__":
    name, *rest = sys.argv[1:]
    globals()[f"_{name.lstrip('_')}"](Path(os.environ["FAKE_SLURM"]), rest)
