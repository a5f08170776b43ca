"""Play the episodes that `cwm plan` was asked for, and write each one down."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from cwm_cli.cli.planners import unsuited
from cwm_cli.errors import CwmError
from cwm_cli.views.lines import complain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from cwm_cli.agents.contests import Side, SideName
    from cwm_cli.agents.crews import Heard, Hearing
    from cwm_cli.agents.episodes import Rounds
    from cwm_cli.agents.pilots import Planning
    from cwm_cli.agents.plans import Identity, Journal, Key
    from cwm_cli.cli.planners import Choice
    from cwm_cli.cli.subjects import Subject
    from cwm_cli.data.spaces import Space
    from cwm_cli.envs.films import Camera
    from cwm_cli.envs.spec import EnvironmentSpec
    from cwm_cli.envs.tasks import Setting
    from cwm_cli.sandbox import Sandbox
    from cwm_cli.views.planning import View


@dataclass
class Contest:
    """What is played, by whom, and with what means.

    `actions` are those of the first episode of what is asked about, once it is played.
    """

    spec: EnvironmentSpec
    setting: Setting
    spaces: tuple[Space, Space]
    choice: Choice
    subject: Subject
    sides: list[SideName]
    episodes: int
    form: str = "auto"
    workers: int = 1
    lanes: int = 1
    actions: list[Any] = field(default_factory=list)

    @property
    def asked(self) -> list[Key]:
        """Every episode that is asked for."""
        from cwm_cli.agents.plans import Key

        return [Key(side, number) for side in self.sides for number in range(self.episodes)]

    def identity(self, tools: list[str]) -> Identity:
        """Return all that decides how an episode goes."""
        from cwm_cli import __version__
        from cwm_cli.agents.plans import Identity

        setting, (name, planners, limits) = self.setting, self.choice
        return Identity(
            env=self.spec.id,
            env_args=setting.env_args,
            versions={"cwm": __version__} | dict(self.spec.versions()),
            program=self.subject.digest,
            planner=name,
            planners=[(planner, dict(options)) for planner, options in planners],
            limit=setting.limit,
            seed=setting.seed,
            tools=tools,
            limits={} if self.subject.text is None else asdict(limits),
            form="" if self.subject.text is None else self.form,
        )

    def prepare(self, journal: Journal, *, filmed: bool) -> None:
        """Settle which episodes are played: those that are missing, or all of them again."""
        from cwm_cli.agents.plans import Key

        missing = journal.missing(self.asked)
        if not missing:
            journal.forget(self.asked)
        elif done := len(self.asked) - len(missing):
            words = f"{done} of {len(self.asked)} episodes were played"
            complain(f"continuing {journal.file}: {words}", kind="Note")
        if filmed:
            journal.forget([Key(self.subject.side, 0)])  # its actions are not written down

    def play(self, journal: Journal, sandbox: Sandbox | None, view: View) -> None:
        """Play what is missing, one side after the other."""
        from cwm_cli.planning import Unsuited

        for side in list(self.sides):
            numbers = [key.number for key in journal.missing(self.asked) if key.side == side]
            if not numbers:
                continue
            planners = self._planners(side, journal)
            try:
                with closing(self._heard(side, numbers, planners, sandbox)) as heard:
                    self._follow(heard, side, journal, view)
            except Unsuited as reason:
                if side == self.subject.side:
                    raise
                self.leave_out(side, str(unsuited(planners, str(reason))))
                view.left_out(side)

    def leave_out(self, side: SideName, reason: str) -> None:
        """Play without a side, and say why."""
        self.sides.remove(side)
        complain(f"no {side}: {reason.rpartition(': ')[0]}", kind="Note")

    def outcome(self, journal: Journal) -> dict[SideName, Side]:
        """Return what the sides came to, the one that is asked about first."""
        order = sorted(self.sides, key=("model", "oracle", "random").index)
        return {side: journal.side(side, self.episodes) for side in order}

    def film(self, camera: Camera) -> None:
        """Film the first episode of what is asked about."""
        from cwm_cli.envs.tasks import seeds_of

        reset, _ = seeds_of(self.setting.seed, 0)
        camera.film(reset, self.actions)
        complain(str(camera.file), kind="Film")

    def _follow(self, heard: Iterable[Heard], side: SideName, journal: Journal, view: View) -> None:
        """Write down and show what is played."""
        for worker, played in heard:
            for episode, actions in played.finished:
                journal.append(side, episode, played.report)
                if side == self.subject.side and episode.number == 0:
                    self.actions = actions
            view.saw(side, worker, played)

    def _heard(
        self,
        side: SideName,
        numbers: Sequence[int],
        planners: Sequence[Planning],
        sandbox: Sandbox | None,
    ) -> Hearing:
        """Have the episodes of a side played."""
        from cwm_cli.agents.crews import alone, dealt, in_processes, in_this_process, in_threads
        from cwm_cli.agents.episodes import play

        shares = dealt(numbers, self.workers)
        if side == "random":
            return alone(play(self.setting.task(self.spec), numbers))
        if side == "model":
            assert sandbox is not None
            return in_threads(self._modelled(shares, sandbox), sandbox.close)
        if len(shares) > 1:
            return in_processes(self.setting, planners, shares, lanes=self.lanes)
        return alone(in_this_process(self.setting, planners, numbers, lanes=self.lanes))

    def _modelled(self, shares: Sequence[Sequence[int]], sandbox: Sandbox) -> list[Rounds]:
        """Return the rounds of each share of the episodes, planned in a world model."""
        from cwm_cli.agents.episodes import play
        from cwm_cli.agents.pilots import WorldModel
        from cwm_cli.agents.samples import random_rows
        from cwm_cli.sandbox.messages import PlanningJob
        from cwm_cli.sandbox.session import Session

        task = self.setting.task(self.spec)
        rows = random_rows(task, self.spaces)
        observations, actions = self.spaces
        job = PlanningJob(
            program=self.subject.text or "",
            seed=task.seed,
            observation_space=observations,
            action_space=actions,
            columns=rows,
            planners=self.choice.planners,
            form=self.form,
            valid=task.valid is not None,
        )

        def rounds(share: Sequence[int]) -> Rounds:
            with Session(sandbox, job) as session:
                yield from play(task, share, WorldModel(session), lanes=self.lanes)

        return [rounds(share) for share in shares]

    def _planners(self, side: SideName, journal: Journal) -> list[Planning]:
        """Return the planners of a side: the oracle begins with the one that the model has."""
        planners = self.choice.planners
        report = journal.report("model") if side == "oracle" else None
        names = [planner.name for planner in planners]
        return planners[names.index(report.planner) if report else 0 :]


def check_oracle(contest: Contest) -> None:
    """Leave the oracle out where the environment cannot be saved and restored."""
    import sys
    from contextlib import redirect_stdout

    from cwm_cli.envs.simulators import simulator

    if "oracle" not in contest.sides:
        return
    try:
        with redirect_stdout(sys.stderr):  # what environments print is no result
            simulator(contest.spec, contest.setting.env_args, contest.setting.seed)
    except CwmError as error:
        if contest.subject.side == "oracle":
            raise
        contest.leave_out("oracle", str(error))


def play_through(
    contest: Contest, journal: Journal, sandbox: Sandbox | None, *, new: bool, json: bool
) -> None:
    """Play under the live view; whatever ends it, what was played is kept."""
    import sys

    from rich.console import Console

    from cwm_cli.planning import Unsuited
    from cwm_cli.views.planning import following

    rest = f"the same command {'without --new ' * new}continues"

    def played() -> int:
        return len(contest.asked) - len(journal.missing(contest.asked))

    try:
        with following(
            contest.outcome(journal),
            episodes=contest.episodes,
            title=f"{contest.spec.id} · {contest.subject.name}",
            console=Console(stderr=True),
            erase=json or sys.stdout.isatty(),
        ) as view:
            contest.play(journal, sandbox, view)
    except Unsuited as reason:
        raise unsuited(contest.choice.planners, str(reason)) from reason
    except CwmError as error:
        if not played():
            raise
        raise CwmError(f"{error} (kept in {journal.file}: {rest})") from error
    except KeyboardInterrupt:
        words = f"interrupted after {played()} of {len(contest.asked)} episodes"
        raise KeyboardInterrupt(f"{words}: {rest} {journal.file}") from None
