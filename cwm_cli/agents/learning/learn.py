"""Learn an environment while acting in it: what `cwm learn` does.

`learn` finds out what is asked for, opens the run, and lets a `Learner` go on until it is certified
or its budget is spent; what came of it is a program that others can read, plan with and go on from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from cwm_cli.agents.collecting import find_environment, recorded_args
from cwm_cli.agents.learning.actor import Actor, Knowledge
from cwm_cli.agents.learning.certificate import Certificate
from cwm_cli.agents.learning.loop import Budget, Learner, Stop
from cwm_cli.agents.learning.questions import RecordedQuestion
from cwm_cli.agents.learning.repairing import ProgramWriter
from cwm_cli.agents.learning.runs import LearnConfig, LearnHeader, LearnRun
from cwm_cli.agents.subjects import protected
from cwm_cli.data.dataset import Dataset
from cwm_cli.envs.spec import EnvironmentSpec, space_of
from cwm_cli.envs.tasks import Setting, step_limit
from cwm_cli.errors import CwmError
from cwm_cli.problems.feedback import documented_names
from cwm_cli.registry import Owner, default, read_options
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.runs.programs import program_run
from cwm_cli.runs.store import DATASET, HEADER, fresh_folder
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.sandbox.protection import check_access
from cwm_cli.worlds.confined_imagining import ImaginingJob

ACTORS = (
    "cwm_cli.agents.learning.counted:Counted",
    "cwm_cli.agents.learning.real:Real",
)
"""The kinds of worlds that there are, in the order in which they are asked whether they serve."""

RunOrRows = Path | str | Dataset
"""The folder of a run, a file with transitions, or transitions."""


@dataclass(frozen=True)
class LearningResult:
    """What came of learning.

    `run` is its folder and `program` the file of the program; `stopped` says why it ended.
    `returns` has every episode: steps in the environment up to its end, its return, and what it was
    played for. `changed` is the number of steps after which nothing changed any more. `refits`
    counts the programs, `writing_seconds` is the time that they took, `planning_seconds` that of
    deciding. `cost` is in US dollars, None where it is unknown.
    """

    run: Path
    program: Path | None
    steps: int
    episodes: int
    returns: list[dict[str, Any]]
    certificate: Certificate | None
    questions: list[RecordedQuestion]
    completions: int
    cost: float | None
    seconds: float
    stopped: Stop
    changed: int
    refits: int
    mismatches: dict[str, int]
    writing_seconds: float
    planning_seconds: float
    gaps: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return what `cwm learn --json` prints."""
        facts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        certificate = self.certificate.model_dump(mode="json") if self.certificate else None
        return facts | {
            "run": str(self.run),
            "program": str(self.program) if self.program else None,
            "certificate": certificate,
            "questions": [each.model_dump(mode="json") for each in self.questions],
            "gaps": list(self.gaps),
        }


def learn(
    env: str,
    *,
    env_args: Mapping[str, Any] | None = None,
    steps: int = 5000,
    start: RunOrRows | None = None,
    stop: str = "certified",
    seconds: float | None = None,
    options: Sequence[str] | Mapping[str, Any] = (),
    seed: int = 0,
    run: Path | str | None = None,
    new: bool = False,
    tools: Sequence[str] = (),
    allow_gap: Sequence[str] = (),
    observer: Observer = SILENT,
) -> LearningResult:
    """Learn an environment by acting in it; a stopped run continues where it was.

    It begins with nothing, or with the rows and the program of what it `start`s from: the folder
    of a run, or a dataset. It goes on for so many `steps` of the environment and `seconds`, or
    until it `stop`s: certified, `return=X` once the mean return of its play reaches X, or never.
    The observer is told a `Learner`, and what that says it tells. Raises `CwmError` for what the
    user can mend.
    """
    spec = find_environment(env, observer)
    check_access(tools, allow_gap)
    budget = _budget(steps, seconds, stop)
    begun = _begun(start)
    env_args = recorded_args(begun.rows, env_args) if begun.rows else dict(env_args or {})
    limits = read_options(options, [Owner("sandbox", Limits)])["sandbox"]
    with protected(
        Limits.chosen(limits),
        tools=tools,
        accepted=allow_gap,
        workers=3,
        handlers=[ImaginingJob.handler],
        observer=observer,
    ) as sandbox:
        facts = _Facts.of(spec, env_args, seed)
        config = LearnConfig(
            env=spec.id,
            env_args=env_args,
            begins=begun.digest,
            options={"sandbox": asdict(Limits.chosen(limits))},
            tools=tuple(sorted(set(tools))),
            seed=seed,
        )
        folder = None if run is None else Path(run)
        kept = _open_run(config, facts, begun, sandbox, folder=folder, steps=steps, new=new)
        with kept as opened, _learner(opened, spec, facts, sandbox, budget, observer) as learner:
            verb = f"continues after {learner.steps:,} steps" if learner.steps else "started"
            observer.note(f"{opened.folder} {verb}", "Run")
            opened.tell(observer)
            return _learned(learner, observer)


