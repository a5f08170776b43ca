"""The report of a run over coding problems: tables, notes and a JSON object."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cwm_apps.scoring import CodingSummary, Interval, PassAt, ProblemOutcome, summary
from cwm_cli.runs.report import Grid, RunReport
from cwm_cli.text import UNKNOWN, clean, money, share

SOURCE = "Dainese et al. (NeurIPS 2024, arXiv 2405.15383)"


class PublishedAccuracy(NamedTuple):
    """A published strict accuracy on the competition problems of APPS."""

    strategy: str
    model: str
    completions: int
    strict_accuracy: float


PUBLISHED = (
    PublishedAccuracy("GIF-MCTS", "Llama 3 70B", 20, 0.283),
    PublishedAccuracy("WorldCoder", "Llama 3 70B", 20, 0.251),
    PublishedAccuracy("zero-shot, chain of thought", "Llama 3 70B", 20, 0.232),
)


@dataclass(frozen=True)
class CodingReport(RunReport):
    """The report of a run, with the outcome of each problem."""

    outcomes: Sequence[ProblemOutcome] = ()

    @property
    def summary(self) -> CodingSummary:
        """The summary of all outcomes."""
        return summary(self.outcomes)

    def markdown(self) -> str:
        """Return all tables as Markdown, including the long table of problems."""
        grids = [*self.grids, problem_grid(self.outcomes)]
        return RunReport(
            f"cwm apps: {self.title}", grids, self.notes, verdict=self.verdict
        ).markdown()


def coding_report(
    title: str,
    outcomes: Sequence[ProblemOutcome],
    *,
    passes: Sequence[PassAt] = (),
    skipped: Mapping[int, str] | None = None,
    is_published: bool = False,
    remarks: Sequence[str] = (),
) -> CodingReport:
    """Report outcomes in the order of their ids.

    Args:
        title: Title of the report.
        outcomes: Outcome of each problem.
        passes: pass@k of programs from `--solutions`.
        skipped: Reason why a problem was not judged, by its id.
        is_published: Whether to add the published figures. They apply only to the competition
            problems of the APPS test split.
        remarks: Further notes.
    """
    skipped, whole = skipped or {}, summary(outcomes)
    grids = [_difficulties(whole)]
    grids += [_passes(passes)] if passes else []
    grids += [_published()] if is_published else []
    notes = [*_notes(whole, skipped, is_published=is_published), *remarks]
    rows = [one.model_dump() | {"solved": one.strict, "share": one.share} for one in outcomes]
    published = {"source": SOURCE, "figures": [one._asdict() for one in PUBLISHED]}
    facts = {
        **whole.model_dump(mode="json"),
        "pass_at": [{**one._asdict(), "interval": list(one.interval)} for one in passes],
        "rows": rows,
        "skipped": {str(number): reason for number, reason in skipped.items()},
        "notes": notes,
        "published": published if is_published else None,
    }
    return CodingReport(title, grids, notes, facts, rows, outcomes=outcomes)


def problem_grid(outcomes: Sequence[ProblemOutcome]) -> Grid:
    """Return a table with a row per problem."""
    heads = ["id", "difficulty", "result", "public", "hidden", "completions", "cost", "seconds"]
    cells = [
        [
            f"{one.id:04}",
            clean(one.difficulty, limit=14),
            "solved" if one.strict else "unsolved",
            f"{one.public_passed}/{one.public_tests}",
            f"{one.passed}/{one.tests}" if one.has_hidden else UNKNOWN,
            str(one.completions),
            money(one.cost),
            f"{one.seconds:,.1f}",
        ]
        for one in outcomes
    ]
    return Grid("problems", heads, cells, words=3)


def _notes(
    whole: CodingSummary, skipped: Mapping[int, str], *, is_published: bool
) -> Iterator[str]:
    """Yield the notes that explain the tables."""
    yield (
        "A problem is solved if its final program passes all tests, public and hidden. Strict "
        "accuracy is the share of solved problems. `test cases` is the mean share of hidden "
        "tests passed. Intervals are 95 % (Wilson), over problems; intervals of `test cases` "
        "are wider than necessary."
    )
    if whole.no_hidden:
        yield f"Judged by the only test, which the search also used: {whole.no_hidden:,} problems."
    if skipped:
        yield f"Skipped, not counted: {len(skipped):,} problems:"
    # Maximum number of skipped problems that the notes explain. `result.json` contains all.
    max_skipped_reasons = 10
    for number, reason in list(skipped.items())[:max_skipped_reasons]:
        yield f"- {number}: {clean(reason, limit=200)}"
    if (left := len(skipped) - max_skipped_reasons) > 0:
        yield f"- and {left:,} others"
    if is_published:
        yield (
            f"Published figures are from {SOURCE}: for orientation only, as its language "
            "model, choice of problems and tests differ."
        )


def _difficulties(whole: CodingSummary) -> Grid:
    """Return a table with a row per difficulty, and a row for all if there are several."""
    parts = whole.by_difficulty
    lines = {**parts, "all": whole} if len(parts) != 1 else parts
    heads = ["difficulty", "problems", "solved", "strict accuracy", "test cases"]
    cells = [
        [
            clean(name, limit=14),
            f"{part.problems:,}",
            f"{part.solved:,}",
            _with_interval(part.strict_accuracy, part.strict_accuracy_95),
            _with_interval(part.test_case_average, part.test_case_average_95),
            f"{part.completions:,}",
            money(part.cost),
        ]
        for name, part in lines.items()
    ]
    return Grid("by difficulty", [*heads, "completions", "cost"], cells)


def _passes(passes: Sequence[PassAt]) -> Grid:
    cells = [
        [f"pass@{one.k}", _with_interval(one.value, one.interval), f"{one.problems:,}"]
        for one in passes
    ]
    return Grid("pass@k", ["", "chance", "problems"], cells)


def _published() -> Grid:
    """Return a table of published figures."""
    heads = ["published", "completions", "strict accuracy"]
    cells = [
        [f"{one.strategy}, {one.model}", str(one.completions), share(one.strict_accuracy)]
        for one in PUBLISHED
    ]
    return Grid("published for APPS competition, quoted from the paper", heads, cells)


def _with_interval(value: float | None, interval: Interval | None) -> str:
    return share(value) + (f" [{share(interval.low)}, {share(interval.high)}]" if interval else "")
