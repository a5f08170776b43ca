"""Means over the jobs of a kind of environments, a strategy and a model."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from cwm_cli.agents.contests import mean_of
from cwm_cli.bench.rows import Row
from cwm_cli.evaluation import Score

Number = TypeVar("Number", int, float)

ALL = "all"
ORDER = ("discrete", "continuous", "text", ALL)

PARTS = ("accuracy", "normalised", "exact", "paper", "floor")
SPLITS = ("train", "test")


class Estimate(BaseModel):
    """A mean over environments, of the mean of each over its seeds.

    The standard error is over environments, or over the seeds of a single one.
    """

    model_config = ConfigDict(frozen=True)

    mean: float
    stderr: float | None
    environments: int
    values: int

    @classmethod
    def of(cls, values: Mapping[str, Sequence[float]]) -> "Estimate | None":
        """Estimate from the values of each environment."""
        means = [mean_of(some).mean for some in values.values() if some]
        if not means:
            return None
        every = [value for some in values.values() for value in some]
        mean, error = mean_of(means if len(means) > 1 else every)
        return cls(mean=mean, stderr=error, environments=len(means), values=len(every))


class Group(BaseModel):
    """What jobs came to. Jobs without a score are counted, and left out of the means.

    `means` are by split and part, such as `test_accuracy`, and R; what is
    null in a row is left out of its mean. Tokens and costs are sums, null when
    one is unknown.
    """

    model_config = ConfigDict(frozen=True)

    group: str
    strategy: str
    model: str
    over: str
    seeds: str
    jobs: int
    finished: int
    failed: int
    solved: int
    environments: list[str]
    means: dict[str, Estimate | None]
    completions: int
    tokens: int | None
    cost: float | None
    seconds: float


def groups_of(rows: Sequence[Row]) -> list[Group]:
    """Gather rows; where there are several kinds of environments, also all together."""
    gathered: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    kinds = {row.group for row in rows if row.group}
    for row in rows:
        for kind in [row.group, *([ALL] if len(kinds) > 1 else [])]:
            if kind:
                gathered[kind, row.strategy, row.model].append(row)
    keys = sorted(gathered, key=lambda key: ORDER.index(key[0]))
    return [_group(*key, gathered[key]) for key in keys]


def _group(kind: str, strategy: str, model: str, rows: Sequence[Row]) -> Group:
    """Put the jobs of a group together."""
    done = [row for row in rows if row.state == "finished"]
    means = {
        f"{split}_{part}": _mean(done, _part(split, part)) for split in SPLITS for part in PARTS
    }
    for split in SPLITS:
        means[f"{split}_ceiling"] = _mean(done, _ceiling(split))
    means["R"] = _mean(done, lambda row: row.play.R if row.play else None)
    environments = list(dict.fromkeys(row.environment for row in done))
    seeds = _seeds(done)
    return Group(
        group=kind,
        strategy=strategy,
        model=model,
        over=_over(len(environments), seeds),
        seeds=seeds,
        jobs=len(rows),
        finished=len(done),
        failed=sum(row.state == "failed" for row in rows),
        solved=sum(bool(row.solved) for row in done),
        environments=environments,
        means=means,
        completions=sum(row.completions for row in done),
        tokens=_sum([row.tokens for row in done]),
        cost=_sum([row.cost for row in done]),
        seconds=sum(row.seconds or 0.0 for row in done),
    )


def _mean(rows: Iterable[Row], value: Callable[[Row], float | None]) -> Estimate | None:
    """Estimate the mean of something, where it is known."""
    values: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        known = value(row)
        if known is not None:
            values[row.environment].append(known)
    return Estimate.of(values)


def _part(split: str, part: str) -> Callable[[Row], float | None]:
    """Return what reads a part of a score off a row."""

    def read(row: Row) -> float | None:
        score: Score | None = getattr(row, split)
        return None if score is None else getattr(score, part)

    return read


def _ceiling(split: str) -> Callable[[Row], float | None]:
    """Return what reads the accuracy of the true environment off a row."""

    def read(row: Row) -> float | None:
        score = (row.ceiling or {}).get(split)
        return None if score is None else score.accuracy

    return read


def _seeds(rows: Iterable[Row]) -> str:
    """Say how many seeds there are of each environment."""
    seeds: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        seeds[row.environment].add(row.seed)
    counts = sorted({len(some) for some in seeds.values()}) or [0]
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _over(environments: int, seeds: str) -> str:
    """Say what means are taken over."""
    plurals = ["" if count == "1" else "s" for count in (str(environments), seeds)]
    return f"{environments} environment{plurals[0]} x {seeds} seed{plurals[1]}"


def _sum(values: Sequence[Number | None]) -> Number | None:
    """Add numbers up, None when one is unknown."""
    known = [value for value in values if value is not None]
    total: Number = sum(known)
    return total if len(known) == len(values) else None