def _budget(steps: int, seconds: float | None, stop: str) -> Budget:
    """Read when to stop."""
    word, _, value = stop.partition("=")
    if word == "return" and value:
        try:
            return Budget(steps, seconds, certified=False, target=float(value))
        except ValueError:
            pass
    if stop not in ("certified", "never"):
        raise CwmError(f"--stop {stop} is unknown: write certified, return=X or never")
    return Budget(steps, seconds, certified=stop == "certified")


class _Begun(NamedTuple):
    """What learning begins with: rows, if there are any, and a program, "" for none."""

    rows: Dataset | None = None
    program: str = ""

    @property
    def digest(self) -> str:
        """The hash of both, empty for nothing."""
        if self.rows is None:
            return ""
        return self.rows.digest + (
            sha256(self.program.encode()).hexdigest() if self.program else ""
        )


def _begun(start: RunOrRows | None) -> _Begun:
    """Read what learning begins with; held-out rows stay what they are, and are left out."""
    if start is None:
        return _Begun()
    if isinstance(start, Dataset):
        return _Begun(start.train)
    if not Path(start).is_dir():
        return _Begun(Dataset.load(Path(start)).train)
    found = program_run(Path(start))
    return _Begun(found.dataset().train, found.best_program())


class _Facts(NamedTuple):
    """What is known of a task before anything is done in it."""

    setting: Setting
    description: str
    known: Knowledge

    @classmethod
    def of(cls, spec: EnvironmentSpec, env_args: dict[str, Any], seed: int) -> _Facts:
        """Look at an environment without acting in it."""
        with closing(spec.make(**env_args)) as env:
            limit = step_limit(env)
            known = Knowledge(
                space_of(env.observation_space),
                space_of(env.action_space, "actions"),
                limit,
                seed,
                spec.objects(env) if spec.objects else None,
            )
            return cls(Setting(spec.id, env_args, seed, limit), spec.describe(env), known)

    @property
    def nothing(self) -> Dataset:
        """A dataset of this environment without rows."""
        about: dict[str, Any] = {"env": self.setting.env, "env_args": self.setting.env_args}
        if self.known.schema is not None:
            about["objects"] = self.known.schema.to_json()
        return Dataset.of(
            [],
            observation_space=self.known.observation_space,
            action_space=self.known.action_space,
            metadata=about,
        )


def _open_run(
    config: LearnConfig,
    facts: _Facts,
    begun: _Begun,
    sandbox: Sandbox,
    *,
    folder: Path | None,
    steps: int,
    new: bool,
) -> LearnRun:
    """Continue the named run, or the newest unfinished one of equal choices, or start one."""
    if folder is None and not new:
        folder = next((r.folder for r in LearnRun.alike(config) if not r.is_over(steps)), None)
    folder = folder or fresh_folder(config.env, "learn", str(config.seed))
    if (folder / HEADER).exists():
        run = LearnRun.load(folder)
        run.check(config)
        return run
    header = LearnHeader(
        config=config, description=facts.description, protection=sandbox.protection
    )
    started = LearnRun.start(folder, header, {DATASET: begun.rows or facts.nothing})
    if begun.program:
        started.write_best(begun.program)
    return started


