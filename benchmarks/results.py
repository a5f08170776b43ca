"""Results of claims: the ratio and its spread, as a line, a table row or JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any, Self

from benchmarks.claims import Claim
from benchmarks.machine import machine

MIN_ROUNDS_FOR_PERCENTILES = 20
"""From this number of rounds on, the spread is from the 5th to the 95th percentile; else it is
from the lowest to the highest ratio."""

HEAD = (
    "| claim | ratio | spread | goal | rounds | figures | counts | remarks |\n" + "|---" * 8 + "|"
)


@dataclass(frozen=True)
class Result:
    """The median ratio of a claim, the spread of the ratios, figures and counts."""

    name: str
    says: str
    goal: float | None
    is_cost: bool
    ratio: float
    spread: tuple[float, float]
    rounds: int
    figures: Mapping[str, float]
    counts: Mapping[str, int]
    machine: str

    @classmethod
    def of(cls, claim: Claim, *, quick: bool) -> Self:
        """Measure a claim."""
        ratios, figures, counts = claim.measure(quick)
        about = claim.name, claim.says, claim.goal, claim.is_cost
        found = median(ratios), _spread(sorted(ratios)), len(ratios)
        plain = {name: float(value) for name, value in figures.items()}
        return cls(*about, *found, plain, {name: int(counts[name]) for name in counts}, machine())

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dictionary."""
        return asdict(self)

    @property
    def misses(self) -> bool:
        """Whether the ratio misses the goal, if there is one."""
        if self.goal is None:
            return False
        return self.ratio > self.goal if self.is_cost else self.ratio < self.goal

    def line(self) -> str:
        """Return a line for a terminal."""
        low, high = self.spread
        goal = f"; goal {self._goal}" if self._goal else ""
        parts = "; ".join(
            _format_values(values) for values in (self.figures, self.counts) if values
        )
        return f"{self.name:<28} {self.ratio:8.3g}x ({low:.3g} to {high:.3g}{goal})  {parts}"

    def row(self, remarks: str) -> str:
        """Return a row of a Markdown table."""
        low, high = self.spread
        spread, ratio = f"{low:.3g} to {high:.3g}", f"{self.ratio:.3g}"
        about = f"`{self.name}`: {self.says}", ratio, spread, self._goal, str(self.rounds)
        values = _format_values(self.figures), _format_values(self.counts)
        return f"| {' | '.join((*about, *values, remarks))} |"

    @property
    def _goal(self) -> str:
        if self.goal is None:
            return ""
        missed = ", missed" if self.misses else ""
        return f"at {'most' if self.is_cost else 'least'} {self.goal:g}{missed}"


def _spread(ratios: list[float]) -> tuple[float, float]:
    """Return the spread of sorted ratios."""
    if len(ratios) < MIN_ROUNDS_FOR_PERCENTILES:
        return ratios[0], ratios[-1]
    cuts = quantiles(ratios, n=20, method="inclusive")
    return cuts[0], cuts[-1]


def _format_values(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {_short(value)}" for name, value in values.items())


def _short(value: float) -> str:
    """Format whole and large numbers without decimals, others with three digits."""
    return f"{value:,.0f}" if isinstance(value, int) or value >= 1e3 else f"{value:.3g}"
