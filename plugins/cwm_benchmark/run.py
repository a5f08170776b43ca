"""The run of a benchmark: its report and page, with tables beside published figures.

The published figures are quoted from Dainese et al., "Generating Code World Models with Large
Language Models Guided by Monte Carlo Tree Search" (NeurIPS 2024, arXiv 2405.15383): means over
environments with its own data, score and planners. And from Agent2World (arXiv 2512.22336),
which reports both systems with one model.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isnan
from typing import Any, NamedTuple, Self

from cwm_benchmark.folder import BenchmarkFolder
from cwm_benchmark.results import (
    GroupMean,
    TrialGroup,
    TrialRow,
    groups_by_size,
    groups_of,
    rows_of,
)
from cwm_benchmark.sizes import ERROR, size_charts, size_grids, with_error
from cwm_cli.commands.sides import Mean
from cwm_cli.errors import CwmError
from cwm_cli.runs.progress import BestSoFar
from cwm_cli.runs.report import Grid, RunReport, Section, rounded, table, table_of, with_effort
from cwm_cli.runs.searches import SearchRun
from cwm_cli.runs.storage import located
from cwm_cli.text import UNKNOWN, money, share, tokens

MEASURES = {
    f"{split}_{part}": f"{words} {what}"
    for split, words in {"test": "held-out", "train": "train"}.items()
    for part, what in {
        "skill": "skill",
        "accuracy": "accuracy",
        "normalised": "normalised accuracy",
        "exact": "exact rows",
        "paper": "paper's score",
        "floor": "baseline accuracy",
        "ceiling": "best possible accuracy",
    }.items()
} | {"R": "R", "R_random": "R against random actions"}

COUNTS: Mapping[str, Callable[[TrialGroup], str]] = {
    "environments": lambda group: str(len(group.environments)),
    "seeds": lambda group: group.seeds,
    "jobs finished": lambda group: f"{group.finished} of {group.jobs}",
    "jobs failed": lambda group: str(group.failed),
    "jobs solved": lambda group: str(group.solved),
    "completions": lambda group: f"{group.completions:,}",
    "tokens": lambda group: tokens(group.tokens),
    "cost": lambda group: money(group.cost),
    "seconds": lambda group: f"{group.seconds:,.1f}",
}

Columns = dict[str, Callable[[TrialRow], str]]

SOURCE = "Dainese et al. (NeurIPS 2024, arXiv 2405.15383)"
LATER = "Agent2World (arXiv 2512.22336) reports an overall R of 0.48, and of 0.35 for GIF-MCTS."


class PublishedGroup(NamedTuple):
    """Published figures for a kind of environments; R may exceed 1 or be negative."""

    group: str
    model: str
    completions: int
    strategy: str
    accuracy: float
    R: float


_LLAMA, _GPT = ("Llama 3 70B", 50), ("GPT-4 Turbo", 10)
PUBLISHED = (
    PublishedGroup("discrete", *_LLAMA, "GIF-MCTS", 0.84, 0.76),
    PublishedGroup("discrete", *_LLAMA, "WorldCoder", 0.79, 0.60),
    PublishedGroup("discrete", *_GPT, "GIF-MCTS", 0.91, 0.81),
    PublishedGroup("discrete", *_GPT, "WorldCoder", 0.87, 0.79),
    PublishedGroup("continuous", *_LLAMA, "GIF-MCTS", 0.35, 0.22),
    PublishedGroup("continuous", *_LLAMA, "WorldCoder", 0.32, 0.19),
    PublishedGroup("continuous", *_GPT, "GIF-MCTS", 0.40, 0.26),
    PublishedGroup("continuous", *_GPT, "WorldCoder", 0.24, 0.20),
    PublishedGroup("text", *_GPT, "GIF-MCTS", 0.71, 0.31),
    PublishedGroup("text", "GPT-4 Turbo", 50, "GIF-MCTS", 1.00, 1.00),
    PublishedGroup("text", *_LLAMA, "GIF-MCTS", 0.58, -0.11),
)


class BenchmarkRun(BenchmarkFolder):
    """The run kind `benchmark`. Its report and page are available at any time."""

    @classmethod
    def report(cls, runs: Sequence[Self]) -> RunReport:
        """Return the tables of a benchmark in its current state."""
        if len(runs) > 1:
            return super().report(runs)
        [run] = runs
        rows = rows_of(run)
        groups, header = groups_of(rows), run.header.model_dump(mode="json")
        sizes = groups_by_size(rows)
        answers = ", ".join(filter(None, run.config.models)) or run.config.backend
        most = f"{run.header.terms.budget} completions at most"
        notes = list(_notes(run, rows, groups))
        lines = [row.model_dump(mode="json") for row in rows]
        caveat = run.header.caveat
        return RunReport(
            title=f"cwm benchmark: {answers}, {most}, {run.place}",
            grids=[*group_grids(groups), *size_grids(sizes), *job_grids(rows)],
            verdict=with_effort(
                f"{sum(bool(row.solved) for row in rows):,} of {len(rows):,} jobs solved",
                completions=sum(row.completions or 0 for row in rows),
                tokens=sum(row.tokens or 0 for row in rows),
                cost=_total_cost(rows),
                seconds=sum(row.seconds or 0.0 for row in rows),
            ),
            notes=notes,
            facts={
                "run": str(run.folder),
                "rows": lines,
                "groups": [group.model_dump(mode="json") for group in groups],
                "by_size": [group.model_dump(mode="json") for group in sizes],
                "simulated": bool(caveat),
                "notes": notes,
                "published": {"source": SOURCE, "figures": [one._asdict() for one in PUBLISHED]},
                "configuration": header["config"],
                "terms": header["terms"],
            },
            rows=[line | {"note": caveat} for line in lines] if caveat else lines,
        )

    @classmethod
    def sections(cls, runs: Sequence[Self]) -> list[Section]:
        """Return the parts of the page: jobs with their curves, groups, and notes."""
        if len(runs) > 1:
            return super().sections(runs)
        [run] = runs
        rows = rows_of(run)
        groups = groups_of(rows)
        found = [
            Section("jobs", "All jobs", jobs_data(rows), "The filters also select the curves."),
            *size_charts(groups_by_size(rows)),
            *(
                Section("table", each.title.capitalize(), table_of(each))
                for each in group_grids(groups)
            ),
        ]
        if any(row.play for row in rows):
            *_, played = job_grids(rows)
            found.append(Section("table", played.title.capitalize(), table_of(played)))
        return [*found, Section("notes", "Notes", {"lines": [*_notes(run, rows, groups)]})]


def _total_cost(rows: Sequence[TrialRow]) -> float | None:
    """Return the cost of all jobs in US dollars, None if the cost of a finished job is unknown."""
    if any(row.cost is None and row.state == "finished" for row in rows):
        return None
    return sum(row.cost or 0.0 for row in rows)


def jobs_data(rows: Sequence[TrialRow]) -> dict[str, Any]:
    """Return all jobs as a table, and the curve of the best score of each."""
    # the columns in front of the table of all jobs; rows are chosen by their values
    job_heads = ("environment", "strategy", "model", "train rows", "seed", "state")
    heads = [
        *job_heads,
        "completions",
        "train",
        "held-out",
        "baseline",
        "R",
        "tokens",
        "cost",
        "seconds",
    ]
    lines = [
        [
            *(str(getattr(row, name.replace(" ", "_")) or "") for name in job_heads[:4]),
            str(row.seed),
            "solved" if row.solved else "stopped" if row.settled else row.state,
            row.completions,
            row.train.value if row.train else None,
            row.test.value if row.test else None,
            row.test.least if row.test else None,
            row.play.R if row.play else None,
            row.tokens,
            row.cost if row.cost is not None or row.state != "finished" else "unknown",
            row.seconds,
        ]
        for row in rows
    ]
    empty = dict.fromkeys(heads, (None, "")) | dict.fromkeys(("tokens", "cost"), (None, "", 0))
    words, cells = len(job_heads), table(heads, lines)["rows"]
    kept = [
        place
        for place in range(len(heads))
        if place in (0, 1) or any(line[place] not in empty[heads[place]] for line in cells)
    ]
    cells = [[line[place] for place in kept] for line in cells]
    front = sum(place < words for place in kept)
    several = [n for n in range(front) if len({line[n] for line in cells}) > 1]
    named = {heads[place]: n for n, place in enumerate(kept)}
    common = ("strategy", "model", "train rows", "environment")
    groups = [named[name] for name in common if name in named]
    return {
        "heads": [heads[place] for place in kept],
        "rows": cells,
        "words": front,
        "filters": several,
        "groups": groups,
        "x": "completions",
        "y": "best score so far",
        "y_range": [0.0, 1.0],
        "curves": [_curve(row) for row in rows],
    }


def _curve(row: TrialRow) -> dict[str, Any]:
    """Return the best score of a job after each completion; empty where it has none."""
    try:
        nodes = list(SearchRun.load(located(row.run)).nodes())
    except CwmError:
        nodes = []
    best = BestSoFar.of(nodes)
    scores = [rounded(score) for score in best.scores]
    return {"x": best.completions, "y": scores, "over": row.state == "finished"}


def _notes(
    run: BenchmarkFolder, rows: Sequence[TrialRow], groups: Sequence[TrialGroup]
) -> Iterator[str]:
    """Yield the notes that explain the tables."""
    if run.header.caveat:
        yield run.header.caveat
    if unasked := sum(row.state == "finished" and not row.completions for row in rows):
        yield (
            f"The model was not asked in {unasked} of {len(rows)} jobs: the program that --start "
            "names had already solved them."
        )
    if broken := [row for row in rows if row.failure]:
        yield (
            f"No program runs in {len(broken)} of {len(rows)} jobs, which score 0 "
            f"({broken[0].job}: {broken[0].failure}): raise --budget"
            f"{run.header.remedy and f', or {run.header.remedy}'}."
        )
    yield (
        f"{ERROR} is a standard error: for a group over the means of its environments (over "
        "seeds if there is one environment), for a job over its episodes. A program that fails "
        "scores 0 and is included in the means. `exact`: share of held-out transitions that are "
        "correct in every part. `baseline`: accuracy of predicting no change, the most common "
        "reward and no end. `paper`: published score of the train transitions. `best possible`: "
        "accuracy of the true environment on the held-out transitions, set to each observation; "
        "`with memory`: the same, if it continues from its own state along an episode."
    )
    if any(row.settled for row in rows):
        yield (
            "`stopped`: the best possible score is unknown, and the last completions (option "
            "`patience`) brought no improvement."
        )
    if run.config.rows:
        yield (
            "`train rows`: each job gets the first rows of one recording, and all its held-out "
            "rows. The last episode may be cut."
        )
    if longest := run.config.max_steps:
        yield f"Episodes, including the oracle's, end after {longest} steps."
    if run.config.shift is not None:
        yield (
            f"Environments have other constants (--shift {run.config.shift}): published figures "
            "and recalled programs are for the standard constants."
        )
    if run.config.hide:
        yield f"Hidden in every environment: {', '.join(run.config.hide)}."
    if run.config.noise:
        noisy = [f"{name} ({deviation:g})" for name, deviation in run.config.noise.items()]
        yield f"Noise in every environment, with its standard deviation: {', '.join(noisy)}."
    yield from _play_notes(rows)
    yield from _gaps(rows)
    if any(published.group == group.group for group in groups for published in PUBLISHED):
        yield (
            f"Quoted figures are from {SOURCE}, with its own data, planners and language "
            f"models, and the published score as accuracy. {LATER}"
        )


def _play_notes(rows: Sequence[TrialRow]) -> Iterator[str]:
    """Explain the baseline of R and the best known returns."""
    played = {row.environment: row.play for row in rows if row.play}
    if not played:
        return
    yield (
        "R = (model - baseline) / (oracle - baseline). The baseline is random actions or doing "
        "nothing, the one with the higher return. `do nothing`: zero for continuous actions, else "
        "the best constant action. Published R compares with random actions, as does "
        f"`{MEASURES['R_random']}`."
    )
    if known := {env: play.best_known for env, play in played.items() if play.best_known}:
        yield (
            "`best known`: the optimum, or the best return of a trained agent that we found, in "
            "whole episodes. If the oracle is far below it, R compares with a weak oracle. If it "
            "is above an optimum, it knows a part of the state that observations hide:"
        )
        yield from (f"- {env}: {each.value:g} ({each.source})" for env, each in known.items())
    if left_out := [env for env in played if env not in known]:
        yield (
            f"No best known return for {', '.join(left_out)}: none was published, or the episodes "
            "are shorter or changed here."
        )


def _gaps(rows: Sequence[TrialRow]) -> Iterator[str]:
    """Yield which jobs the means leave out, and why."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row.state == "failed":
            reasons[row.reason or "unknown"].append(row.job)
    if failed := sum(map(len, reasons.values())):
        yield f"{failed} of {len(rows)} jobs failed and are left out of the means:"
    for reason, names in reasons.items():
        rest = len(names) - 3
        some = ", ".join(names[:3]) + (f" and {rest} others" if rest > 0 else "")
        yield f"- {some}: {reason}"
    if unfinished := sum(row.state == "unfinished" for row in rows):
        yield f"{unfinished} of {len(rows)} jobs are not finished and are left out of the means."
    for row in rows:
        why = row.reason if row.play is None else row.play.reason
        if row.state == "finished" and why:
            yield f"- {row.job} has no R: {why}"
        if row.play and row.play.unverified:
            words = f"{row.play.unverified} of {row.play.episodes} episodes are unverified"
            yield f"- {row.job}: {words} and count in no mean"
        if row.play and row.play.refuted:
            words = "its predictions failed in most steps of play, so R says nothing about it"
            yield f"- {row.job} is refuted: {words}"


