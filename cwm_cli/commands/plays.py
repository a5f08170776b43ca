"""Results of `cwm plan` and their run folder.

`PlanResult` compares the returns of a model, the oracle and the baselines. `PlayRun` is a journal
with one line per finished episode: a finished episode survives a crash and is not played again.
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import BaseModel

from cwm_cli.commands.collect import hashed_name
from cwm_cli.commands.episodes import Episode
from cwm_cli.commands.sides import (
    BASELINES,
    SIDES,
    BaselineName,
    MatchRecord,
    Mean,
    Side,
    SideName,
    better_baseline,
    relative_return,
)
from cwm_cli.data.dataset import Dataset
from cwm_cli.errors import CwmError
from cwm_cli.evaluation.mismatches import Mismatches
from cwm_cli.result import Result
from cwm_cli.runs.report import ChartLine, LineChart, RunReport, RunSummary, Section, table
from cwm_cli.runs.storage import named
from cwm_cli.runs.store import HEADER, Run, RunHeader
from cwm_cli.text import mean_with_error
from cwm_cli.worlds.model import PlannedWith


class LearnFrom(NamedTuple):
    """Arguments of the `cwm learn` command that continues from a plan."""

    env: str
    env_args: Mapping[str, Any]
    run: Path

    @property
    def command(self) -> list[str]:
        """The command as a list of words."""
        words = ["cwm", "learn", "--env", self.env]
        for name, value in self.env_args.items():
            words += ["--env-arg", f"{name}={json.dumps(value)}"]
        return [*words, "--from", named(self.run)]


@dataclass(frozen=True)
class PlanResult(
    Result,
    shown="mean stderr R baseline random idle oracle returns lengths mismatches failure stopped "
    "planner",
):
    """Result of `plan`.

    Attributes:
        sides: The sides with their episodes, in the order of the output.
        asked: The requested side: "model", or "oracle" without a model.
        journal: File with one line per episode.
        film: Film of the first episode, if requested.
        doubt: Value of steps that no row supports, or the reason why support is unknown.
        stopped: Reason why planning stopped early; empty if all episodes were played.
        learn_from: Arguments of the `cwm learn` command that fixes wrong predictions.
        in_program: Whether the episodes were played in the program itself.
        shifted: The results in shifted environments, by their changed arguments.
        opponent: The opponent in a game of two players; empty in other environments.
    """

    sides: Mapping[SideName, Side]
    asked: SideName
    journal: Path
    film: Path | None = None
    doubt: str = ""
    stopped: str = ""
    learn_from: LearnFrom | None = None
    in_program: bool = False
    shifted: Mapping[str, Self] = field(default_factory=dict)
    opponent: str = ""

    @property
    def side(self) -> Side:
        """The requested side."""
        return self.sides[self.asked]

    @property
    def returns(self) -> list[float]:
        """The return of every episode of the requested side."""
        return self.side.returns

    @property
    def lengths(self) -> list[int]:
        """The length of every episode of the requested side."""
        return self.side.lengths

    @property
    def mean(self) -> float:
        """The mean return of the verified episodes of the requested side."""
        return self.side.mean.mean

    @property
    def stderr(self) -> float | None:
        """The standard error of the mean."""
        return self.side.mean.stderr

    @property
    def random(self) -> Mean:
        """The mean return of random actions."""
        return self.sides["random"].mean

    @property
    def idle(self) -> Mean | None:
        """The mean return of doing nothing, None if the actions do not allow it."""
        return self.sides["idle"].mean if "idle" in self.sides else None

    @property
    def oracle(self) -> Mean | None:
        """The mean return of the oracle, None if it did not play."""
        return self.sides["oracle"].mean if "oracle" in self.sides else None

    @property
    def baseline(self) -> BaselineName:
        """The better baseline: "random" or "idle"."""
        return better_baseline(self.sides)

    @property
    def R(self) -> float | None:
        """The relative return: 1 for the oracle, 0 for the better baseline."""
        return self._relative_to(self.baseline)

    @property
    def R_random(self) -> float | None:
        """The relative return with random actions as the baseline, as in publications."""
        return self._relative_to("random")

    def _relative_to(self, baseline: BaselineName) -> float | None:
        if "oracle" not in self.sides or self.asked == "oracle" or self.stopped:
            return None
        return relative_return(self.side, self.sides["oracle"], self.sides[baseline])

    @property
    def mismatches(self) -> Mismatches | None:
        """Wrong predictions in the played episodes, None without a model."""
        return self.side.mismatches

    @property
    def match(self) -> MatchRecord | None:
        """Wins, draws and losses of the verified games of the requested side, None without."""
        return MatchRecord.of(self.side.verified) if self.opponent else None

    @property
    def unverified(self) -> list[int]:
        """The numbers of the episodes whose decisions could not be confirmed in time."""
        return self.side.unverified

    @property
    def refuted(self) -> bool:
        """Whether most steps were predicted wrongly; the return is then no evidence."""
        return bool(self.mismatches and self.mismatches.refutes)

    @property
    def unsupported(self) -> float | None:
        """The share of unsupported decisions, None if unknown."""
        cost = self.side.cost
        known = self.doubt and not self.doubt.startswith("none") and cost.decisions
        return cost.unsupported / cost.decisions if known else None

    def as_json(self) -> dict[str, Any]:
        """Return the output of `cwm plan --json`."""
        side, report, failure = self.side, self.side.report, self.side.failure
        oracle, idle = self.sides.get("oracle"), self.sides.get("idle")
        shifted = {name: each.as_json() for name, each in self.shifted.items()}
        return {
            "returns": side.returns,
            "lengths": side.lengths,
            **side.mean.as_json(),
            "random": self.random.as_json(),
            "idle": idle.mean.as_json() if idle else None,
            "oracle": oracle.mean.as_json() if oracle else None,
            "baseline": self.baseline,
            "R": self.R,
            "R_random": self.R_random,
            **side.speeds,
            "unverified": self.unverified,
            "refuted": self.refuted,
            "mismatches": self.mismatches and self.mismatches.model_dump(),
            "failures": side.cost.failures,
            "failure": asdict(failure) if failure else None,
            "planner": report.planner if report else None,
            "form": " and ".join(report.forms) if report else None,
            "note": report.note if report else None,
            "doubt": self.doubt or None,
            "unsupported": self.unsupported,
            "decisions": side.cost.decisions,
            "confirmed": side.cost.confirmed,
            "model_steps": side.cost.model_steps,
            "speeds": {name: s.speeds for name, s in self.sides.items() if s.cost.decisions},
            "oracle_returns": oracle.returns if oracle else None,
            "random_returns": self.sides["random"].returns,
            "idle_returns": idle.returns if idle else None,
            "stopped": self.stopped or None,
            "in_program": self.in_program,
            "journal": str(self.journal),
            "render": None if self.film is None else str(self.film),
            **({"opponent": self.opponent, **self.match.as_json()} if self.match else {}),
            **({"shifted": shifted} if shifted else {}),
        }


# Run folder


WRONG = "wrong"
"""Subfolder with the rows of episodes that the model predicted wrongly."""


class PlayConfig(BaseModel, frozen=True):
    """All settings that determine an episode; equal settings share a run folder.

    Attributes:
        env: Id of the environment.
        env_args: Arguments of the environment.
        versions: Versions of cwm and of the packages of the environment.
        program: Hash of the program text; empty if plans are made in the true environment.
        doubt: Value of unsupported steps and hash of the rows; empty without rows.
        planner: The requested name, e.g. "auto".
        planners: The planners of that name, with all their options.
        limit: Maximum number of steps of an episode.
        seed: Seed of all episodes.
        tools: Tools that the program may use.
        limits: Limits of the sandbox.
        reward: Expression of the reward; empty for the own reward.
        opponent: The opponent in a game of two players; empty in other environments.
    """

    env: str
    env_args: dict[str, Any] = {}
    versions: dict[str, str] = {}
    program: str = ""
    doubt: str = ""
    planner: str
    planners: list[tuple[str, dict[str, Any]]]
    limit: int
    seed: int
    tools: list[str] = []
    limits: dict[str, float] = {}
    reward: str = ""
    opponent: str = ""

    @property
    def folder_name(self) -> str:
        """A readable folder name with a hash of all settings."""
        unset = {name for name in ("reward", "opponent") if not getattr(self, name)}
        settings = self.model_dump(mode="json", exclude=unset)
        return hashed_name(settings, self.planner)


class PlayHeader(RunHeader[PlayConfig]):
    """Header of the run folder of a plan."""

    kind: str = "plan"


class PlayRecord(BaseModel, frozen=True, ser_json_inf_nan="constants"):
    """A line of the journal: an episode of a side, and its planner report."""

    side: SideName
    episode: Episode
    report: PlannedWith | None = None


def wrong_rows(folder: Path) -> Dataset | None:
    """Return the rows of wrongly predicted episodes, of a plan or of all plans of a run.

    Episodes are numbered again from 0, because several plans use the same numbers.

    Args:
        folder: Folder of a plan or of a run.

    Returns:
        The rows, None if no episode was predicted wrongly.
    """
    # a run has plans in subfolders, a plan has its own folder of rows
    found = [Dataset.load(file) for file in sorted(folder.glob(f"**/{WRONG}/*.npz"))]
    for number, rows in enumerate(found):
        rows.columns["episodes"][:] = number
    return found[0].concatenate(*found[1:]) if found else None


def mismatches_of(folder: Path) -> Mismatches:
    """Return the sum of the wrong predictions in all plans of a run."""
    found = Mismatches()
    for header in sorted(folder.glob(f"plans/*/{HEADER}")):
        for record in PlayRun.load(header.parent).records():
            found = found.plus(record.episode.mismatches or Mismatches())
    return found


class EpisodeKey(NamedTuple):
    """Key of an episode of a plan."""

    side: SideName
    number: int


@dataclass
class PlayRun(Run[PlayHeader, PlayRecord]):
    """Run folder of a plan, with the finished episodes of all sides.

    If the journal contains an episode twice, the last record is used. If episodes are played
    again, the journal keeps the old records until the first new episode is finished.
    """

    kind = "plan"
    header_type = PlayHeader
    record_type = PlayRecord

    known: dict[EpisodeKey, PlayRecord] = field(default_factory=dict, compare=False)
    _rewrite_next: bool = field(default=False, repr=False, compare=False)

    @classmethod
    def open(cls, parent: Path, config: PlayConfig, *, new: bool = False) -> Self:
        """Open or create the run of a configuration.

        Args:
            parent: Folder of the run folder.
            config: Settings of the episodes.
            new: Ignore the episodes that the run contains.

        Raises:
            CwmError: The folder cannot be written.
        """
        folder = parent / config.folder_name
        try:
            run = cls.begin(folder, PlayHeader(config=config))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise CwmError(
                f"cannot write to {named(folder)} ({reason}): choose another folder"
            ) from error
        run._rewrite_next = new
        return run

    def __enter__(self) -> Self:
        """Lock the run and read the finished episodes."""
        super().__enter__()
        try:
            # with --new, old episodes stay in the journal until the first new one is finished
            if not self._rewrite_next:
                self.known = {self._key(record): record for record in self.records()}
        except CwmError as error:
            self.__exit__(type(error))
            raise CwmError(f"{error}, or add --new") from error
        return self

    @property
    def journal(self) -> Path:
        """The file with a line per episode."""
        return self.folder / self.journal_name

    def missing(self, requested: Collection[EpisodeKey]) -> list[EpisodeKey]:
        """Return the requested episodes that are not finished."""
        return [key for key in requested if key not in self.known]

    def side(self, name: SideName, count: int | None = None) -> Side:
        """Return the finished episodes of a side; with `count` only numbers below `count`."""
        known = sorted(key for key in self.known if key.side == name and key.number >= 0)
        keys = [key for key in known if count is None or key.number < count]
        episodes = [self.known[key].episode for key in keys]
        return Side(episodes, self.planned_with(name))

    def planned_with(self, name: SideName) -> PlannedWith | None:
        """Return the planner report of the first planned episode of a side, None if unknown."""
        records = (record for key, record in self.known.items() if key.side == name)
        return next((record.report for record in records if record.report), None)

    def forget(self, keys: Collection[EpisodeKey]) -> None:
        """Mark episodes as missing; the journal keeps them until a new one is finished."""
        self.known = {key: record for key, record in self.known.items() if key not in keys}
        self._rewrite_next = True
        if not self.known:
            self.restart_clock()

    def take_back(self, side: SideName) -> None:
        """Delete all episodes of a side from the journal."""
        self.known = {key: record for key, record in self.known.items() if key.side != side}
        self.rewrite(list(self.known.values()))
        self._rewrite_next = False

    def add(self, side: SideName, episodes: Sequence[Episode], report: PlannedWith | None) -> None:
        """Append episodes to the journal; after this returns, they survive a crash."""
        records = [PlayRecord(side=side, episode=each, report=report) for each in episodes]
        self.known.update({self._key(record): record for record in records})
        if self._rewrite_next:
            self.rewrite(list(self.known.values()))
            self._rewrite_next = False
        else:
            self.append(*records)

    def keep(self, number: int, rows: Dataset | None) -> None:
        """Store the rows of a wrongly predicted episode for `cwm learn`.

        Args:
            number: Number of the episode.
            rows: Rows of the episode; None deletes the file of an earlier attempt.
        """
        file = self.folder / WRONG / f"{number}.npz"
        if rows is None:
            file.unlink(missing_ok=True)
        else:
            config = self.header.config
            metadata = {"env": config.env, "env_args": config.env_args}
            replace(rows, metadata=metadata).save(file)

    def summary(self) -> RunSummary:
        """Return the number of finished episodes and the mean return of each side."""
        config = self.header.config
        if not self.known:
            self.known = {self._key(record): record for record in self.records()}
        counts = Counter(side for side, _ in self.known)
        means = [f"{side} {self.side(side, n).mean.mean:.5g}" for side, n in counts.items()]
        return RunSummary(
            self.place,
            self.kind,
            environment=config.env,
            strategy=config.planner,
            seed=config.seed,
            done=f"{len(self.known)} episodes",
            result=", ".join(means),
            created=self.header.created,
        )

    def sides(self) -> dict[SideName, Side]:
        """Return the episodes of each side."""
        self.summary()  # reads the journal
        played = {side for side, _ in self.known}
        return {name: self.side(name) for name in SIDES if name in played}

    @classmethod
    def report(cls, runs: Sequence["PlayRun"]) -> RunReport:
        """Return the mean return of each side."""
        base = super().report(runs)
        config, sides = runs[0].header.config, runs[0].sides()
        means = [
            f"{SIDES[name]} {mean_with_error(*side.mean) if side.verified else 'not verified'}"
            for name, side in sides.items()
        ]
        verdict = f"Mean return: {', '.join(means)}" if means else "No episode is over yet"
        if (found := _relative_return(sides)) is not None:
            verdict += f" \N{MIDDLE DOT} R = {found:.3f}"
        title = f"{config.env} \N{MIDDLE DOT} planning with {config.planner}"
        return replace(base, title=title, verdict=verdict)

    @classmethod
    def sections(cls, runs: Sequence["PlayRun"]) -> list[Section]:
        """Return the chart of all returns and the table of the sides."""
        if len(runs) > 1:
            return super().sections(runs)
        sides = runs[0].sides()
        if not sides:
            return [Section("notes", "Episodes", {"lines": ["No episode is over yet."]})]
        lines = list[ChartLine]()
        for tone, (name, side) in enumerate(sides.items()):
            numbers = [each.number for each in side.episodes]
            tips = [
                f"{each.length} steps{'' if each.verified else ', unverified'}"
                for each in side.episodes
            ]
            returns = side.returns
            lines.append(ChartLine(SIDES[name], numbers, returns, loose=True, tone=tone, tips=tips))
            if len(numbers) > 1 and side.verified:
                mean, error = side.mean.mean, side.mean.stderr or 0.0
                ends = (numbers[0], numbers[-1])
                low, high = (mean - error,) * 2, (mean + error,) * 2
                line = ChartLine(f"mean, {SIDES[name]}", ends, (mean, mean), low, high, tone=tone)
                lines.append(line)
        drawn = LineChart("episode", "return", lines).data()
        return [
            Section("chart", "Return of each episode", drawn, _caption(sides)),
            Section("table", "Means", _side_table(sides)),
        ]

    @staticmethod
    def _key(record: PlayRecord) -> EpisodeKey:
        return EpisodeKey(record.side, record.episode.number)


def _common_episodes(sides: Mapping[SideName, Side]) -> dict[SideName, Side]:
    """Return the sides with only the first n episodes; n is the lowest number of a side."""
    count = min((len(side.episodes) for side in sides.values()), default=0)
    return {name: Side(side.episodes[:count]) for name, side in sides.items()}


def _has_comparison(sides: Mapping[SideName, Side]) -> bool:
    """Return whether R is defined; journals of earlier versions have no side "idle"."""
    return all(name in sides for name in ("model", "oracle", "random"))


def _relative_return(sides: Mapping[SideName, Side]) -> float | None:
    """Return R, None without oracle, verified episodes or gain over the better baseline."""
    first = _common_episodes(sides)
    if not _has_comparison(sides) or not first["model"].verified:
        return None
    return relative_return(first["model"], first["oracle"], first[better_baseline(first)])


def _caption(sides: Mapping[SideName, Side]) -> str:
    """Return the caption of the chart: the bands, and R or the reason why it is missing."""
    bands = "A line is the mean return; its band is one standard error."
    if not _has_comparison(sides):
        return f"{bands} R needs plans in the environment: `cwm plan --oracle`."
    first = _common_episodes(sides)
    if not first["model"].verified:
        return f"{bands} There is no R: no episode of the world model is verified."
    found, baseline = _relative_return(sides), BASELINES[better_baseline(first)]
    if found is None:
        return f"{bands} There is no R: the oracle is not better than {baseline}."
    count = len(first["model"].verified)
    times = "one episode" if count == 1 else f"{count} episodes"
    return f"{bands} R = {found:.3f} over {times}: 1 equals the oracle, 0 equals {baseline}."


def _side_table(sides: Mapping[SideName, Side]) -> dict[str, Any]:
    rows = list[list[Any]]()
    for name, side in sides.items():
        cost, wrong = side.cost, side.mismatches
        rows.append(
            [
                SIDES[name],
                side.report.planner if side.report else None,
                len(side.episodes),
                side.mean.mean,
                side.mean.stderr,
                cost.decisions or None,
                cost.failures if cost.decisions else None,
                len(side.unverified) if cost.decisions else None,
                wrong.wrong if wrong else None,
                wrong.steps if wrong else None,
            ]
        )
    heads = ["side", "planner", "episodes", "mean return", "standard error", "decisions"]
    heads += ["failed decisions", "unverified episodes", "wrong predictions", "predictions"]
    return table(heads, rows, words=2)
