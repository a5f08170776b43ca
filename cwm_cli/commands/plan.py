"""Play episodes of an environment by planning (`cwm plan`).

`plan` resolves the request and lets each side play its episodes. The sides are random actions,
doing nothing, plans in the model and, if requested, plans in the environment itself (the oracle).
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cwm_cli._version import __version__
from cwm_cli.commands.episodes import (
    FailedPredictions,
    Progress,
    Stream,
    WorkerStream,
    deal,
    in_processes,
    in_threads,
    play,
)
from cwm_cli.commands.idle import can_idle, idle_action
from cwm_cli.commands.matches import MatchTask, OpponentName
from cwm_cli.commands.plan_setup import PlanSetup
from cwm_cli.commands.plays import EpisodeKey, LearnFrom, PlanResult, PlayConfig, PlayRun
from cwm_cli.commands.sides import FEWEST_EPISODES, SIDES, Side, SideName, episodes_by_length
from cwm_cli.commands.subjects import (
    PLANS,
    ProgramSource,
    RunSource,
    Subject,
    find_subject,
    protected,
)
from cwm_cli.commands.trials import choose_by_trial
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Leaf, Space
from cwm_cli.envs.films import Camera
from cwm_cli.envs.spec import gym_space_of
from cwm_cli.envs.tasks import Setting, Task, seeds_of
from cwm_cli.envs.variants import NOISE
from cwm_cli.errors import CwmError, EnvironmentFailure, UnknownNameError
from cwm_cli.evaluation.mismatches import Comparing
from cwm_cli.evaluation.support import Doubt, Mode, doubting, is_enumerable
from cwm_cli.planning import PLANNERS, Unsuited, automatic, rank_of, serving
from cwm_cli.planning.encoding import find_unplannable
from cwm_cli.registry import Owner, environment, find, names, read_options, with_presets
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.runs.store import HEADER
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.sandbox.protection import check_access
from cwm_cli.worlds.confined_trails import TrailsJob
from cwm_cli.worlds.confirming import confirmed_share
from cwm_cli.worlds.environment import EnvironmentModel
from cwm_cli.worlds.messages import ImaginingJob, PlanningJob, SteppingJob
from cwm_cli.worlds.model import Planning, PlanningSession, Stuck, WorldModel
from cwm_cli.worlds.program import ProgramModel
from cwm_cli.worlds.remote import TamperingError

DECISION = {"wall_seconds": 1800.0, "cpu_seconds": 1200.0}
"""Limits of one planning call, which decides for all running episodes.