def group_grids(groups: Sequence[TrialGroup]) -> Iterator[Grid]:
    """Yield a table for each kind of environments, and the published figures for it."""
    # measures that a benchmark may lack
    optional = ("test_skill", "train_skill", "test_ceiling", "train_ceiling", "R", "R_random")
    for kind in dict.fromkeys(group.group for group in groups):
        some = [group for group in groups if group.group == kind]
        models, sizes = ({getattr(g, name) for g in some} for name in ("model", "train_rows"))
        heads = [
            g.strategy
            + (f" {g.model}" if len(models) > 1 else "")
            + (f", {g.train_rows:,} rows" if len(sizes) > 1 else "")
            for g in some
        ]
        cells = [
            [words, *(_estimate_words(group.means[name], group) for group in some)]
            for name, words in MEASURES.items()
            if name not in optional or any(group.means[name] for group in some)
        ]
        cells += [[words, *map(write, some)] for words, write in COUNTS.items()]
        yield Grid(f"{kind} environments", ["", *heads], cells)
        published = [
            [f"{f.strategy}, {f.model}", str(f.completions), share(f.accuracy, 2), share(f.R, 2)]
            for f in PUBLISHED
            if f.group == kind
        ]
        if published:
            title = f"published for {'RTFM' if kind == 'text' else kind}, quoted from the paper"
            yield Grid(title, ["quoted", "completions", "paper's accuracy", "R"], published)