@contextmanager
def _learner(
    run: LearnRun,
    spec: EnvironmentSpec,
    facts: _Facts,
    sandbox: Sandbox,
    budget: Budget,
    observer: Observer,
) -> Iterator[Learner]:
    """Make what learns."""
    known = facts.known
    writer = ProgramWriter(
        sandbox, known.seed, facts.description, default("backend"), tell=lambda words: None
    )
    with closing(
        Learner(
            title=f"{spec.id} · learning",
            task=facts.setting.task(spec),
            known=known,
            actor=actor_for(known)(known),
            writer=writer,
            sandbox=sandbox,
            run=run,
            budget=budget,
            names=documented_names(facts.description, known.observation_space),
            observer=observer,
        )
    ) as learner:
        yield learner


def actor_for(known: Knowledge) -> type[Actor]:
    """Return the first kind of world that an environment is."""
    for address in ACTORS:
        module, _, name = address.partition(":")
        if find_spec(module) is None:
            continue
        kind: type[Actor] = getattr(import_module(module), name)
        if kind.serves(known.observation_space, known.action_space):
            return kind
    raise CwmError("nobody learns in such an environment: synthesize a program from its data")


def _learned(learner: Learner, observer: Observer) -> LearningResult:
    """Learn, and write down what came of it, whatever ends it."""
    run = learner.run
    try:
        stopped = learner.learn()
    except KeyboardInterrupt:
        words = f"interrupted after {learner.steps:,} steps"
        raise KeyboardInterrupt(f"{words}: the same command continues {run.folder}") from None
    except CwmError as error:
        if not learner.steps:
            raise
        raise CwmError(f"{error} (kept in {run.folder}: the same command continues)") from error
    result = _result(learner, stopped)
    if learner.known.program:
        run.write_best(described(learner.known.program, _account(learner, result)))
    run.save_result(result.as_json())
    return result


def _result(learner: Learner, stopped: Stop) -> LearningResult:
    """Gather what came of learning."""
    run, (completions, cost) = learner.run, learner.usage
    found = [each for each in learner.questions.open if each.source == "gaps"]
    return LearningResult(
        run=run.folder,
        program=run.folder / "best.py" if learner.known.program else None,
        steps=learner.steps,
        episodes=len(learner.episodes),
        returns=[
            {"steps": each.steps, "return": each.returned, "aim": each.aim}
            for each in learner.episodes
        ],
        certificate=learner.certificate if stopped == "certified" else None,
        questions=list(learner.questions),
        completions=completions,
        cost=cost,
        seconds=round(run.elapsed, 3),
        stopped=stopped,
        changed=learner.verification.changed,
        refits=len(learner.programs),
        mismatches=dict(learner.mismatches),
        writing_seconds=round(learner.writing_seconds, 3),
        planning_seconds=round(learner.planning_seconds + learner.learning_seconds, 3),
        gaps=tuple(each.text for each in found),
    )


def _account(learner: Learner, result: LearningResult) -> list[str]:
    """Say of the program what is known, what is certified and what is not."""
    rows = len(learner.known.rows)
    env = learner.run.config.env
    lines = [f"{env}, learned by acting in it for {result.steps:,} steps."]
    if learner.known.chance:
        count = len(learner.known.chance)
        lines += [f"{count} of {rows:,} rows came out otherwise by chance and are not replayed."]
    elif learner.programs and not learner.programs[-1].wrong:
        lines += [f"It replays all {rows:,} rows."]
    lines += [
        f"Certified: {result.certificate}."
        if result.certificate
        else "Not certified: its play was not seen to agree with the world for long enough."
    ]
    asked = learner.questions.open
    return [*lines, "Not known:", *(f"- {each.text}" for each in asked)] if asked else lines


def described(program: str, lines: Sequence[str]) -> str:
    """Put an account of a program at its head."""
    told = "\n".join(line.replace("\\", "/").replace('"""', "'''") for line in lines)
    return f'"""{told}\n"""\n\n{program.lstrip()}'
