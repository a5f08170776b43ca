"""The report and the page of a learning run, from its journal lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cwm_cli.runs.report import (
    ChartLine,
    Grid,
    LineChart,
    Section,
    cumulative,
    table,
    with_effort,
)
from cwm_learn.actors.base import PLAY_AIMS
from cwm_learn.certificate import MEAN_EPISODES, Certificate, EpisodeRecord
from cwm_learn.questions import RecordedQuestion
from cwm_learn.records import LearnRecord, ProgramRecord


class LearnReport:
    """The report and the page of a run, from its records and its result.

    A certificate of short play is in the result only, since a continued run may replace it.
    """

    def __init__(self, records: Sequence[LearnRecord], result: Mapping[str, Any]) -> None:
        self._result = result
        self.episodes = [each for each in records if isinstance(each, EpisodeRecord)]
        # A continued run replaces the program that was written when learning stopped.
        written = {each.number: each for each in records if isinstance(each, ProgramRecord)}
        self.programs = list(written.values())
        certificates = [each for each in records if isinstance(each, Certificate)]
        self.certificate = certificates[-1] if certificates else None
        if self.certificate is None and result.get("certificate"):
            self.certificate = Certificate.model_validate(result["certificate"])
        asked = {each.key: each for each in records if isinstance(each, RecordedQuestion)}
        self.questions = list(asked.values())

    def verdict(self) -> str:
        """Return whether the play is certified and its mean return, with the steps and the cost."""
        outcome = "Certified" if self.certificate else "Not certified"
        played = [each.returned for each in self.episodes if each.is_play][-MEAN_EPISODES:]
        if played:
            outcome += f": mean return {np.mean(played):.5g}, last {len(played)} episodes of play"
        return with_effort(
            outcome,
            steps=self.episodes[-1].steps if self.episodes else None,
            completions=self._result.get("completions"),
            cost=self._result.get("cost", 0.0),
            seconds=self._result.get("seconds"),
        )

    def sections(self) -> Iterator[Section]:
        """Yield the sections of the page."""
        if self.episodes:
            about = "Without an episode that the end of the budget cut off."
            yield Section("chart", "Return of each episode", _return_curve(self.episodes), about)
        lines = ["Not certified: predictions did not agree with the environment for long enough."]
        if last := self.certificate:
            lines = [str(last), *(f"Not covered, never tried: {each}" for each in last.untried)]
        yield Section("notes", "Certificate", {"lines": lines})
        if self.episodes:
            panels = list(_step_panels(self.episodes))
            yield Section("panels", "Steps and mismatches", {"sections": panels})
        if self.programs:
            names = ("origin", "steps", "rows", "lines", "unexplained", "wrong", "seconds")
            rows = ([str(p.number), *(getattr(p, n) for n in names)] for p in self.programs)
            heads = ["program", "by", *names[1:]]
            yield Section("table", "Programs over time", table(heads, rows, words=2, filters=(1,)))
        if len(self.programs) > 1:
            yield Section("panels", "", {"sections": list(_program_panels(self.programs))})
        if self.questions:
            asked = sorted(self.questions, key=lambda each: (each.state != "open", -each.weight))
            fields = ("state", "text", "answer", "source", "asked", "weight")
            heads = ["state", "question", "answer", "asked by", "asked at step", "weight"]
            count = sum(each.state == "open" for each in asked)
            about = f"{count} open, {len(asked) - count} answered; sorted by their weight in plans."
            cells = ([getattr(each, name) for name in fields] for each in asked)
            yield Section("table", "Questions", table(heads, cells, words=4, filters=(0, 3)), about)

    def grids(self) -> Iterator[Grid]:
        """Yield the tables of a report: the last episodes, programs and questions."""
        heads = ["episode", "aim", "steps", "return", "promised", "mismatches"]
        cells = []
        max_grid_rows = 12  # rows of a table in a report; the last rows are shown
        for e in self.episodes[-max_grid_rows:]:
            promised = "" if e.promised is None else f"{e.promised:.5g}"
            numbers = f"{e.steps:,}", f"{e.returned:.5g}", promised, str(e.mismatched)
            cells.append([str(e.number), e.aim, *numbers])
        yield Grid("last episodes", heads, cells, 2)
        heads, cells = ["program", "by", "steps", "rows", "lines", "unexplained"], []
        for p in self.programs[-max_grid_rows:]:
            numbers = f"{p.steps:,}", f"{p.rows:,}", str(p.lines), str(p.unexplained)
            cells.append([str(p.number), p.origin, *numbers])
        yield Grid("last programs", heads, cells, 2)
        cells = [[q.text, q.answer or "open"] for q in self.questions[-max_grid_rows:]]
        yield Grid("questions", ["question", "answer"], cells, 2)


def _return_curve(episodes: Sequence[EpisodeRecord]) -> dict[str, Any]:
    """Return the chart of the returns: episodes of play, and episodes of exploration."""
    whole = [each for each in episodes if not each.is_cut]
    kinds = {
        "play": ([each for each in whole if each.aim in PLAY_AIMS], 0),
        "exploration": ([each for each in whole if each.aim not in PLAY_AIMS], 1),
    }
    lines = [
        ChartLine(
            name,
            [each.steps for each in some],
            [each.returned for each in some],
            loose=tone == 1,
            tone=tone,
            tips=[f"episode {each.number}: {each.aim}, {each.length} steps" for each in some],
        )
        for name, (some, tone) in kinds.items()
        if some
    ]
    return LineChart("steps of the environment", "return", lines).data()


def _step_panels(episodes: Sequence[EpisodeRecord]) -> Iterator[list[Any]]:
    """Yield charts of the steps by aim and of the mismatches, cumulative over the steps."""
    ends = [0, *(each.steps for each in episodes)]
    aims = dict.fromkeys(aim for each in episodes for aim in each.aims)
    lines = [
        ChartLine(aim, ends, cumulative(each.aims.get(aim, 0) for each in episodes)) for aim in aims
    ]
    yield ["Steps by aim", "chart", LineChart("steps", "cumulative steps", lines).data()]
    line = ChartLine("", ends, cumulative(each.mismatched for each in episodes), tone="bad")
    chart = LineChart("steps", "cumulative mismatches", [line], staircase=True)
    yield ["Wrong predictions", "chart", chart.data()]


def _program_panels(programs: Sequence[ProgramRecord]) -> Iterator[list[Any]]:
    """Yield charts of the length of the programs and of the rows they do not explain."""
    measures = {"lines": "lines of the program", "unexplained": "unexplained rows"}
    for name, words in measures.items():
        line = ChartLine.of("", [(each.steps, getattr(each, name)) for each in programs])
        yield ["", "chart", LineChart("steps", words, [line], staircase=True).data()]
