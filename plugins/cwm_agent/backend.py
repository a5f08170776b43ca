"""The `agent` backend: an external coding agent writes each program."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from cwm_agent.folder import read_cost, read_program, write_folder
from cwm_agent.running import AgentEnd, clean_variables, file_access, find_command, run_agent
from cwm_agent.supervisor import AgentTask
from cwm_cli.errors import CwmError
from cwm_cli.search.contracts import Backend, Completion, Request, UnansweredError, Usage
from cwm_cli.search.reading import fenced

NOT_IDENTITY = {"identity": False}
"""A run may continue with another value of such a field."""


@dataclass(frozen=True)
class AgentBackend(Backend):
    """An external coding agent: a command that works in a folder and writes `program.py`.

    Each completion starts the command in a new folder with the prompt, the rows that prompts may
    show, a checker, and the program to change.
    """

    is_language_model: ClassVar[bool] = True
    takes_help: ClassVar[bool] = True
    remedy: ClassVar[str] = "correct -o command, or raise -o seconds"

    model: str = ""
    command: str = ""
    """Command of the agent. {folder} becomes its folder, {seconds} and {cost} its limits, and
    {model} the value of --model."""
    seconds: float = field(default=1800.0, metadata=NOT_IDENTITY)
    """Time limit of a completion in seconds; then all processes of the agent end."""
    cost: float | None = field(default=None, metadata=NOT_IDENTITY)
    """Maximum cost of a completion in US dollars, which the agent itself must keep. --max-cost
    needs it."""
    pass_env: str = field(default="", metadata=NOT_IDENTITY)
    """Environment variables that the agent gets, such as ANTHROPIC_API_KEY, separated by
    commas."""
    hide: bool = field(default=True, metadata=NOT_IDENTITY)
    """Hide your files from the agent, except its folder, the system and its own program."""
    readable: str = field(default="", metadata=NOT_IDENTITY)
    """Further files and folders that a hidden agent may read, separated by commas."""
    keep: Path | None = field(default=None, metadata=NOT_IDENTITY)
    """Folder to move the folder of each completion to. none: they are removed."""

    def __post_init__(self) -> None:
        for name, limit in (("seconds", self.seconds), ("cost", self.cost)):
            if limit is not None and not limit > 0:
                raise CwmError(f"{name} is {limit:g}: it must be above 0")

    def ready(self, max_cost: float | None = None) -> None:
        """Raise an error for a command that does not exist, or for a limit without a cost."""
        self._find_command()
        if max_cost is not None and self.cost is None:
            raise CwmError(
                "--max-cost needs the maximum cost of a completion of the agent: add -o cost=USD"
            )
        if self.hide:
            file_access(Path(tempfile.gettempdir()), self._find_command(), {}, ())

    def worst_cost(self, request: Request) -> float | None:
        """Return the maximum cost of a completion."""
        return self.cost

    def price(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Return None, because agents do not charge by the tokens of our prompt."""
        return None

    def complete(self, request: Request) -> Completion:
        """Start the agent in a new folder, and read the program that it writes."""
        command = self._find_command()
        folder = Path(tempfile.mkdtemp(prefix="cwm-agent-"))
        began = time.monotonic()
        try:
            limits = [limit for limit in (self.cost, request.allowance) if limit is not None]
            dollars = min(limits, default=None)
            write_folder(
                folder, request, seconds=self.seconds, dollars=dollars, python=sys.executable
            )
            task = self._task(command, folder, dollars)
            end = run_agent(task, lambda line: request.tell(f"agent: {line[:60]}"))
            return self._read(request, folder, end, time.monotonic() - began)
        finally:
            self._put_away(folder, request.step)

    def _find_command(self) -> list[str]:
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            raise CwmError(f"-o command has an open quote ({error}): close it") from error
        if not words:
            raise CwmError("the backend agent needs a command: add -o command='my-agent {folder}'")
        return find_command(words)

    def _task(self, command: list[str], folder: Path, dollars: float | None) -> AgentTask:
        """Return the task of the supervisor."""
        values = {
            "{folder}": str(folder),
            "{seconds}": f"{self.seconds:g}",
            "{cost}": "" if dollars is None else f"{dollars:g}",
            "{model}": self.model,
        }
        pattern = re.compile("|".join(map(re.escape, values)))
        words = [pattern.sub(lambda found: values[found[0]], word) for word in command]
        variables = clean_variables(folder, _split(self.pass_env))
        access = None
        if self.hide:
            access = file_access(folder, command, variables, _split(self.readable))
        return AgentTask(words, str(folder), variables, self.seconds, access)

    def _read(self, request: Request, folder: Path, end: AgentEnd, seconds: float) -> Completion:
        """Return the completion: the program that the agent wrote, or why there is none."""
        if end.outcome.end == "interrupted":
            raise UnansweredError("the agent was interrupted: the same command continues", None)
        program, missing = read_program(folder, request.move.program)
        usage = Usage(cost=read_cost(folder), seconds=seconds)
        why = _describe_end(end, self.seconds)
        if not program:
            lacking = "; ".join(filter(None, [f"the agent wrote no program: {missing}", why]))
            return Completion("", usage, lacking=lacking)
        return Completion(fenced(program), usage, lacking=why)

    def _put_away(self, folder: Path, step: int) -> None:
        """Remove the folder of an agent, or keep it."""
        if self.keep is not None:
            self.keep.mkdir(parents=True, exist_ok=True)
            target = Path(tempfile.mkdtemp(prefix=f"{step:04}-", dir=self.keep))
            shutil.copytree(folder, target, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _describe_end(end: AgentEnd, seconds: float) -> str:
    """Return one line about an agent that did not end well, with its last lines of output."""
    outcome = end.outcome
    match outcome.end:
        case "timeout":
            words = f"the time limit of {seconds:g} s ended the agent"
        case "not started":
            words = f"the agent did not start ({outcome.reason})"
        case _ if outcome.code:
            words = f"the agent ended with exit code {outcome.code}"
        case _:
            return ""
    return f"{words}: {' | '.join(end.lines)}" if end.lines else words
