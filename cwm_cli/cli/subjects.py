"""What a command is asked about: a program, a run, or the environment itself."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cwm_cli.cli.shared import parse_env_args
from cwm_cli.errors import CwmError

if TYPE_CHECKING:
    from typing import Any

    from cwm_cli.agents.contests import SideName
    from cwm_cli.data.dataset import Dataset
    from cwm_cli.envs.spec import EnvironmentSpec
    from cwm_cli.runs.searches import SearchRun

FOLDER = "plans"
"""The folder of a run, or of all runs, with what was played."""


class Subject(NamedTuple):
    """A program, or none for the environment itself, and all that comes with it.

    `tools` are what the program may import, `limits` what it may use up, and
    in `folder` what is played is written down; `run` is where it comes from, if from one.
    """

    name: str
    text: str | None
    env_args: dict[str, Any]
    tools: list[str]
    limits: dict[str, Any]
    folder: Path
    run: SearchRun | None = None

    @property
    def side(self) -> SideName:
        """The side that plays for it."""
        return "oracle" if self.text is None else "model"

    @property
    def digest(self) -> str:
        """The hash of the program, empty if there is none."""
        return "" if self.text is None else sha256(self.text.encode()).hexdigest()

    def sides(self, *, no_oracle: bool) -> list[SideName]:
        """Return the sides that play, in their order."""
        if self.text is None and no_oracle:
            raise CwmError("with --real-env the oracle is what plays: leave --no-oracle out")
        sides: list[SideName] = ["random"]
        sides += [] if self.text is None else ["model"]
        sides += [] if no_oracle else ["oracle"]
        return sides


def find_subject(
    spec: EnvironmentSpec,
    env_arg: list[str] | None,
    program: Path | None,
    run: Path | None,
    *,
    real_env: bool | None = None,
) -> Subject:
    """Gather what is asked about; a run has all of it.

    Without `real_env` there is no choice of the environment itself.
    """
    from cwm_cli.cli.data import open_run, read_program

    if (program is not None) + (run is not None) + bool(real_env) != 1:
        instead = "" if real_env is None else " (or --real-env: none)"
        raise CwmError(f"name one world model: --program FILE, or --run DIR{instead}")
    if run is None:
        text = None if program is None else read_program(program)
        name = "the environment itself" if program is None else str(program)
        return Subject(name, text, parse_env_args(env_arg), [], {}, Path("runs") / FOLDER)
    found = open_run(run, spec, env_arg)
    config, best = found.config, found.best_program()
    limits = config.options.get("sandbox", {})
    return Subject(str(run), best, config.env_args, [*config.tools], limits, run / FOLDER, found)


def transitions_of(spec: EnvironmentSpec, subject: Subject, dataset: Path | None) -> Dataset:
    """Return the given transitions, or those of a run, or the default ones of the environment."""
    from cwm_cli.cli.data import load_dataset

    if dataset is None and subject.run is not None:
        return subject.run.dataset()
    return load_dataset(spec, subject.env_args, dataset)[0]
