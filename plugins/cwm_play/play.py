"""Play in a world by keys, let plans play in it, or look through what was recorded: `cwm play`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, get_args

from cwm_cli.commands.plan import DECISION, choose_planners, with_planners
from cwm_cli.commands.policies import RandomSession
from cwm_cli.commands.subjects import (
    ProgramSource,
    RunSource,
    Subject,
    example_rows,
    find_subject,
    protected,
    split_options,
)
from cwm_cli.data.dataset import Dataset
from cwm_cli.envs.documented import documented_actions
from cwm_cli.envs.films import check_film
from cwm_cli.envs.spec import space_of
from cwm_cli.envs.tasks import Task, step_limit
from cwm_cli.errors import CwmError, UnknownNameError
from cwm_cli.result import Result
from cwm_cli.runs.observer import SILENT, Observer
from cwm_cli.runs.programs import Options
from cwm_cli.sandbox import Limits, Sandbox
from cwm_cli.sandbox.protection import check_access
from cwm_cli.worlds.environment import EnvironmentModel
from cwm_cli.worlds.messages import PlanningJob, SteppingJob
from cwm_cli.worlds.model import WorldModel
from cwm_cli.worlds.program import ProgramModel
from cwm_play.filming import FilmRecorder
from cwm_play.games import Arena, Game, ReplayGame, WorldGame
from cwm_play.keys import PAUSE, QUIT, RECORD, keys_of
from cwm_play.painting import Components, Painter, drawing
from cwm_play.scenes import GameScene

PlayMode = Literal["human", "env", "agent", "recon", "replay"]
"""Who plays, and where: by keys in the world model or in the environment, by plans in the model, by
keys with what the model sees, or nobody, as what was recorded is looked through."""

MODES: Sequence[PlayMode] = get_args(PlayMode)

CHECKPOINT = "checkpoint"
"""The label of options that choose the checkpoint of a trained agent."""

FPS = 15.0
"""Steps a second, as published."""


@dataclass(frozen=True)
class GameProgress:
    """A scene of a game, whether it is filmed, whether time stands still, and why no film is."""

    scene: GameScene
    is_recording: bool = False
    is_paused: bool = False
    refused: str = ""


@dataclass(frozen=True)
class GameResult(Result):
    """What came of a game: the mode, what was played or replayed, and the film of it."""

    mode: PlayMode
    title: str
    facts: Mapping[str, Any]
    film: Path | None = None

    def as_json(self) -> dict[str, Any]:
        """Return what `cwm play --json` prints."""
        film = None if self.film is None else str(self.film)
        return {"mode": self.mode, "title": self.title, **self.facts, "film": film}


def play(
    run: RunSource | None = None,
    *,
    env: str | None = None,
    env_args: Mapping[str, Any] | None = None,
    program: ProgramSource | None = None,
    mode: PlayMode | None = None,
    dataset: Dataset | Path | str | None = None,
    keys: Iterable[str | None] | None = None,
    record: Path | str | None = None,
    fps: float = FPS,
    planner: str = "auto",
    options: Sequence[str] | Mapping[str, Any] = (),
    episodes: int = 1,
    seed: int = 0,
    max_steps: int | None = None,
    tools: Sequence[str] = (),
    allow_gap: Sequence[str] = (),
    observer: Observer = SILENT,
) -> GameResult:
    """Play in the world model of a `run`, or of a `program` of `env`, or in `env` itself.

    The agent of a run that trained no world model plays in the environment.

    `keys` are what is pressed, one after the other: characters, or names such as "left" and
    "enter"; None is time that goes on without a key. `human` plays in the world model, with the
    true environment beside it; `env` in the environment; with `agent` plans play in the model;
    `recon` shows how a model sees what is observed; `replay` looks through recorded episodes. The
    last three need no keys. A film goes to the file `record`, of so many frames a second.

    The observer is told the game, and a `GameProgress` after every key.
    """
    subject = find_subject(
        run,
        program=program,
        env=env,
        env_args=env_args,
        real_env=run is None and program is None,
        options=options,
        agents=True,
        observer=observer,
    )
    chosen = _mode(mode, subject)
    if keys is None and chosen in ("human", "env"):
        raise CwmError(f"--mode {chosen} needs keys: play in a terminal, or choose another --mode")
    if record is not None:
        check_film(Path(record), "--record")
    check_access(tools, allow_gap)
    with ExitStack() as stack:
        arena = arena_of(subject, seed, max_steps, draws=chosen in ("env", "recon"))
        stack.callback(arena.painter.close)
        checkpoint, _ = split_options(options, CHECKPOINT)
        by_keys = keys is not None
        opened = _Opening(subject, arena, planner, checkpoint, by_keys, tools, allow_gap, observer)
        game = opened.game(stack, chosen, dataset, episodes)
        stack.callback(game.close)
        if arena.painter.lacking and chosen != "replay":
            observer.note(f"{arena.painter.lacking}: observations are shown instead")
        recorder = FilmRecorder(Path(record or _film_name(subject)), fps)
        if record is not None:
            recorder.switch()
        observer.begins(game)
        try:
            _loop(game, keys, recorder, observer)
        finally:  # also of a game that was interrupted there is a film
            observer.ends()
            film = recorder.write()
            if film is not None:
                observer.note(str(film), kind="Film")
        return GameResult(chosen, arena.name, game.outcome(), film)


def _mode(mode: PlayMode | None, subject: Subject) -> PlayMode:
    """Return the mode, by itself that of whoever plays by keys, or of an agent without a model."""
    alone = subject.text is None and subject.model is None
    if mode is None:
        return "human" if not alone else "env" if subject.run is None else "agent"
    if mode not in MODES:
        raise UnknownNameError("mode", mode, MODES)
    if alone and mode in ("human", "recon"):
        raise CwmError(f"--mode {mode} needs a world model: give a run, or --program FILE")
    return mode


def _loop(
    game: Game, keys: Iterable[str | None] | None, recorder: FilmRecorder, observer: Observer
) -> None:
    """Tell the game every key, until it is left; what is seen is told and filmed.

    Without keys time goes on until it leads no further.
    """
    paused, refused = False, ""
    recorder.see(game.scene)
    observer.advanced(GameProgress(game.scene, recorder.is_on))
    for key in repeat(None) if keys is None else keys:
        if key == QUIT:
            return
        if key is not None:
            refused = ""
        if key == PAUSE:
            paused = not paused
        elif key == RECORD:
            try:
                recorder.switch()
            except CwmError as error:
                refused = str(error)
        elif key is not None or not paused:
            game.press(key)
        scene = game.scene
        recorder.see(scene)
        observer.advanced(GameProgress(scene, recorder.is_on, paused, refused))
        if game.is_done and keys is None:
            return


def _film_name(subject: Subject) -> Path:
    """Return a name for a film that is no file yet."""
    number, name = 1, subject.spec.id.replace("/", "-")
    while (file := Path(f"play-{name}-{number}.gif")).exists():
        number += 1
    return file


def arena_of(subject: Subject, seed: int, max_steps: int | None, *, draws: bool) -> Arena:
    """Gather what games are played in; `draws` has the true environment draw itself."""
    spec, env_args = subject.spec, subject.env_args
    with closing(spec.make(**env_args)) as made:
        spaces = space_of(made.observation_space), space_of(made.action_space, "actions")
        limit, description = step_limit(made, max_steps), spec.describe(made)
        schema = spec.objects(made) if spec.objects else None
        names = tuple(spec.action_names(made)) if spec.action_names else ()
        rows = example_rows(subject, made, spaces, schema)
    if not names and spaces[1].kind == "discrete":
        names = documented_actions(description, spaces[1].count)
    painter = Painter(spec, env_args, spaces[0], schema)
    args = dict(env_args)
    painter.look(rows.row(0).observation)  # whether that can be drawn shows then
    if (draws and spaces[0].is_picture) or painter.lacking:
        drawn = drawing(spec, env_args)
        if not isinstance(drawn, str):
            args["render_mode"] = drawn.render_mode
            drawn.close()
    task = Task(lambda: spec.make(**args), seed, limit, spec.valid_actions)
    named = Components(spaces[0], description, schema)
    name = f"{spec.id} · {subject.name}"
    return Arena(name, task, rows, painter, named, keys_of(spaces[1], names))


@dataclass
class _Opening:
    """Makes the game of a mode: with the world model, the plans, or the rows that it needs."""

    subject: Subject
    arena: Arena
    planner: str
    checkpoint: Options
    by_keys: bool
    tools: Sequence[str]
    allow_gap: Sequence[str]
    observer: Observer

    def game(
        self,
        stack: ExitStack,
        mode: PlayMode,
        dataset: Dataset | Path | str | None,
        episodes: int,
    ) -> Game:
        """Return the game; what it needs is let go of with the stack."""
        arena, subject = self.arena, self.subject
        if mode == "env":
            return WorldGame(arena)
        choice = (
            choose_planners(self.planner, subject.options, arena.spaces, subject.limits)
            if mode == "agent"
            else None
        )
        limits = choice.limits if choice else Limits.chosen({**subject.limits, **DECISION})
        addresses = [each.address for each in choice.planners if each.address] if choice else []
        model = self._model(stack, limits, addresses)
        if mode == "replay":
            rows = subject.transitions(dataset, self.observer)
            return ReplayGame(arena, model, rows, seed=arena.task.seed, episodes=episodes)
        if mode == "recon":
            assert model is not None
            drawn = None if self.by_keys else RandomSession(arena.task, arena.task.seed)
            seen = self._seen(model)
            return WorldGame(arena, None, drawn, episodes=episodes, seen=seen, chosen_by="chance")
        if choice is None:
            return WorldGame(arena, model)
        if subject.run is not None and subject.run.has_agent and self.planner == "auto":
            told = self.observer if model is None else SILENT  # which checkpoint it is was said
            session = subject.run.open_agent(self.checkpoint, arena.task, told)
            return WorldGame(arena, model, session, episodes=episodes, chosen_by="the agent")
        planners = choice.planners
        if isinstance(model, ProgramModel):
            model, planners = with_planners(model, subject, choice, arena.task, self.observer)
        planned = model or EnvironmentModel(subject.spec, subject.env_args)
        session = planned.planned.open(planners, arena.task)
        by = f"{self.planner} planner" if self.planner != "auto" else "the planner"
        return WorldGame(arena, model, session, episodes=episodes, chosen_by=by)

    def _model(
        self, stack: ExitStack, limits: Limits, addresses: Sequence[str]
    ) -> WorldModel | None:
        """Return the world model, none where there is only the environment."""
        subject = self.subject
        if subject.text is None:
            return subject.model
        sandbox: Sandbox = stack.enter_context(
            protected(
                limits,
                tools=sorted({*subject.tools, *self.tools}),
                accepted=self.allow_gap,
                workers=4,  # that predict, imagine, plan, and confirm
                handlers=[PlanningJob.handler, SteppingJob.handler, *addresses],
                observer=self.observer,
            )
        )
        return ProgramModel(subject.text, sandbox, subject.name)

    def _seen(self, model: WorldModel) -> Callable[[Any], Any]:
        """Return what shows an observation as the model sees it."""
        if type(model).seen is WorldModel.seen:
            words = f"{model.describe()} does not encode observations"
            raise CwmError(f"{words}: --mode recon is for models with a tokenizer")
        space = self.arena.rows.observation_space

        def seen(observation: Any) -> Any:
            columns = model.seen(space.pack("observations", [observation]))
            return space.unpack("observations", columns, 0)

        return seen
