"""Runs that produce a world model of an environment, usually a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import BaseModel

from cwm_cli.data.reading import UnreadableError, read_text
from cwm_cli.errors import CwmError
from cwm_cli.runs import files
from cwm_cli.runs.listing import load
from cwm_cli.runs.report import Section
from cwm_cli.runs.store import BEST, Run, RunHeader
from cwm_cli.text import clean

if TYPE_CHECKING:
    from cwm_cli.envs.tasks import Task
    from cwm_cli.runs.observer import Observer
    from cwm_cli.worlds.model import PlanningSession, WorldModel

Options = Sequence[str] | Mapping[str, Any]
"""Options as `[OWNER.]KEY=VALUE`, or values by `[OWNER.]KEY`."""

H = TypeVar("H", bound=RunHeader[Any])
R = TypeVar("R", bound=BaseModel)


class ModelRun(Run[H, R]):
    """A run that produces a world model of an environment, from transitions in its folder.

    Its configuration has the environment (`env`, `env_args`).
    """

    options_of: ClassVar[str] = ""
    """Owner of the options of `trusted_model`, such as `statistician` for `statistician.KEY`."""

    @property
    def has_model(self) -> bool:
        """Whether the run has a world model; a run may have an agent alone."""
        return True

    def trusted_model(self, options: Options, observer: Observer) -> WorldModel:
        """Return the world model, for models that execute no generated code.

        Args:
            options: Options of `options_of`; they override the options of the run.
            observer: Receives messages.
        """
        raise NotImplementedError

    def model_scores(self) -> Mapping[str, Any]:
        """Return known scores of the model, by part of the data or by name."""
        return {}

    @property
    def has_agent(self) -> bool:
        """Whether an agent was trained with the model."""
        return False

    def open_agent(self, options: Options, task: Task, observer: Observer) -> PlanningSession:
        """Begin episodes of the trained agent.

        Args:
            options: Options of checkpoints.
            task: The environment, the seed and the step limit.
            observer: Receives messages.

        Raises:
            CwmError: The run has no agent.
        """
        raise CwmError(f"{self.place} has no agent: choose --policy planner or random")


class ProgramRun(ModelRun[H, R]):
    """A run that produces a program of an environment, from transitions in its folder.

    The program is in `best.py`. The configuration has the environment (`env`, `env_args`), the
    `tools` that the program may import and the `options` of the sandbox.
    """

    @property
    def has_trained(self) -> bool:
        """Whether the run has a trained model instead of a program."""
        return False

    @property
    def has_program(self) -> bool:
        """Whether the run has a program yet."""
        return (self.folder / BEST).exists()

    def best_program(self) -> str:
        """Return the text of `best.py`."""
        try:
            return read_text(self.folder / BEST)
        except UnreadableError as error:
            hint = "continue the run, which writes it again"
            if error.is_missing:
                raise CwmError(f"{self.place} has no program yet: continue it first") from error
            raise UnreadableError(error.file, error.reason, hint) from error

    def write_best(self, program: str) -> None:
        """Write `best.py`."""
        files.replace(self.folder / BEST, program)

    @property
    def limits(self) -> Mapping[str, Any]:
        """Limits of the sandbox for the program."""
        limits: Mapping[str, Any] = self.config.options.get("sandbox", {})
        return limits

    def program_sections(self) -> list[Section]:
        """Return the best program as a section, or a note on why there is none."""
        try:
            data = {"text": self.best_program(), "name": BEST, "gaps": self.gaps()}
        except CwmError as error:
            return [Section("notes", "Program", {"lines": [str(error)]})]
        return [Section("program", "Program", data)]

    def gaps(self) -> list[str]:
        """Return the situations that the data do not cover, once the run is finished."""
        gaps = (self.result() or {}).get("gaps")
        lines = gaps if isinstance(gaps, list) else []
        return [clean(line) for line in lines if isinstance(line, str)]


def program_run(folder: Path) -> ProgramRun[Any, Any]:
    """Return the run of a folder.

    Raises:
        CwmError: The run produces no program.
    """
    run = load(folder)
    if not isinstance(run, ProgramRun):
        words = f"{run.place} is a run of kind {run.kind!r}, which has no program"
        raise CwmError(f"{words}: choose a run of `cwm synthesize` or `cwm learn`")
    return run


def model_run(folder: Path) -> ModelRun[Any, Any]:
    """Return the run of a folder.

    Raises:
        CwmError: The run produces no world model.
    """
    run = load(folder)
    if not isinstance(run, ModelRun):
        words = f"{run.place} is a run of kind {run.kind!r}, which has no world model"
        known = "`cwm synthesize`, `cwm learn`, `cwm theorize` or `cwm train`"
        raise CwmError(f"{words}: choose a run of {known}")
    return run