They are generous because one plan of the published CEM takes 2 million model steps.
"""

FOREIGN_DATA = "none: the data are from another environment"
"""Description of doubt if the rows do not fit the spaces of the environment."""


def plan(
    run: RunSource | None = None,
    *,
    env: str | None = None,
    env_args: Mapping[str, Any] | None = None,
    program: ProgramSource | None = None,
    real_env: bool = False,
    dataset: Dataset | Path | str | None = None,
    planner: str = "auto",
    options: Sequence[str] | Mapping[str, Any] = (),
    reward_expression: str | None = None,
    opponent: OpponentName | None = None,
    oracle: bool = False,
    episodes: int | None = FEWEST_EPISODES,
    workers: int = 1,
    seed: int = 0,
    max_steps: int | None = None,
    render: Path | str | None = None,
    new: bool = False,
    shifts: Sequence[int | Mapping[str, Any]] = (),
    tools: Sequence[str] = (),
    allow_gap: Sequence[str] = (),
    folder: Path | str | None = None,
    observer: Observer = SILENT,
) -> PlanResult:
    """Play episodes with planned actions, and as many with random actions and doing nothing.

    The plans are made in the best program of a `run`, in a `program` for `env`, or, with
    `real_env`, in the environment itself. Finished episodes are stored on disk, so that the same
    call continues an interrupted one. If all episodes are finished, it plays them again.

    Recorded data without a simulator are played in the program itself, from recorded initial
    observations: the returns are then predictions.

    Args:
        run: Run with the program. It also names the environment.
        env: Id of the environment of `program`; optional if the dataset names it.
        env_args: Arguments of the environment.
        program: Program to plan in, instead of the best program of a run.
        real_env: Plan in the environment itself.
        dataset: Rows that support the program, by default the train rows of the run. A step
            without support counts as bad as the worst recorded return, unless the option
            `planning.doubt` has another value.
        planner: Name of the planner, or "auto".
        options: Options of planners, of planning and of the sandbox (`-o OWNER.KEY=VALUE`).
        reward_expression: Reward of a step instead of the own one, as an expression over the
            columns after the step and the action, such as `"-abs(level - 1.2)"`.
        opponent: Opponent in a game of two players: "random" (the default there), "self" or
            "oracle", which plans in the game itself.
        oracle: Also plan in the environment itself, to compute the relative return `R`.
        episodes: Number of episodes of each side. None plays 10 to 2,000, so that the side with
            the longest episodes plays about 3,000 steps.
        workers: Number of parallel workers; each plays several episodes in parallel.
        seed: Seed of the episodes.
        max_steps: Maximum length of an episode, by default the limit of the environment.
        render: File for a film of the first episode.
        new: Ignore the stored episodes and play all again.
        shifts: Shifted environments to play in as well, with the same model: seeds of `--shift`,
            or arguments that replace the ones of the environment, such as `{"g": 5}`. There,
            wrong predictions do not stop the episodes.
        tools: Tools that the program may use, in addition to its own.
        allow_gap: Missing protections of the sandbox that are accepted.
        folder: Folder of the results, by default a folder of the run, or `runs/plans`.
        observer: Receives a `Playing` at the start, then `SideProgress` and `LeftOut`.

    Returns:
        The episodes of all sides, with means, costs and wrong predictions.

    Raises:
        CwmError: The request is invalid, or the program or the environment failed.
        KeyboardInterrupt: Interrupted; the message contains the number of finished episodes.
    """
    subject = find_subject(
        run,
        program=program,
        env=env,
        env_args=env_args,
        dataset=dataset,
        real_env=real_env,
        options=options,
        observer=observer,
    )
    check_access(tools, allow_gap)
    _check_syntax(subject)
    play_in = partial(
        _play_subject,
        dataset=dataset,
        planner=planner,
        reward_expression=reward_expression,
        opponent=opponent,
        oracle=oracle,
        episodes=episodes,
        workers=workers,
        seed=seed,
        max_steps=max_steps,
        new=new,
        tools=tools,
        allow_gap=allow_gap,
        folder=folder,
        observer=observer,
    )
    shifted = subject.in_shifts(shifts)
    result = play_in(subject, render=render)
    if result.stopped:
        return result
    return replace(result, shifted={name: play_in(other) for name, other in shifted.items()})


def _check_syntax(subject: Subject) -> None:
    """Raise `CwmError` if the program is not Python, because it would fail in every decision."""
    try:
        ast.parse(subject.text or "")
    except (SyntaxError, ValueError) as error:  # a ValueError: the text contains a null byte
        where = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else error
        raise CwmError(f"{subject.name} does not load: {where}: correct the program") from error


def _play_subject(
    subject: Subject,
    *,
    dataset: Dataset | Path | str | None,
    planner: str,
    reward_expression: str | None,
    opponent: OpponentName | None,
    oracle: bool,
    episodes: int | None,
    workers: int,
    seed: int,
    max_steps: int | None,
    new: bool,
    tools: Sequence[str],
    allow_gap: Sequence[str],
    folder: Path | str | None,
    observer: Observer,
    render: Path | str | None = None,
) -> PlanResult:
    """Play episodes in the environment of a subject; `plan` describes the arguments."""
    setup = PlanSetup.of(
        subject,
        dataset=dataset,
        reward_expression=reward_expression,
        max_steps=max_steps,
        observer=observer,
    )
    setup.check_options(oracle=oracle, render=render is not None)
    rival = setup.opponent(opponent, render=render is not None)
    subject, spaces, limit, data = setup.subject, setup.spaces, setup.limit, setup.data
    suited = () if subject.model is None else subject.model.planners
    choice = choose_planners(
        planner, subject.options, spaces, subject.limits, suited, two_players=bool(rival)
    )
    rows = None if data is None else data.train
    film = None if render is None else Camera(Path(render), subject.spec, subject.env_args)
    if film:
        film.check()
    setting = Setting(subject.env, subject.env_args, seed, limit)
    asked: SideName = "oracle" if subject.text is None and subject.model is None else "model"
    all_tools = sorted({*subject.tools, *tools})
    with ExitStack() as stack:
        sandbox = None
        if subject.text is not None:
            guarded = protected(
                choice.limits,
                tools=all_tools,
                accepted=allow_gap,
                # two processes per worker and model (in a match also for the opponent), one for
                # the trial of the planners, one that repeats predictions, and one that simulates
                workers=(2 if rows is None else 4) * workers * (1 + (rival == "self"))
                + 2
                + setup.in_program,
                handlers=[
                    PlanningJob.handler,
                    SteppingJob.handler,
                    ImaginingJob.handler,
                    TrailsJob.handler,
                    *filter(None, (p.address for p in choice.planners)),
                ],
                observer=observer,
            )
            sandbox = stack.enter_context(guarded)
        if sandbox is not None:
            subject = stack.enter_context(setup.opened(sandbox))
        truth = EnvironmentModel(subject.spec, subject.env_args)
        sides = _select_sides(asked, truth, spaces[1], oracle=oracle, observer=observer)
        model, doubt = _model_with_doubt(
            subject,
            sandbox,
            spaces,
            rows,
            choice.doubt,
            confirmed_share(episodes or FEWEST_EPISODES),
        )
        known = None if doubt == FOREIGN_DATA else rows
        if model is not None and known is not None:
            choice = choice.by_trial(model, setting.task(subject.spec), known, observer)
        config = PlayConfig(
            env=subject.spec.id,
            env_args=setting.env_args,
            versions={"cwm": __version__} | dict(subject.spec.versions()),
            program=subject.digest,
            doubt="" if rows is None else f"{choice.doubt} {rows.digest}",
            planner=choice.name,
            planners=[(each.name, dict(each.options)) for each in choice.planners],
            limit=setting.limit,
            seed=setting.seed,
            tools=all_tools,
            limits={} if subject.text is None else asdict(choice.limits),
            reward=setup.reward.text if setup.reward else "",
            opponent=rival,
        )
        play_run = PlayRun.open(Path(folder or subject.folder), config, new=new)
        stack.enter_context(play_run)
        title = f"{subject.spec.id} · {subject.name}"
        count = episodes or FEWEST_EPISODES
        playing = Playing(title, sides, asked, count, limit, play_run, by_length=episodes is None)
        play_run.report_repair(observer)
        playing.prepare(observer, filmed=film is not None)
        noisy = NOISE in subject.env_args
        comparing = (
            None
            if model is None or setup.in_program  # then every prediction is right
            else Comparing(
                model,
                *spaces,
                known,
                seed,
                noisy=noisy,
                stops=choice.stops and not subject.is_shifted,
            )
        )
        players = _Players(
            model or truth, setting, choice.planners, truth, sandbox, workers, comparing, rival
        )
        stopped = _play_through(playing, players, choice, observer, new=new)
        if not stopped and playing.extend():
            stopped = _play_through(playing, players, choice, observer, new=new)
        filmed = film is not None and bool(playing.actions)
        result = playing.result(film.file if film and filmed else None, doubt, stopped)
    if film and filmed:
        film.film(seeds_of(seed, 0)[0], playing.actions)
        observer.note(str(film.file), kind="Film")
    if subject.model is not None or setup.in_program:
        # `cwm learn` continues only from programs, and acts in the environment
        return replace(result, learn_from=None, in_program=setup.in_program)
    return result


class SideProgress(NamedTuple):
    """Progress of one worker of a side."""

    side: SideName
    worker: int
    progress: Progress


class LeftOut(NamedTuple):
    """A requested side that cannot play."""

    side: SideName


@dataclass
class Playing:
    """Requested and finished episodes of all sides.

    Attributes:
        title: Title of the progress display.
        sides: The sides in playing order: fastest first.
        asked: The side that the user requested: "model", or "oracle" without a model.
        episodes: Number of episodes of each side.
        limit: Maximum number of steps of an episode.
        run: Folder of the finished episodes.
        by_length: Play more than these episodes if their length allows.
        actions: Actions of the first episode of the requested side; empty until it is finished.
    """

    title: str
    sides: list[SideName]
    asked: SideName
    episodes: int
    limit: int
    run: PlayRun
    by_length: bool = False
    actions: list[Any] = field(default_factory=list)

    @property
    def requested(self) -> list[EpisodeKey]:
        """The keys of all requested episodes."""
        return [EpisodeKey(side, n) for side in self.sides for n in range(self.episodes)]

    @property
    def played(self) -> int:
        """The number of requested episodes that are finished."""
        return len(self.requested) - len(self.run.missing(self.requested))

    def outcome(self) -> dict[SideName, Side]:
        """Return the finished episodes of each side, in the order of the output."""
        return {side: self.run.side(side, self.episodes) for side in SIDES if side in self.sides}

    def extend(self) -> bool:
        """Request more episodes if their length allows; return whether there are more."""
        before = self.episodes
        if self.by_length:
            self.episodes = max(before, episodes_by_length(self.outcome().values()) or 0)
        return self.episodes > before

    def result(self, film: Path | None, doubt: str, stopped: str) -> PlanResult:
        """Return the result of the requested side and of all sides with finished episodes."""
        sides = {
            name: side
            for name, side in self.outcome().items()
            if side.episodes or name == self.asked
        }
        journal, learn_from = self.run.journal, self.learn_from
        return PlanResult(
            sides,
            self.asked,
            journal,
            film,
            doubt,
            stopped,
            None if self.run.config.opponent else learn_from,
            opponent=self.run.config.opponent,
        )

    @property
    def learn_from(self) -> LearnFrom:
        """The run that `cwm learn` can continue from."""
        config, folder = self.run.config, self.run.folder
        searched = folder.parent.parent  # the run of the program: the plan is in RUN/plans
        if folder.parent.name == PLANS and (searched / HEADER).is_file():
            folder = searched
        return LearnFrom(config.env, config.env_args, folder)

    def prepare(self, observer: Observer, *, filmed: bool) -> None:
        """Select the missing episodes, or all episodes if none is missing."""
        self.extend()  # an interrupted call continues with its own number of episodes
        if self.played == len(self.requested):
            self.run.forget(self.requested)
        elif self.played:
            words = f"{self.played} of {len(self.requested)} episodes were played"
            observer.note(f"continuing {self.run.place}: {words}")
        if filmed:
            self.run.forget([EpisodeKey(self.asked, 0)])  # the run does not store actions

    def take(self, side: SideName, progress: Progress) -> None:
        """Store finished episodes in the run."""
        for episode, _, rows in progress.finished if side == "model" else ():
            self.run.keep(episode.number, rows)
        if progress.finished:
            episodes = [finished.episode for finished in progress.finished]
            self.run.add(side, episodes, progress.report)
        for episode, actions, _ in progress.finished:
            if side == self.asked and episode.number == 0:
                self.actions = actions


class PlannerChoice(NamedTuple):
    """Planners with their options and limits.

    Attributes:
        name: The requested name, e.g. "auto".
        planners: The planners of that name, tried in this order.
        limits: Sandbox limits of a planning call.
        general: The most general planner; error messages suggest it.
        doubt: Value of steps that no row supports.
        rivals: Number of planners at the beginning with equal ranks: a trial can choose one.
        stops: Stop if the predictions fail in play.
    """

    name: str
    planners: list[Planning]
    limits: Limits
    general: str
    doubt: Mode = Doubt.doubt
    rivals: int = 1
    stops: bool = True

    def by_trial(
        self, model: WorldModel, task: Task, rows: Dataset, observer: Observer
    ) -> PlannerChoice:
        """Return the choice without the planners that a trial found worse.

        Args:
            model: The model to plan in.
            task: The task, which limits the steps.
            rows: Recorded rows, with the initial observations of the trial.
            observer: Receives a note with the predicted returns.
        """
        rivals = self.planners[: self.rivals]
        best = choose_by_trial(model, rivals, task, rows, observer) if self.rivals > 1 else None
        if best is None:
            return self
        return self._replace(planners=self.planners[rivals.index(best) :], rivals=1)


def choose_planners(
    name: str,
    options: Sequence[str] | Mapping[str, Any],
    spaces: tuple[Space, Space],
    limits: Mapping[str, Any],
    suited: Sequence[str] = (),
    *,
    two_players: bool = False,
) -> PlannerChoice:
    """Choose the planners and read their options.

    If options of a planner are given, only these planners are used.

    Args:
        name: Name of a planner, or "auto" for all that support the spaces.
        options: Options of planners, of planning and of the sandbox.
        spaces: Observation space and action space.
        limits: Default limits of the sandbox.
        suited: Planners that the model prefers; "auto" tries them first.
        two_players: Whether the environment is a game of two players.

    Raises:
        UnknownNameError: No planner has this name.
        CwmError: The planner does not support the spaces, or an option is invalid.
    """
    known = {label: find("planner", label) for label in names("planner")}
    if ":" in name and name not in known:
        # "package:name" is also valid if the name alone is unique
        known[name] = find("planner", name)
    if name not in (*known, "auto"):
        raise UnknownNameError("planner", name, (*known, "auto"))
    supported = serving(known, spaces[1], two_players=two_players)
    automatic_names = automatic(known, *spaces, two_players=two_players)
    first = [each for each in suited if each in supported]
    automatic_names = [*first, *(each for each in automatic_names if each not in first)]
    if not supported:
        part, space = find_unplannable(spaces[1]) or Leaf("the action", spaces[1])
        raise CwmError(
            f"planning needs finite bounds, and no texts: {part} is {gym_space_of(space)}; "
            "bound it in the environment, or install a planner for it"
        )
    if name not in (*supported, "auto"):
        needs = known[name].NEEDS
        if two_players and not known[name].TWO_PLAYERS:
            needs = "one agent, but this is a game of two players"
        raise CwmError(f"--planner {name} needs {needs}: choose --planner {automatic_names[-1]}")
    candidates = automatic_names if name == "auto" else [name]
    owners = [Owner(each, known[each]) for each in candidates]
    others = [Owner("planning", Doubt), Owner("sandbox", Limits)]
    given = with_presets(read_options(options, [*owners, *others]), [*owners, *others])
    bounds = Limits.chosen({**limits, **DECISION, **given["sandbox"]})
    # a user who sets an option of one planner means this planner, also with "auto"
    chosen = [owner for owner in owners if given[owner.label]] or owners
    planners = [_create_planning(owner, given[owner.label]) for owner in chosen]
    general = automatic_names[-1] if automatic_names else supported[-1]
    doubt = Doubt(**given["planning"])
    ranks = [rank_of(known[planner.name], *spaces) for planner in planners]
    rivals = 1 if first else ranks.count(ranks[0])
    return PlannerChoice(name, planners, bounds, general, doubt.doubt, rivals, doubt.stop)


def with_planners(
    model: ProgramModel,
    subject: Subject,
    choice: PlannerChoice | None,
    task: Task,
    observer: Observer,
) -> tuple[ProgramModel, list[Planning]]:
    """Return a program to plan in, and the planners, chosen by a trial if it is of a run.

    The rows of the run give the range of `grid`, and the initial observations of the trial.
    Without a choice there are no planners.
    """
    if choice is None:
        return model, []
    if subject.run is None:
        return model, choice.planners
    rows = subject.transitions().train
    model = model.planned_within(rows)
    return model, choice.by_trial(model, task, rows, observer).planners


def _create_planning(owner: Owner, options: Mapping[str, Any]) -> Planning:
    """Return a planner with the values of all its options, including defaults."""
    made = owner.make(options)
    address = "" if owner.label in PLANNERS else f"{type(made).__module__}:{type(made).__name__}"
    options = {option: getattr(made, option) for option in owner.options}
    return Planning(owner.label, options, address)


def _select_sides(
    asked: SideName, truth: EnvironmentModel, actions: Space, *, oracle: bool, observer: Observer
) -> list[SideName]:
    """Return the sides in playing order, without oracle if no state can be restored."""
    sides: list[SideName] = ["random", asked]
    if can_idle(actions, truth.spec.valid_actions):
        sides.insert(1, "idle")
    if oracle and asked != "oracle":
        sides.append("oracle")
    if "oracle" in sides:
        try:
            _ = truth.opening
        except CwmError as error:
            if asked == "oracle" or isinstance(error, EnvironmentFailure):
                raise
            sides.remove("oracle")
            observer.note(_left_out(str(error)))
    return sides


def _left_out(reason: str) -> str:
    return f"no oracle: {reason.rpartition(': ')[0]}"


def _model_with_doubt(
    subject: Subject,
    sandbox: Sandbox | None,
    spaces: tuple[Space, Space],
    rows: Dataset | None,
    doubt: Mode,
    share: float,
) -> tuple[WorldModel | None, str]:
    """Return the model (None for the true environment) and a description of its doubt."""
    if sandbox is None:
        return subject.model and subject.model.planned, ""
    plain = ProgramModel(subject.text or "", sandbox, subject.name, share=share)
    if subject.spec.game:
        return plain, "none: support by the data is not determined for games"
    if rows is None:
        return plain, "none: no training data (add --dataset FILE)"
    known = rows.observation_space, rows.action_space
    if (
        known != spaces
        if is_enumerable(*known)
        else [s.size for s in known] != [s.size for s in spaces]
    ):
        return plain, FOREIGN_DATA
    plain = plain.planned_within(rows)
    careful = doubting(plain, rows, doubt)
    if careful is None:
        return plain, "none: support by the data cannot be determined here"
    return careful, doubt


@dataclass
class _Players:
    """Player of the episodes of all sides, with several workers."""

    model: WorldModel
    setting: Setting
    planners: Sequence[Planning]
    truth: EnvironmentModel
    sandbox: Sandbox | None
    workers: int
    comparing: Comparing | None = None
    opponent: OpponentName | Literal[""] = ""

    def __post_init__(self) -> None:
        self.task = self.setting.task(self.truth.spec)

    def play(self, side: SideName, numbers: Sequence[int], first: str | None) -> WorkerStream:
        """Play episodes of a side.

        A program runs in sandbox processes, so threads suffice as workers of the model. The
        oracle steps environments in Python, one at a time per process, so its workers are
        processes.

        Args:
            side: The side that plays.
            numbers: Numbers of its episodes.
            first: Planner of the first episodes of the model. The oracle skips the planners
                before it, so that both sides use the same planner.
        """
        shares = deal(numbers, self.workers)
        if self.opponent:
            return self._play_matches(side, shares)
        if side == "random":
            return in_threads([play(self.task, numbers)])
        if side == "idle":
            return in_threads([play(self.task, numbers, action=idle_action(self.task))])
        if side == "model":
            opened = [self.model.open(self.planners, self.task) for _ in shares]
            streams = [
                _play_session(self.task, share, session, self.comparing)
                for share, session in zip(shares, opened, strict=True)
            ]
            return in_threads(streams, self.sandbox.close if self.sandbox else None)
        # skip planners that the model could not use: both sides then use the same planner
        order = [planner.name for planner in self.planners]
        planners = self.planners[order.index(first) if first in order else 0 :]
        if len(shares) > 1:
            return in_processes(
                [partial(play_in_environment, self.setting, planners, share) for share in shares]
            )
        return in_threads([_play_session(self.task, numbers, self.truth.open(planners, self.task))])

    def _play_matches(self, side: SideName, shares: Sequence[Sequence[int]]) -> WorkerStream:
        """Play games against the opponent, with sessions of its own for each worker."""
        game = self.truth.spec.game
        assert game is not None
        streams = []
        for share in shares:
            rival = None
            if self.opponent != "random":
                planned = self.model if self.opponent == "self" else self.truth
                rival = planned.open(self.planners, self.task)
            task = MatchTask.of(self.task, game, rival)
            if side == "random":
                streams.append(_play_match(task, share, None))
                continue
            model = self.model if side == "model" else self.truth
            session = model.open(self.planners, self.task)
            streams.append(_play_match(task, share, session, self.comparing))
        return in_threads(streams, self.sandbox.close if self.sandbox else None)


def _play_match(
    task: MatchTask,
    numbers: Sequence[int],
    session: PlanningSession | None,
    comparing: Comparing | None = None,
) -> Stream:
    with ExitStack() as stack:
        for each in (session, task.opponent):
            if each is not None:
                stack.enter_context(each)
        compared = comparing if session else None
        # An opponent plans one game at a time, and a `Decider` remembers the last 16 games.
        abreast = 8 if task.opponent else None
        yield from play(task, numbers, session, comparing=compared, abreast=abreast)


def play_in_environment(
    setting: Setting, planners: Sequence[Planning], numbers: Sequence[int]
) -> Stream:
    """Play with plans made in the true environment, in a worker process."""
    spec = environment(setting.env)
    task = setting.task(spec)
    session = EnvironmentModel(spec, setting.env_args).open(planners, task)
    yield from _play_session(task, numbers, session)


def _play_session(
    task: Task,
    numbers: Sequence[int],
    session: PlanningSession,
    comparing: Comparing | None = None,
) -> Stream:
    with session:
        yield from play(task, numbers, session, comparing=comparing)


def _play_through(
    playing: Playing, players: _Players, choice: PlannerChoice, observer: Observer, *, new: bool
) -> str:
    """Play the missing episodes, one side after the other.

    Finished episodes are stored even if an error or an interrupt ends the call. The only
    exception is a program that tampered with planning: its episodes are deleted.

    Returns:
        The reason why planning stopped early, else an empty string.
    """

    def unsuited(reason: Unsuited) -> CwmError:
        tried = " and ".join(planner.name for planner in choice.planners)
        instead = f"choose --planner {choice.general}"
        return CwmError(f"{tried} cannot plan here (the model or environment {reason}): {instead}")

    rest = f"the same command {'without --new ' * new}continues"
    observer.begins(playing)
    try:
        for side in list(playing.sides):
            try:
                _play_side(side, playing, players, observer)
            except Unsuited as reason:
                if side == playing.asked:
                    raise
                playing.sides.remove(side)
                observer.note(_left_out(str(unsuited(reason))))
                observer.advanced(LeftOut(side))
    except Unsuited as reason:
        raise unsuited(reason) from reason
    except Stuck as reason:
        played = len(playing.run.side(playing.asked, playing.episodes).episodes)
        return f"planning ended after {played} of {playing.episodes} episodes: {reason}"
    except TamperingError:
        playing.run.take_back("model")
        raise
    except CwmError as error:
        if not playing.played:
            raise
        raise CwmError(f"{error} (kept in {playing.run.place}: {rest})") from error
    except KeyboardInterrupt:
        words = f"interrupted after {playing.played} of {len(playing.requested)} episodes"
        raise KeyboardInterrupt(f"{words}: {rest} {playing.run.place}") from None
    finally:
        observer.ends()
    return ""


def _play_side(side: SideName, playing: Playing, players: _Players, observer: Observer) -> None:
    """Play the missing episodes of a side and store each one when it is finished.

    Raises:
        Stuck: If predictions fail in play. The rows of unfinished episodes are stored as well.
    """
    missing = playing.run.missing(playing.requested)
    numbers = [key.number for key in missing if key.side == side]
    if not numbers:
        return
    report = playing.run.planned_with("model")
    try:
        with closing(players.play(side, numbers, report.planner if report else None)) as stream:
            for worker, progress in stream:
                playing.take(side, progress)
                observer.advanced(SideProgress(side, worker, progress))
    except FailedPredictions as failed:
        for number, rows in failed.rows.items():
            playing.run.keep(number, rows)
        found, comparing = failed.found, players.comparing
        assert comparing is not None
        right, steps = found.steps - found.mistakes, found.steps + found.unanswered
        correct = f"correct the program with `{shlex.join(playing.learn_from.command)}`"
        if playing.run.config.opponent:  # `cwm learn` plays no games of two
            correct = "record more games, and search again"
        raise Stuck(
            f"{right:,} of {steps:,} predictions in play were right, but "
            f"{100 * comparing.recorded_share:.0f} % of recorded rows: {correct}, or add "
            "-o planning.stop=false to play on"
        ) from None
