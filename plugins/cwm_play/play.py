"""Play in a world model or an environment, watch a planner, or replay episodes: `cwm play`."""

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
from cwm_play.filming import EpisodeKeeper, FilmRecorder
from cwm_play.games import Arena, Game, ReplayGame, WorldGame
from cwm_play.keys import HEADER, PAUSE, QUIT, RECORD, keys_of
from cwm_play.painting import Components, Painter, make_rendering_env
from cwm_play.scenes import GameScene, without_header

PlayMode = Literal["human", "env", "agent", "watch", "recon", "replay"]
"""The mode of a game:

- `human`: keys play in a world model.
- `env`: keys play in the environment.
- `agent`: a planner or a trained agent plays in a world model.
- `watch`: a planner or a trained agent plays in the environment.
- `recon`: keys or random actions play in the environment, and the model's input is shown.
- `replay`: recorded episodes are shown.
"""

MODES: Sequence[PlayMode] = get_args(PlayMode)

CHECKPOINT = "checkpoint"
"""The prefix of options that choose the checkpoint of a trained agent."""

FPS = 15.0
"""Default steps per second: the published value."""


@dataclass(frozen=True)
class GameProgress:
    """An event of a game: the scene after a key or a step.

    Attributes:
        scene: The scene to draw.
        is_recording: Whether the film is being recorded.
        is_paused: Whether the player has paused the game.
        film_error: Why recording could not start, or an empty text.
        question: A question that keys answer, or an empty text.
    """

    scene: GameScene
    is_recording: bool = False
    is_paused: bool = False
    film_error: str = ""
    question: str = ""