def job_grids(rows: Sequence[TrialRow]) -> Iterator[Grid]:
    """Yield a table with the scores of every job, and one of played episodes, if any."""
    scores: Columns = {
        "completions": progress_words,
        "train": lambda row: share(row.train.accuracy if row.train else None),
        "held-out": lambda row: share(row.test.accuracy if row.test else None),
        "baseline": lambda row: share(row.test.floor if row.test else None),
        "exact": lambda row: share(row.test.exact if row.test else None),
        "paper": lambda row: share(row.train.paper if row.train else None),
    }
    if any(row.test and row.test.skill is not None for row in rows):
        scores["skill"] = lambda row: share(row.test.skill if row.test else None)
    if any(row.ceiling for row in rows):
        scores["best possible"] = lambda row: _held_out_ceiling(row, "test")
        scores["with memory"] = lambda row: _held_out_ceiling(row, "test_with_memory")
    scores["seconds"] = lambda row: UNKNOWN if row.seconds is None else f"{row.seconds:.0f}"
    if any(row.original for row in rows):
        scores["original"] = lambda row: share(row.original.accuracy if row.original else None)
    yield _jobs("jobs", rows, scores)
    if played := [row for row in rows if row.play]:
        sides: Columns = {
            "episodes": lambda row: f"{row.play.episodes:,}" if row.play else UNKNOWN,
            "return": lambda row: _mean(row.play.returns if row.play else None),
            "random": lambda row: _mean(row.play.random if row.play else None),
            "do nothing": lambda row: _mean(row.play.idle if row.play else None),
            "oracle": lambda row: _mean(row.play.oracle if row.play else None),
            "best known": _best_known,
            "R": lambda row: (
                UNKNOWN
                if row.play is None or row.play.R is None
                else with_error(row.play.R, row.play.R_stderr)
            ),
        }
        yield _jobs("episodes played", played, sides)


