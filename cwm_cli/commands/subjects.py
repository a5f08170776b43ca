"""The subject of a command: a program, another world model, or the environment itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from cwm_cli.commands.collect import environment_in, find_environment, load_transitions
from cwm_cli.commands.synthesize import warn_of_gaps
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.objects import ObjectSchema
from cwm_cli.data.reading import UnreadableError, read_text
from cwm_cli.envs.spec import EnvironmentSpec, space_of
from cwm_cli.envs.tasks import Task, random_action, reward_number
from cwm_cli.envs.variants import as_changes, shift_name
from cwm_cli.errors import CwmError
from cwm_cli.runs.listing import load_readable, run_folders
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.runs.programs import ModelRun, Options, ProgramRun, model_run, program_run
from cwm_cli.runs.storage import located, placed
from cwm_cli.runs.store import RUNS, Run
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.worlds.model import WorldModel

PLANS = "plans"
"""Name of the folder of played episodes, in a run or in the folder of all runs."""

ProgramSource = Path | str
"""A program file, or the text of a program (with a line break)."""

RunSource = Path | str | ModelRun[Any, Any]
"""A run with a world model: its folder, or the object."""


class Subject(NamedTuple):
    """A program, another world model, or the environment itself, with its environment.

    Attributes:
        name: A short name for messages.
        spec: The environment.
        env: Id of the environment, as the user or the run gives it.
        env_args: Arguments of the environment.
        text: The program. None for other models, and for the environment itself.
        tools: Modules that the program may import.
        limits: Limits of the sandbox.
        folder: Folder of played episodes.
        run: The run of the program or model, if it has one.
        model: A world model that runs no generated code, or None.
        options: The given options without the options of the model.
        recorded_args: Arguments of the environment of the rows, if the subject is in a shifted
            environment (see `in_shifts`).
    """

    name: str
    spec: EnvironmentSpec
    env: str
    env_args: dict[str, Any]
    text: str | None
    tools: tuple[str, ...] = ()
    limits: Mapping[str, Any] = {}
    folder: Path = RUNS / PLANS
    run: ModelRun[Any, Any] | None = None
    model: WorldModel | None = None
    options: Options = ()
    recorded_args: dict[str, Any] | None = None

    @property
    def is_shifted(self) -> bool:
        """Whether the environment is a shifted one."""
        return self.recorded_args is not None

    @property
    def digest(self) -> str:
        """The hash of the program or model, empty for the environment itself."""
        if self.model is not None:
            return self.model.digest
        return "" if self.text is None else sha256(self.text.encode()).hexdigest()

    def transitions(
        self, dataset: Dataset | Path | str | None = None, observer: Observer = SILENT
    ) -> Dataset:
        """Return the given transitions, else the transitions of the run, else the default ones."""
        if dataset is None and self.run is not None:
            return self.run.dataset()
        env_args = self.env_args if self.recorded_args is None else self.recorded_args
        return load_transitions(self.spec, env_args=env_args, dataset=dataset, observer=observer)[0]

    def in_shifts(self, shifts: Iterable[int | Mapping[str, Any]]) -> dict[str, Subject]:
        """Return the subject in shifted environments, by name; its own environment is left out.

        Args:
            shifts: For each environment the seed of a shift, or arguments that replace the ones
                of the environment, such as `{"g": 5}`.

        Raises:
            CwmError: There is no such environment, or the world model does not fit its spaces.
        """
        every = {shift_name(changes): changes for changes in map(as_changes, shifts)}
        if every and not self.spec.has_simulator(self.env_args):
            raise CwmError(f"{self.env} has no simulator that could be shifted: leave out --shift")
        found, own = {}, self._forms() if every else []
        for name, changes in every.items():
            other = self._replace(env_args=self.env_args | changes, recorded_args=self.env_args)
            if other.env_args == self.env_args:
                continue
            if other._forms() != own:
                raise CwmError(
                    f"--shift {name} changes the shape of observations or actions of {self.env}: "
                    "choose arguments that keep it"
                )
            found[name] = other
        return found

    def _forms(self) -> list[Any]:
        """Return the kinds and shapes of observations and actions, without bounds."""
        with closing(self.spec.make(**self.env_args)) as made:
            spaces = [space_of(made.observation_space), space_of(made.action_space, "actions")]
        leaves = [leaf for space in spaces for leaf in space.leaves("")]
        return [(leaf.name, leaf.space.kind, leaf.space.shape) for leaf in leaves]


def find_subject(
    run: RunSource | None = None,
    *,
    program: ProgramSource | None = None,
    env: str | None = None,
    env_args: Mapping[str, Any] | None = None,
    dataset: Dataset | Path | str | None = None,
    real_env: bool | None = None,
    options: Options | None = None,
    agents: bool = False,
    observer: Observer = SILENT,
) -> Subject:
    """Resolve the arguments that name a program, a run or an environment.

    Args:
        run: A run, which also names the environment.
        program: A program of `env`.
        env: Id of the environment; without it, the dataset of a program names it.
        env_args: Arguments of the environment.
        dataset: Transitions or their file, which may name the environment.
        real_env: Use the environment itself, by default the environment of the newest run. None
            if the command does not offer it.
        options: Options of the command; a run uses the options of its model. None accepts only
            programs.
        agents: Whether a run that has an agent but no model represents the environment itself.
        observer: Receives notes.

    Raises:
        CwmError: The arguments contradict each other, or name nothing that exists.
    """
    if (program is not None) + (run is not None) + bool(real_env) != 1:
        instead = "" if real_env is None else ", or --real-env"
        raise CwmError(f"choose one world model: a run, --program FILE{instead}")
    if run is not None:
        return _of_run(run, env, env_args, options, agents, observer)
    if program is not None:
        env, env_args = environment_in(dataset, env, env_args)
    if env is None and program is not None:
        raise CwmError("--program needs an environment: add --env ID or --dataset FILE")
    if env is None:
        newest = _newest_run()
        if newest is None:
            raise CwmError("--real-env needs an environment: add --env ID")
        env, env_args = newest.config.env, env_args or newest.config.env_args
        observer.note(f"{env}, as in the newest run {newest.place}", "Environment")
    spec = find_environment(env, observer)
    name, text = ("the environment itself", None) if program is None else read_program(program)
    return Subject(name, spec, env, dict(env_args or {}), text, options=options or ())


def _newest_run() -> Run[Any, Any] | None:
    """Return the newest run in the working folder that names an environment."""
    for folder in run_folders(RUNS):
        with suppress(CwmError):
            run = load_readable(folder)
            if getattr(run.config, "env", "") and hasattr(run.config, "env_args"):
                return run
    return None


def _of_run(
    run: RunSource,
    env: str | None,
    env_args: Mapping[str, Any] | None,
    options: Options | None,
    agents: bool,
    observer: Observer,
) -> Subject:
    """Return the subject of a run; raise an error if other arguments contradict the run."""
    if not isinstance(run, ModelRun) and located(run).is_file():
        raise CwmError(f"{run} is a file, not a run folder: use --program {run} --env ID")
    place = run.folder if isinstance(run, ModelRun) else placed(run)
    found = program_run(place) if options is None else model_run(place)
    config, folder = found.config, found.folder
    spec = find_environment(config.env, observer)
    if env not in (None, config.env) and find_environment(env).id != spec.id:
        raise CwmError(
            f"{found.place} is a run of {config.env}: use --env {config.env}, or leave out --env"
        )
    if env_args and dict(env_args) != config.env_args:
        raise CwmError(
            f"{found.place} was started with other environment arguments: leave out --env-arg "
            "(`cwm evaluate` and `cwm plan` compare environments with --shift KEY=VALUE)"
        )
    subject = Subject(
        name=found.place,
        spec=spec,
        env=config.env,
        env_args=config.env_args,
        text=None,
        folder=folder / PLANS,
        run=found,
        options=options or (),
    )
    if agents and not found.has_model:
        return subject
    if not isinstance(found, ProgramRun) or found.has_trained:
        theirs, others = split_options(subject.options, found.options_of)
        return subject._replace(model=found.trusted_model(theirs, observer), options=others)
    return subject._replace(
        text=found.best_program(), tools=tuple(config.tools), limits=found.limits
    )


def read_program(source: ProgramSource) -> tuple[str, str]:
    """Return the name and the text of a program."""
    if isinstance(source, str) and "\n" in source:
        return "the program", source
    file = Path(source)
    try:
        return str(source), read_text(file)
    except UnreadableError as error:
        hint = "give a .py file or a run folder"
        raise UnreadableError(file, error.reason, hint, is_missing=error.is_missing) from error


def split_options(options: Options, owner: str) -> tuple[Options, Options]:
    """Return the options of an owner, and all others."""
    named = [each for each in options if each.startswith(f"{owner}.")]
    if isinstance(options, Mapping):
        theirs = {key: options[key] for key in named}
        return theirs, {key: value for key, value in options.items() if key not in theirs}
    return named, [each for each in options if each not in named]


@contextmanager
def protected(
    limits: Limits,
    *,
    tools: Iterable[str] = (),
    accepted: Iterable[str] = (),
    workers: int = 2,
    handlers: Iterable[str] = (),
    observer: Observer = SILENT,
) -> Iterator[Sandbox]:
    """Open a sandbox, prepare it for jobs with these `handlers`, and warn about open gaps."""
    with Sandbox(limits, workers, tools=sorted(set(tools)), accepted=accepted) as sandbox:
        sandbox.prepare(*handlers)
        warn_of_gaps(sandbox.protection, observer)
        yield sandbox


def example_rows(
    subject: Subject, env: Any, spaces: tuple[Any, Any], schema: ObjectSchema | None
) -> Dataset:
    """Return a dataset with one transition of the environment, as an example of its format."""
    task = Task(lambda: env, 0, 1, subject.spec.valid_actions)
    observation, _ = env.reset(seed=0)
    action = random_action(env.action_space, task.allowed(env))
    seen, reward, terminated, *_ = env.step(action)
    number, valid = reward_number(reward), task.listed(env)
    row = Transition(observation, action, seen, number, bool(terminated), valid=valid)
    metadata = {"env": subject.env, "env_args": subject.env_args}
    if schema is not None:
        metadata["objects"] = schema.to_json()
    return Dataset.of([row], observation_space=spaces[0], action_space=spaces[1], metadata=metadata)