@dataclass(frozen=True)
class GameResult(Result):
    """The result of a game.

    Attributes:
        mode: The mode of the game.
        title: The environment and the model.
        facts: Results of the episodes as JSON-like data, under the key `episodes`.
        film: Path of the film, or None.
        kept: Films and transitions of the episodes that the player kept.
    """

    mode: PlayMode
    title: str
    facts: Mapping[str, Any]
    film: Path | None = None
    kept: Sequence[Path] = ()

    def as_json(self) -> dict[str, Any]:
        """Return what `cwm play --json` prints."""
        film = None if self.film is None else str(self.film)
        found = {"mode": self.mode, "title": self.title, **self.facts, "film": film}
        return found | ({"kept": [str(file) for file in self.kept]} if self.kept else {})


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
    save: Path | str | None = None,
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
    """Play in the model of a `run`, in a `program` of `env`, or in `env` itself.

    Args:
        run: A run with a world model or an agent. If the run has trained no world model, its
            agent plays in the environment.
        env: The environment id.
        env_args: Keyword arguments of the environment.
        program: A world model program of `env`.
        mode: `human` plays in the model beside the true environment, and `env` in the environment.
            With `agent`, a planner plays in the model, and with `watch` in the environment. `recon`
            shows how the model represents observations, and `replay` shows recorded episodes. The
            last four need no keys. The default is `human` if there is a model.
        dataset: Episodes to replay. The default is the data of the run or of the environment.
        keys: The pressed keys in order: characters, or names such as "left" and "enter". None
            means that time passes without a key.
        record: File of a film of the game, .gif or .mp4. The transitions are written beside it, to
            `FILE.npz`.
        save: Folder for films and transitions of episodes. At the end of each episode the player
            is asked whether to keep it, and the keys y and n answer.
        fps: Frames per second of the film.
        planner: The planner of the modes `agent` and `watch`.
        options: Options of the planner, like `-o` on the command line.
        episodes: Number of episodes that a planner plays, or that are replayed without keys.
        seed: Seed of all random draws.
        max_steps: Step limit of an episode.
        tools: Tools that the program may use.
        allow_gap: Gaps in the protection of the sandbox to accept.
        observer: Receives the game, and a `GameProgress` after every key.

    Returns:
        The results of the episodes, and the film.

    Raises:
        CwmError: The mode needs keys or a world model, or the film cannot be written.
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
    chosen = _choose_mode(mode, subject)
    if keys is None and chosen in ("human", "env"):
        raise CwmError(f"--mode {chosen} needs keys: play in a terminal, or choose another --mode")
    if save is not None and (keys is None or chosen == "replay"):
        raise CwmError("--save asks the player of each episode: play in a terminal, not replay")
    if record is not None:
        check_film(Path(record), "--record")
    check_access(tools, allow_gap)
    with ExitStack() as stack:
        arena = make_arena(subject, seed, max_steps, renders=chosen in ("env", "watch", "recon"))
        stack.callback(arena.painter.close)
        checkpoint, _ = split_options(options, CHECKPOINT)
        by_keys = keys is not None
        factory = _GameFactory(
            subject, arena, planner, checkpoint, by_keys, tools, allow_gap, observer
        )
        game = factory.make(stack, chosen, dataset, episodes)
        stack.callback(game.close)
        if arena.painter.no_rendering_reason and chosen != "replay":
            observer.note(f"{arena.painter.no_rendering_reason}: observations are shown instead")
        recorder = FilmRecorder(Path(record or _film_name(subject)), fps, arena.rows)
        if record is not None:
            recorder.switch()
        keeper = None if save is None else EpisodeKeeper(Path(save), fps, arena.rows)
        observer.begins(game)
        try:
            _GameLoop(game, recorder, keeper, observer).play(keys)
        finally:  # write the film of an interrupted game, too
            observer.ends()
            written, kept = recorder.write(), [] if keeper is None else keeper.kept
            for file in (*written, *kept):
                observer.note(str(file), kind="Data" if file.suffix == ".npz" else "Film")
        film = written[0] if written else None
        return GameResult(chosen, arena.name, game.outcome(), film, kept)


def _choose_mode(mode: PlayMode | None, subject: Subject) -> PlayMode:
    """Check the mode; by default, `human` with a model, else `agent` for runs, else `env`."""
    has_model = subject.text is not None or subject.model is not None
    if mode is None:
        return "human" if has_model else "env" if subject.run is None else "agent"
    if mode not in MODES:
        raise UnknownNameError("mode", mode, MODES)
    if not has_model and mode in ("human", "recon"):
        raise CwmError(f"--mode {mode} needs a world model: give a run, or --program FILE")
    return mode


@dataclass
class _GameLoop:
    """Passes keys to a game, and films, keeps and reports every scene."""

    game: Game
    recorder: FilmRecorder
    keeper: EpisodeKeeper | None
    observer: Observer
    paused: bool = False
    has_header: bool = True
    film_error: str = ""

    def play(self, keys: Iterable[str | None] | None) -> None:
        """Play until the player quits; without keys, until the game is done."""
        self.show()
        for key in repeat(None) if keys is None else keys:
            if key == QUIT:
                return
            self.handle(key)
            self.show()
            if self.game.is_done and keys is None:
                return

    def handle(self, key: str | None) -> None:
        """Change the display, answer a question, or pass the key to the game."""
        if key is not None:
            self.film_error = ""
        if key == PAUSE:
            self.paused = not self.paused
        elif key == HEADER:
            self.has_header = not self.has_header
        elif key == RECORD:
            try:
                self.recorder.switch()
            except CwmError as error:
                self.film_error = str(error)
        elif self.keeper is not None and self.keeper.is_asking:
            self.keeper.answer(key)
        elif key is not None or not self.paused:
            self.game.press(key)

    def show(self) -> None:
        """Film and report the current scene."""
        scene = self.game.scene if self.has_header else without_header(self.game.scene)
        self.recorder.add(scene)
        question = ""
        if self.keeper is not None:
            self.keeper.add(scene)
            question = self.keeper.QUESTION * self.keeper.is_asking
        self.observer.advanced(
            GameProgress(scene, self.recorder.is_on, self.paused, self.film_error, question)
        )


def _film_name(subject: Subject) -> Path:
    """Return a file name for a film that does not exist yet."""
    number, name = 1, subject.spec.id.replace("/", "-")
    while (file := Path(f"play-{name}-{number}.gif")).exists():
        number += 1
    return file


def make_arena(subject: Subject, seed: int, max_steps: int | None, *, renders: bool) -> Arena:
    """Return the setting of a game.

    Args:
        subject: The environment and its model.
        seed: Seed of the episodes.
        max_steps: Step limit of an episode; None for the environment's limit.
        renders: Whether an environment with image observations renders itself as well.
    """
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
    painter.paint(rows.row(0).observation)  # sets `no_rendering_reason` if this is impossible
    if (renders and spaces[0].is_picture) or painter.no_rendering_reason:
        rendering_env = make_rendering_env(spec, env_args)
        if not isinstance(rendering_env, str):
            args["render_mode"] = rendering_env.render_mode
            rendering_env.close()
    task = Task(lambda: spec.make(**args), seed, limit, spec.valid_actions)
    components = Components(spaces[0], description, schema)
    name = f"{spec.id} · {subject.name}"
    return Arena(name, task, rows, painter, components, keys_of(spaces[1], names))


@dataclass
class _GameFactory:
    """Makes the game of a mode, with its world model, planner or dataset."""

    subject: Subject
    arena: Arena
    planner: str
    checkpoint: Options
    by_keys: bool
    tools: Sequence[str]
    allow_gap: Sequence[str]
    observer: Observer

    def make(
        self,
        stack: ExitStack,
        mode: PlayMode,
        dataset: Dataset | Path | str | None,
        episodes: int,
    ) -> Game:
        """Return the game; the stack closes the sandbox that it uses."""
        arena, subject = self.arena, self.subject
        if mode == "env":
            return WorldGame(arena)
        choice = (
            choose_planners(
                self.planner,
                subject.options,
                arena.spaces,
                subject.limits,
                two_players=subject.spec.game is not None,
            )
            if mode in ("agent", "watch")
            else None
        )
        limits = choice.limits if choice else Limits.chosen({**subject.limits, **DECISION})
        addresses = [each.address for each in choice.planners if each.address] if choice else []
        model = self._open_model(stack, limits, addresses)
        if mode == "replay":
            rows = subject.transitions(dataset, self.observer)
            return ReplayGame(arena, model, rows, seed=arena.task.seed, episodes=episodes)
        if mode == "recon":
            assert model is not None
            return WorldGame(
                arena,
                session=None if self.by_keys else RandomSession(arena.task, arena.task.seed),
                episodes=episodes,
                reconstruct=self._reconstruction(model),
                player="chance",
            )
        if choice is None:
            return WorldGame(arena, model)
        if subject.run is not None and subject.run.has_agent and self.planner == "auto":
            # A model has already reported its checkpoint.
            observer = self.observer if model is None else SILENT
            session = subject.run.open_agent(self.checkpoint, arena.task, observer)
            shown = None if mode == "watch" else model
            return WorldGame(arena, shown, session, episodes=episodes, player="the agent")
        planners = choice.planners
        if isinstance(model, ProgramModel):
            model, planners = with_planners(model, subject, choice, arena.task, self.observer)
        planning_model = model or EnvironmentModel(subject.spec, subject.env_args)
        session = planning_model.planned.open(planners, arena.task)
        player = f"{self.planner} planner" if self.planner != "auto" else "the planner"
        shown = None if mode == "watch" else model
        return WorldGame(arena, shown, session, episodes=episodes, player=player)

    def _open_model(
        self, stack: ExitStack, limits: Limits, addresses: Sequence[str]
    ) -> WorldModel | None:
        """Return the model, or None if there is only the environment."""
        subject = self.subject
        if subject.text is None:
            return subject.model
        sandbox: Sandbox = stack.enter_context(
            protected(
                limits,
                tools=sorted({*subject.tools, *self.tools}),
                accepted=self.allow_gap,
                workers=4,  # one each to predict, imagine, plan and confirm
                handlers=[PlanningJob.handler, SteppingJob.handler, *addresses],
                observer=self.observer,
            )
        )
        return ProgramModel(subject.text, sandbox, subject.name)

    def _reconstruction(self, model: WorldModel) -> Callable[[Any], Any]:
        """Return a function that returns an observation as the model represents it."""
        if type(model).seen is WorldModel.seen:
            words = f"{model.describe()} does not encode observations"
            raise CwmError(f"{words}: --mode recon is for models with a tokenizer")
        space = self.arena.rows.observation_space

        def reconstruct(observation: Any) -> Any:
            columns = model.seen(space.pack("observations", [observation]))
            return space.unpack("observations", columns, 0)

        return reconstruct