def _jobs(title: str, rows: Sequence[TrialRow], columns: Columns) -> Grid:
    """Return a table with a row per job, without columns that are equal for all jobs."""
    names = ["environment"]
    common = ("strategy", "model", "train_rows", "seed")
    names += [n for n in common if len({getattr(r, n) for r in rows}) > 1]
    cells = [
        [*(str(getattr(row, name)) for name in names), *(write(row) for write in columns.values())]
        for row in rows
    ]
    heads = [name.replace("_", " ") for name in names]
    return Grid(title, [*heads, *columns], cells, len(names))


def progress_words(row: TrialRow) -> str:
    """Return the completions and the state of a job as text."""
    if row.state == "failed":
        return "failed"
    if row.state == "unfinished":
        return f"{row.completions} of {row.budget} yet"
    if row.solved:
        return f"{row.completions} solved"
    return f"{row.completions} stopped" if row.settled else str(row.completions)


def _estimate_words(estimate: GroupMean | None, group: TrialGroup) -> str:
    """Return a mean with its error, and the number of jobs if some are left out."""
    if estimate is None:
        return UNKNOWN
    left_out = "" if estimate.values == group.finished else f" ({estimate.values} jobs)"
    return with_error(estimate.mean, estimate.stderr) + left_out


def _held_out_ceiling(row: TrialRow, kind: str) -> str:
    """Return the held-out accuracy of the true environment as text."""
    score = (row.ceiling or {}).get(kind)
    return share(score.accuracy if score else None)


def _best_known(row: TrialRow) -> str:
    """Return the best known return of the environment as text, empty if none compares."""
    known = row.play.best_known if row.play else None
    return "" if known is None else f"{known.value:.5g}"


def _mean(mean: Mean | None) -> str:
    """Return a mean over episodes with its error as text."""
    if mean is None or isnan(mean.mean):
        return UNKNOWN
    error = "" if mean.stderr is None else f" {ERROR} {mean.stderr:.3g}"
    return f"{mean.mean:.4g}{error}"
