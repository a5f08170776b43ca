"""Runs of `cwm theorize`: configuration, journal, reports and results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from cwm_cli.commands.collect import find_environment
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.reading import UnreadableError, read_text
from cwm_cli.errors import CwmError
from cwm_cli.registry import Owner, find, read_options
from cwm_cli.result import Result
from cwm_cli.runs.files import RowsAdded
from cwm_cli.runs.nodes import SearchRecord
from cwm_cli.runs.observer import Measures, Observer
from cwm_cli.runs.programs import ModelRun, Options
from cwm_cli.runs.report import (
    ChartLine,
    Grid,
    LineChart,
    RunReport,
    RunSummary,
    Section,
    table_of,
    with_effort,
)
from cwm_cli.runs.searches import connected_nodes
from cwm_cli.runs.storage import named
from cwm_cli.runs.store import RunHeader
from cwm_cli.search.contracts import Usage
from cwm_cli.text import UNKNOWN
from cwm_theorize.parts import choose_backend, make_statistician
from cwm_theorize.rule_map import MAP, AcceptedRules, accepted_rules, rule_map
from cwm_theorize.world_model import Theory

BEST = "best.txt"
"""File with the best rules so far."""

MAX_TABLE_ROWS = 12
"""Maximum number of lines in a table; earlier phases are omitted."""


class TheoryConfig(BaseModel):
    """The choices that identify a run.

    The number of phases is not part of the configuration, so that a run can be extended.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    env: str
    env_args: dict[str, Any] = {}
    held_out: str
    """Digest of the rows that rules are measured on, but never fitted to."""
    method: str
    """Search strategy."""
    theorist: str
    """Backend that proposes rules, with its model."""
    statistician: str
    """Backend that scores rules, with its model."""
    experimenter: str
    """Policy that collects data."""
    options: dict[str, dict[str, Any]] = {}
    """Options by owner: strategy, problem, theorist, statistician and experimenter."""
    proposals: int
    """Proposals per phase, for all particles together."""
    episodes: int
    """Episodes collected per phase."""
    max_steps: int
    """Maximum number of steps per episode."""
    seed: int = 0


class TheoryHeader(RunHeader[TheoryConfig]):
    """The header of a run, with the environment's description."""

    kind: str = "theorize"
    guide: str
    """The environment's description in words."""

    @property
    def openings(self) -> str:
        """The sandbox gaps of the run: none, because no code is generated."""
        return "no code is generated"


