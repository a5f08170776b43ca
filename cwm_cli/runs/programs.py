"""Runs that came to a world model of an environment, most of them to a program."""

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
"""Options as they are given: `[OWNER.]KEY=VALUE`, or values by `[OWNER.]KEY`."""

H = TypeVar("H", bound=RunHeader[Any])
R = TypeVar("R", bound=BaseModel)


class ModelRun(Run[H, R]):
    """A run that came to a world model of an environment, and has transitions of it.

    Its choices name the environment (`env`, `env_args`).
    """

    options_of: ClassVar[str] = ""
    """Whose options `trusted_model` takes: `statistician` where those are `statistician.KEY`."""

    @property
    def has_model(self) -> bool:
        """Whether it came to a world model of its own, and not to an agent alone."""
        return True

    def trusted_model(self, options: Options, observer: Observer) -> WorldModel:
        """Return the world model, where it runs nobody's code; the options are `options_of`'s.

        Those that the run was started with hold, as far as these say nothing else.
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
        """Begin episodes of the agent that was trained; the options are those of checkpoints."""
        raise CwmError(f"{self.place} has no agent: choose --policy planner or random")


class ProgramRun(ModelRun[H, R]):
    """A run that came to a program of an environment, in `best.py`, and has transitions of it.

    Its choices name the environment (`env`, `env_args`), the `tools` that the program may import
    and the `options` of the sandbox.
    """

    @property
    def has_trained(self) -> bool:
        """Whether it came to a model that was trained instead."""
        return False

    @property
    def has_program(self) -> bool:
        """Whether there is one yet."""
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
        """Write the best program to where the other commands look for it."""
        files.replace(self.folder / BEST, program)

    @property
    def limits(self) -> Mapping[str, Any]:
        """What its program may use up."""
        found: Mapping[str, Any] = self.config.options.get("sandbox", {})
        return found

    def program_sections(self) -> list[Section]:
        """Return the best program as part of a page, or in a line why there is none."""
        try:
            data = {"text": self.best_program(), "name": BEST, "gaps": self.gaps()}
        except CwmError as error:
            return [Section("notes", "Program", {"lines": [str(error)]})]
        return [Section("program", "Program", data)]

    def gaps(self) -> list[str]:
        """Say what its data do not show, once it is over."""
        told = (self.result() or {}).get("gaps")
        lines = told if isinstance(told, list) else []
        return [clean(each) for each in lines if isinstance(each, str)]


def program_run(folder: Path) -> ProgramRun[Any, Any]:
    """Return the run of a folder, which has to have come to a program."""
    run = load(folder)
    if not isinstance(run, ProgramRun):
        words = f"{run.place} is a run of kind {run.kind!r}, which has no program"
        raise CwmError(f"{words}: choose a run of `cwm synthesize` or `cwm learn`")
    return run


def model_run(folder: Path) -> ModelRun[Any, Any]:
    """Return the run of a folder, which has to have come to a world model of any kind."""
    run = load(folder)
    if not isinstance(run, ModelRun):
        words = f"{run.place} is a run of kind {run.kind!r}, which has no world model"
        known = "`cwm synthesize`, `cwm learn`, `cwm theorize` or `cwm train`"
        raise CwmError(f"{words}: choose a run of {known}")
    return run
