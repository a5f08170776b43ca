"""The run of theorizing: what each phase collected, what was proposed, the best rules by then."""

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
from cwm_cli.registry import Owner, read_options
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
from cwm_theorize.parts import answers, statistician_of
from cwm_theorize.world_model import Theory

BEST = "best.txt"
"""The file with the best rules so far."""

MOST_TOLD = 12
"""Lines of a table at most: the last ones."""


class TheoryConfig(BaseModel):
    """The choices that make theorizing what it is.

    `held_out` is the digest of the rows that rules are measured by and never weighed by; the
    theorist and the statistician are backends with the model that they use, and `options` has
    those of both, of the strategy, the problem and the experimenter. A phase has so many
    `proposals`, for all particles together, and collects so many `episodes` of at most
    `max_steps`. How many phases there are is no part of it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    env: str
    env_args: dict[str, Any] = {}
    held_out: str
    method: str
    theorist: str
    statistician: str
    experimenter: str
    options: dict[str, dict[str, Any]] = {}
    proposals: int
    episodes: int
    max_steps: int
    seed: int = 0


class TheoryHeader(RunHeader[TheoryConfig]):
    """What theorizing begins with: the environment in words."""

    kind: str = "theorize"
    guide: str

    @property
    def openings(self) -> str:
        """Say that there is nothing to be protected from."""
        return "no code is generated"


class PhaseRecord(BaseModel):
    """A line of the journal: what a phase came to.

    The `rules` are the best ones at its end, and `previous` those before it.
    `train` is the log-likelihood of the `evidence` that they were weighed by, `held_out` that of
    the held-out rows by kind of change, empty if they were not weighed. `accepted` counts accepted
    `proposals`, None if the method accepts none. `scorings` counts weighed proposals and kept
    rules.
    `rows` is how many were collected up to its end, `found` how many it collected of each kind,
    `first` the row, counted from 1, at which a kind came up that had not before; `weighed` is what
    it took to weigh rules.
    """

    model_config = ConfigDict(frozen=True)

    kind: Literal["phase"] = "phase"
    number: int
    rules: str
    previous: str
    evidence: int
    train: float
    held_out: dict[str, float]
    proposals: int
    scorings: int
    accepted: int | None
    rows: int
    found: dict[str, int]
    first: dict[str, int] = {}
    weighed: Usage = Usage()

    def measures(self) -> Measures:
        """Return the numbers for trackers."""
        names = ("train", "evidence", "held_out_total", "proposals", "scorings", "rows")
        numbers = {name.replace("_", "-"): getattr(self, name) for name in names}
        return Measures(self.number, numbers | {"tokens": self.weighed.tokens})

    @property
    def held_out_total(self) -> float | None:
        """The log-likelihood of all held-out rows, None if they were not weighed."""
        return sum(self.held_out.values()) if self.held_out else None


TheoryLine = SearchRecord | PhaseRecord
"""A line of the journal."""


class TheoryRun(ModelRun[TheoryHeader, TheoryLine]):
    """The folder of theorizing: held-out rows, those of each phase, a journal, `best.txt`."""

    kind = "theorize"
    options_of = "statistician"
    header_type = TheoryHeader
    record_type = TheoryLine

    @property
    def config(self) -> TheoryConfig:
        """The choices of this run."""
        return self.header.config

    def connected(
        self, events: Iterable[TheoryLine | RowsAdded | None]
    ) -> Iterator[TheoryLine | RowsAdded | None]:
        """Replace lines that depend on a missing node by None, and renumber the other nodes."""
        return connected_nodes(events)

    def phases(self) -> list[PhaseRecord]:
        """Return what the phases came to, as far as they are over."""
        return [each for each in self.records() if isinstance(each, PhaseRecord)]

    def rules(self) -> str:
        """Return the best rules, those of `best.txt`."""
        file = self.folder / BEST
        try:
            return read_text(file).strip()
        except UnreadableError as error:
            if error.is_missing:
                raise CwmError(f"{self.place} has no rules yet: continue it first") from error
            raise UnreadableError(file, error.reason, "continue the run") from error

    def trusted_model(self, options: Options, observer: Observer) -> Theory:
        """Return the best rules, and the statistician that reads them."""
        config, rules = self.config, self.rules()
        asked = answers("statistician", config.statistician)
        given = read_options(options, [Owner("statistician", asked.owner)])["statistician"]
        chosen = {**config.options.get("statistician", {}), **given}
        spec = find_environment(config.env)
        reads = statistician_of(asked, chosen, spec, config.env_args, observer)
        for words in reads.backend.unread(reads.view, rules):
            observer.note(words, "Warning")
        return Theory(rules, reads, self.place)

    def held_out(self) -> Dataset:
        """Return the rows that rules are measured by."""
        return self.dataset().test

    def is_over(self, phases: int) -> bool:
        """Whether it came to an end that more phases would not change, or has as many."""
        result = self.result()
        return result is not None and (
            result.get("stopped") == "given_up" or len(result["phases"]) >= phases
        )

    def summary(self) -> RunSummary:
        """Say how far it is, and how well the best rules predict what is held out."""
        config, records = self.config, list(self.records())
        phases = [each for each in records if isinstance(each, PhaseRecord)]
        asked = sum(isinstance(each, SearchRecord) and each.node.asked for each in records)
        count = len(phases)
        last = phases[-1] if phases else None
        total = last.held_out_total if last else None
        told = "" if total is None else f"held-out log-likelihood {total:.2f}"
        return RunSummary(
            self.place,
            self.kind,
            environment=config.env,
            strategy=config.method,
            answers=", ".join(dict.fromkeys((config.theorist, config.statistician))),
            seed=config.seed,
            completions=asked,
            done=f"{count} phase{'' if count == 1 else 's'}",
            result=told,
            created=self.header.created,
        )

    @classmethod
    def report(cls, runs: Sequence[TheoryRun]) -> RunReport:
        """Return how theorizing went: likelihoods by phase, the rules as they changed, finds."""
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
        """Return the likelihoods by phase, the best rules, how they changed, and what was found."""
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
        grids = (rules_grid(phases), found_grid(phases), every_phase(phases))
        return found + [
            Section("table", grid.title.capitalize(), table_of(grid))
            for grid in grids
            if grid.cells
        ]


def _verdict(run: TheoryRun, phases: Sequence[PhaseRecord]) -> str:
    """Return the log-likelihood of the held-out changes, with completions, cost and seconds."""
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
    """Return charts of the log-likelihood (nats) by phase: in all, and by kind of change."""
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


def every_phase(phases: Sequence[PhaseRecord]) -> Grid:
    """Write what all phases came to."""
    return likelihood_grid(phases, most=len(phases))._replace(title="all phases")


def likelihood_grid(phases: Sequence[PhaseRecord], *, most: int = MOST_TOLD) -> Grid:
    """Write what the last phases came to, the held-out rows by kind of change."""
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
    """Write how the best rules changed: those that went (-) and came (+), by phase."""
    cells = [
        [str(each.number), mark, rule]
        for each in phases
        for mark, rule in rule_changes(each.previous, each.rules)
        if mark
    ]
    return Grid("changes of the rules", ["phase", "change", "rule"], cells, 3)


def rule_changes(before: str, after: str) -> list[tuple[str, str]]:
    """Return the rules that went (-), and those that are there now, new (+) or not ("").

    Their order matters: one that moved went and came.
    """
    old, new = ([line for line in text.splitlines() if line.strip()] for text in (before, after))
    blocks = SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
    left = {place for block in blocks for place in range(block.a, block.a + block.size)}
    stayed = {place for block in blocks for place in range(block.b, block.b + block.size)}
    went = [("-", rule) for place, rule in enumerate(old) if place not in left]
    return went + [("" if place in stayed else "+", rule) for place, rule in enumerate(new)]


def found_grid(phases: Sequence[PhaseRecord]) -> Grid:
    """Write how often each kind of change was found, and at which row first."""
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
    """What came of theorizing.

    `run` is its folder, `file` that of the best `rules`, None where none were proposed. `stopped`
    says why it ended: the `phases` were over, the theorist had nothing left to propose
    (`given_up`), or the money was spent (`money`). `scorings` counts how often rules were weighed
    over the evidence. Of the held-out rows `held_out` says how many there are of each kind of
    change, and `topk` how often the true change is among the first k candidates. `cost` is in US
    dollars, None where it is unknown; `tokens` and it are those of the proposals and of all that
    was weighed.
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
        """Return what `cwm theorize --json` prints."""
        facts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        found, first = discovered(self.phases)
        return facts | {
            "run": named(self.run),
            "file": str(self.file) if self.file else None,
            "phases": [each.model_dump(mode="json", exclude={"kind"}) for each in self.phases],
            "found": dict(found),
            "first": first,
        }