class PhaseRecord(BaseModel):
    """A line of the journal: the outcome of a phase."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["phase"] = "phase"
    number: int
    """Number of the phase, from 1."""
    rules: str
    """Best rules at the end of the phase."""
    previous: str
    """Best rules at the end of the previous phase."""
    evidence: int
    """Number of transitions that the rules were scored on."""
    train: float
    """Log-likelihood of the evidence, in nats."""
    held_out: dict[str, float]
    """Log-likelihood of the held-out rows by kind of change, in nats; empty if not scored."""
    proposals: int
    """Number of proposals."""
    scorings: int
    """Number of scored proposals and of repeated scorings, in the run so far."""
    accepted: int | None
    """Number of accepted proposals; none if the method accepts none."""
    rows: int
    """Rows collected in the run so far."""
    found: dict[str, int]
    """Rows of this phase by kind of change."""
    first: dict[str, int] = {}
    """For each kind that is new in this phase, the row of the run where it appeared, counted
    from 1."""
    weighed: Usage = Usage()
    """Usage of scoring in this phase."""

    def measures(self) -> Measures:
        """Return the numbers for experiment trackers."""
        names = ("train", "evidence", "held_out_total", "proposals", "scorings", "rows")
        numbers = {name.replace("_", "-"): getattr(self, name) for name in names}
        return Measures(self.number, numbers | {"tokens": self.weighed.tokens})

    @property
    def held_out_total(self) -> float | None:
        """Log-likelihood of all held-out rows; None if not scored."""
        return sum(self.held_out.values()) if self.held_out else None


TheoryLine = SearchRecord | PhaseRecord
"""A line of the journal."""


class TheoryRun(ModelRun[TheoryHeader, TheoryLine]):
    """The folder of a run: held-out rows, rows of each phase, a journal and `best.txt`."""

    kind = "theorize"
    options_of = "statistician"
    header_type = TheoryHeader
    record_type = TheoryLine

    @property
    def config(self) -> TheoryConfig:
        """The configuration of this run."""
        return self.header.config

    def connected(
        self, events: Iterable[TheoryLine | RowsAdded | None]
    ) -> Iterator[TheoryLine | RowsAdded | None]:
        """Replace lines that depend on a missing node by None, and renumber the other nodes."""
        return connected_nodes(events)

    def phases(self) -> list[PhaseRecord]:
        """Return the records of the finished phases."""
        return [each for each in self.records() if isinstance(each, PhaseRecord)]

    def accepted(self) -> list[AcceptedRules]:
        """Return the accepted proposals of the run.

        Raises:
            CwmError: The strategy is not installed, or has other options now.
        """
        owner = Owner("strategy", find("strategy", self.config.method))
        options = read_options(self.config.options.get("strategy", {}), [owner])["strategy"]
        return accepted_rules(self.events(), owner.make(options))

    def rules(self) -> str:
        """Return the best rules, as stored in `best.txt`.

        Raises:
            CwmError: There are no rules yet, or the file is unreadable.
        """
        file = self.folder / BEST
        try:
            return read_text(file).strip()
        except UnreadableError as error:
            if error.is_missing:
                raise CwmError(f"{self.place} has no rules yet: continue it first") from error
            raise UnreadableError(file, error.reason, "continue the run") from error

    def trusted_model(self, options: Options, observer: Observer) -> Theory:
        """Return the best rules as a world model, with the statistician of the run."""
        config, rules = self.config, self.rules()
        asked = choose_backend("statistician", config.statistician)
        given = read_options(options, [Owner("statistician", asked.owner)])["statistician"]
        chosen = {**config.options.get("statistician", {}), **given}
        spec = find_environment(config.env)
        reads = make_statistician(asked, chosen, spec, config.env_args, observer)
        for words in reads.backend.unread(reads.view, rules):
            observer.note(words, "Warning")
        return Theory(rules, reads, self.place)

    def held_out(self) -> Dataset:
        """Return the held-out rows."""
        return self.dataset().test

    def is_over(self, phases: int) -> bool:
        """Whether the run has this many phases, or stopped in a way that more would not change."""
        result = self.result()
        return result is not None and (
            result.get("stopped") == "given_up" or len(result["phases"]) >= phases
        )

    def summary(self) -> RunSummary:
        """Return a summary: phases so far, and the held-out log-likelihood of the best rules."""
        config, records = self.config, list(self.records())
        phases = [each for each in records if isinstance(each, PhaseRecord)]
        asked = sum(isinstance(each, SearchRecord) and each.node.asked for each in records)
        count = len(phases)
        last = phases[-1] if phases else None
        total = last.held_out_total if last else None
        outcome = "" if total is None else f"held-out log-likelihood {total:.2f}"
        return RunSummary(
            self.place,
            self.kind,
            environment=config.env,
            strategy=config.method,
            answers=", ".join(dict.fromkeys((config.theorist, config.statistician))),
            seed=config.seed,
            completions=asked,
            done=f"{count} phase{'' if count == 1 else 's'}",
            result=outcome,
            created=self.header.created,
        )

    @classmethod
    def report(cls, runs: Sequence[TheoryRun]) -> RunReport:
        """Return a report: likelihoods by phase, changes of the rules, discovered changes."""
        if len(runs) > 1:
            raise CwmError("runs of `cwm theorize` cannot be merged: report them one by one")
        run, phases, about = runs[0], runs[0].phases(), runs[0].summary()
        grids = (likelihood_grid(phases), rules_grid(phases), found_grid(phases))
        return RunReport(
            title=f"{about.environment} · {about.strategy} · {about.answers}, {about.run}",
            grids=[grid for grid in grids if grid.cells],
            verdict=_verdict(run, phases),
            notes=[
                f"seed {about.seed}, {', '.join(filter(None, (about.done, about.result)))}",
                *([f"best rules: {' '.join(phases[-1].rules.split())}"] if phases else []),
            ],
            facts=about.as_json() | (run.result() or {}),
            rows=[each.model_dump(mode="json", exclude={"kind"}) for each in phases],
        )

    @classmethod
    def sections(cls, runs: Sequence[TheoryRun]) -> list[Section]:
        """Return the sections of a page: likelihoods, best rules, their changes, discoveries."""
        if len(runs) > 1:
            raise CwmError("runs of `cwm theorize` cannot be merged: report them one by one")
        phases = runs[0].phases()
        if not phases:
            return [Section("notes", "Phases", {"lines": ["No phase is over yet."]})]
        rules = {"lines": phases[-1].rules.splitlines() or ["No rules yet."]}
        found = [
            Section("panels", "Log-likelihood by phase", {"sections": likelihood_panels(phases)}),
            Section("notes", "Best rules", rules),
        ]
        try:
            drawn = rule_map(runs[0].accepted(), [each.rules for each in phases])
        except CwmError as error:
            drawn = Section("notes", MAP, {"lines": [str(error)]})
        found += [drawn] if drawn else []
        whole = likelihood_grid(phases, most=len(phases))._replace(title="all phases")
        grids = (rules_grid(phases), found_grid(phases), whole)
        return found + [
            Section("table", grid.title.capitalize(), table_of(grid))
            for grid in grids
            if grid.cells
        ]


def _verdict(run: TheoryRun, phases: Sequence[PhaseRecord]) -> str:
    """Return the held-out log-likelihood, with completions, cost and seconds."""
    result, total = run.result() or {}, phases[-1].held_out_total if phases else None
    outcome = f"{len(phases)} phase{'' if len(phases) == 1 else 's'}"
    if total is not None:
        outcome = f"Held-out log-likelihood {total:.2f} after {outcome}"
    return with_effort(
        outcome,
        completions=result.get("completions"),
        tokens=result.get("tokens"),
        cost=result.get("cost", 0.0),
        seconds=result.get("seconds"),
    )


def likelihood_panels(phases: Sequence[PhaseRecord]) -> list[list[Any]]:
    """Return charts of log-likelihood (nats) by phase: training, held-out, and by kind."""
    places = [each.number for each in phases]
    label = "nats, higher is better"
    train = ChartLine(
        "train, a row", places, [each.train / max(each.evidence, 1) for each in phases]
    )
    whole = ChartLine("", places, [each.held_out_total for each in phases], tone=0)
    kinds = dict.fromkeys(kind for each in phases for kind in each.held_out)
    by_kind = [ChartLine(k, places, [each.held_out.get(k) for each in phases]) for k in kinds]
    panels = [["Training changes, mean", "chart", LineChart("phase", label, [train]).data()]]
    if by_kind:
        panels.insert(
            0, ["Held-out changes, sum", "chart", LineChart("phase", label, [whole]).data()]
        )
    if len(by_kind) > 1:
        panels.append(
            ["Held-out changes, by kind", "chart", LineChart("phase", label, by_kind).data()]
        )
    return panels


def likelihood_grid(phases: Sequence[PhaseRecord], *, most: int = MAX_TABLE_ROWS) -> Grid:
    """Return a table of the last `most` phases, with held-out rows by kind of change."""
    kinds = list(dict.fromkeys(kind for each in phases for kind in each.held_out))
    return Grid(
        "log-likelihood by phase",
        ["phase", "proposals", "accepted", "evidence", "train", "held-out", *kinds],
        [
            [
                str(each.number),
                str(each.proposals),
                UNKNOWN if each.accepted is None else str(each.accepted),
                f"{each.evidence:,}",
                f"{each.train:.2f}",
                UNKNOWN if each.held_out_total is None else f"{each.held_out_total:.2f}",
                *(f"{each.held_out[k]:.2f}" if k in each.held_out else UNKNOWN for k in kinds),
            ]
            for each in phases[-most:]
        ],
    )


def rules_grid(phases: Sequence[PhaseRecord]) -> Grid:
    """Return a table of the rules that each phase removed (-) or added (+)."""
    cells = [
        [str(each.number), mark, rule]
        for each in phases
        for mark, rule in rule_changes(each.previous, each.rules)
        if mark
    ]
    return Grid("changes of the rules", ["phase", "change", "rule"], cells, 3)


def rule_changes(before: str, after: str) -> list[tuple[str, str]]:
    """Return removed rules ("-"), then the current rules: new ("+") or unchanged ("").

    The order of rules matters: a moved rule counts as removed and new.
    """
    old, new = ([line for line in text.splitlines() if line.strip()] for text in (before, after))
    blocks = SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
    left = {place for block in blocks for place in range(block.a, block.a + block.size)}
    stayed = {place for block in blocks for place in range(block.b, block.b + block.size)}
    went = [("-", rule) for place, rule in enumerate(old) if place not in left]
    return went + [("" if place in stayed else "+", rule) for place, rule in enumerate(new)]


def found_grid(phases: Sequence[PhaseRecord]) -> Grid:
    """Return a table of how often, and at which row first, each kind of change was found."""
    found, first = discovered(phases)
    return Grid(
        "transitions discovered",
        ["kind", "found", "first at row"],
        [[kind, f"{found[kind]:,}", f"{first[kind]:,}"] for kind in first],
    )


def discovered(phases: Sequence[PhaseRecord]) -> tuple[Counter[str], dict[str, int]]:
    """Return how often each kind of change was found, and at which row first."""
    found: Counter[str] = Counter()
    first: dict[str, int] = {}
    for each in phases:
        found.update(each.found)
        first |= {kind: row for kind, row in each.first.items() if kind not in first}
    return found, first


@dataclass(frozen=True)
class TheorizingResult(
    Result,
    shown="stopped proposals accepted held_out found completions tokens cost seconds file run",
):
    """The result of `theorize`.

    Attributes:
        run: Folder of the run.
        rules: Best rules.
        file: File of the best rules; None if there are none.
        phases: Records of all phases.
        stopped: Why the run stopped: "phases" (all done), "given_up" (the theorist has no further
            proposal) or "money" (cost limit reached).
        scorings: How often rules were scored on the evidence.
        tokens: Tokens of all proposals and all scoring.
        cost: Their cost in US dollars; None if unknown.
        held_out: Number of held-out rows by kind of change.
        topk: Top-k accuracy on the held-out rows.
    """

    run: Path
    rules: str
    file: Path | None
    phases: list[PhaseRecord]
    stopped: str
    proposals: int
    accepted: int | None
    scorings: int
    completions: int
    tokens: int
    cost: float | None
    seconds: float
    held_out: Mapping[str, int]
    topk: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return the output of `cwm theorize --json`."""
        facts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        found, first = discovered(self.phases)
        return facts | {
            "run": named(self.run),
            "file": str(self.file) if self.file else None,
            "phases": [each.model_dump(mode="json", exclude={"kind"}) for each in self.phases],
            "found": dict(found),
            "first": first,
        }
