"""What work is about: a program, rules, a run, or an environment, and all that comes with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from cwm_cli.commands.collect import find_environment, load_transitions
from cwm_cli.commands.synthesize import warn_of_gaps
from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.objects import ObjectSchema
from cwm_cli.data.reading import UnreadableError, read_text
from cwm_cli.envs.spec import EnvironmentSpec
from cwm_cli.envs.tasks import random_action, reward_number
from cwm_cli.errors import CwmError
from cwm_cli.runs.listing import load_readable, run_folders
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.runs.places import located, placed
from cwm_cli.runs.programs import ModelRun, Options, ProgramRun, model_run, program_run
from cwm_cli.runs.store import RUNS, Run
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.worlds.model import WorldModel

PLANS = "plans"
"""The folder, of a run or of all runs, with what was played."""

ProgramSource = Path | str
"""A file with a program, or, in several lines, its text."""

RunSource = Path | str | ModelRun[Any, Any]
"""The folder of a run that came to a world model, or the run that was read from it."""


class Subject(NamedTuple):
    """A program, another world model, or the environment itself, and all that comes with it.

    The environment has neither a `text`, which is that of a program, nor a `model`, which is one
    that runs nobody's code. `env` is the name under which the environment is found. `tools` are
    what the program may import, `limits` what it may use up, and in `folder` what is played with
    it is written down; `run` is where it comes from, if from one. `options` are those that were
    given and say nothing of the model.
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

    @property
    def digest(self) -> str:
        """The hash of the program or model, empty for the environment itself."""
        if self.model is not None:
            return self.model.digest
        return "" if self.text is None else sha256(self.text.encode()).hexdigest()

    def transitions(
        self, dataset: Dataset | Path | str | None = None, observer: Observer = SILENT
    ) -> Dataset:
        """Return the given transitions, or those of the run, or the default ones."""
        if dataset is None and self.run is not None:
            return self.run.dataset()
        return load_transitions(
            self.spec, env_args=self.env_args, dataset=dataset, observer=observer
        )[0]


def find_subject(
    run: RunSource | None = None,
    *,
    program: ProgramSource | None = None,
    env: str | None = None,
    env_args: Mapping[str, Any] | None = None,
    real_env: bool | None = None,
    options: Options | None = None,
    agents: bool = False,
    observer: Observer = SILENT,
) -> Subject:
    """Gather what is asked about; a run has all of it, so that an environment need not be named.

    With `real_env` it is the environment itself, by default the environment of the newest run;
    None if a command does not offer it. Of the `options`
    a run takes those that say what predicts by what it came to; where None are given, only programs
    will do. With `agents` a run that came to an agent alone is about the environment itself.
    """
    if (program is not None) + (run is not None) + bool(real_env) != 1:
        instead = "" if real_env is None else ", or --real-env"
        raise CwmError(f"choose one world model: a run, --program FILE{instead}")
    if run is not None:
        return _of_run(run, env, env_args, options, agents, observer)
    if env is None and program is not None:
        raise CwmError("--program needs an environment: add --env ID")
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
    """Gather what a run has; what is named otherwise is refused."""
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
            f"{found.place} was started with other environment arguments: leave out --env-arg"
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
        theirs, others = apart(subject.options, found.options_of)
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


def apart(options: Options, owner: str) -> tuple[Options, Options]:
    """Return the options that name an owner, and all others."""
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
    """Give a sandbox once it is known what programs cannot do in it; open gaps are named.

    It is prepared for jobs of other kinds than predicting, whose `handlers` are given.
    """
    with Sandbox(limits, workers, tools=sorted(set(tools)), accepted=accepted) as sandbox:
        sandbox.prepare(*handlers)
        warn_of_gaps(sandbox.protection, observer)
        yield sandbox


def example_rows(
    subject: Subject, env: Any, spaces: tuple[Any, Any], schema: ObjectSchema | None
) -> Dataset:
    """Return a transition of the environment, as datasets of it are."""
    observation, _ = env.reset(seed=0)
    named = subject.spec.valid_actions
    allowed = tuple(map(int, named(env.unwrapped) or ())) if named else ()
    action = random_action(env.action_space, allowed or None)
    seen, reward, terminated, *_ = env.step(action)
    after = named(env.unwrapped) if named else None
    valid = None if after is None else tuple(map(int, after))
    row = Transition(
        observation, action, seen, reward_number(reward), bool(terminated), valid=valid
    )
    told = {"env": subject.env, "env_args": subject.env_args}
    if schema is not None:
        told["objects"] = schema.to_json()
    return Dataset.of([row], observation_space=spaces[0], action_space=spaces[1], metadata=told)
