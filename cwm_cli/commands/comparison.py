"""Results of `cwm plan`: returns with the model, with the oracle and with random actions."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, reduce
from math import isnan, nan
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from cwm_cli.commands.episodes import Episode, PlanningCost
from cwm_cli.evaluation.mismatches import Mismatches
from cwm_cli.result import Result
from cwm_cli.runs.places import named
from cwm_cli.sandbox.failures import Failure
from cwm_cli.worlds.model import PlannedWith

SideName = Literal["model", "oracle", "random"]
"""The sides: plans in a model, plans in the true environment, and random actions."""


class Mean(NamedTuple):
    """A mean (NaN without values) and its standard error (None for fewer than two values)."""

    mean: float
    stderr: float | None

    def as_json(self) -> dict[str, float | None]:
        """Return the mean and the standard error as JSON data."""
        return {"mean": None if isnan(self.mean) else self.mean, "stderr": self.stderr}


def mean_of(values: Sequence[float]) -> Mean:
    """Return the mean of values and its standard error; the mean of no values is NaN."""
    if not values:
        return Mean(nan, None)
    mean = float(np.mean(values))
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Mean(mean, None if spread is None else spread / len(values) ** 0.5)


@dataclass(frozen=True)
class Side:
    """The episodes of one side, in order, and its planner report."""

    episodes: Sequence[Episode]
    report: PlannedWith | None = None

    @property
    def returns(self) -> list[float]:
        """The return of every episode."""
        return [episode.returned for episode in self.episodes]

    @property
    def lengths(self) -> list[int]:
        """The length of every episode."""
        return [episode.length for episode in self.episodes]

    @property
    def unverified(self) -> list[int]:
        """The numbers of the episodes whose decisions could not be confirmed in time."""
        return [episode.number for episode in self.episodes if not episode.verified]

    @property
    def verified(self) -> list[Episode]:
        """The episodes that count in means: their confirmation did not run out of time."""
        return [episode for episode in self.episodes if episode.verified]

    @property
    def mean(self) -> Mean:
        """The mean return of the verified episodes."""
        return mean_of([episode.returned for episode in self.verified])

    def without(self, numbers: Collection[int]) -> "Side":
        """Return the side without the episodes of the given numbers."""
        return Side([each for each in self.episodes if each.number not in numbers], self.report)

    @cached_property
    def cost(self) -> PlanningCost:
        """The total planning cost of all episodes."""
        costs: Iterable[PlanningCost] = (episode.cost for episode in self.episodes)
        return reduce(PlanningCost.plus, costs, PlanningCost())

    @property
    def mismatches(self) -> Mismatches | None:
        """The wrong predictions of all episodes, None if nothing was compared."""
        found = [each.mismatches for each in self.episodes if each.mismatches]
        return reduce(Mismatches.plus, found) if found else None

    @property
    def speeds(self) -> dict[str, float | None]:
        """Decisions and model steps per second of planning by one worker."""
        cost = self.cost
        return {
            "decisions_per_second": cost.decisions / cost.seconds if cost.seconds else None,
            "model_steps_per_second": cost.model_steps / cost.seconds if cost.seconds else None,
        }

    @property
    def failure(self) -> Failure | None:
        """The first failure of the program in the first episode that has one."""
        return next((episode.failure for episode in self.episodes if episode.failure), None)


def relative_return(model: Side, oracle: Side, random: Side) -> float | None:
    """Return R = (model - random) / (oracle - random), computed from mean returns.

    Episodes of the model that are not verified are left out on all sides.

    Returns:
        R, or None without verified episodes, or if the oracle is not clearly better than random
        actions. It is if its mean gain exceeds the standard error of the gain, where the gain is
        the difference of two episodes with the same initial state.
    """
    if unverified := model.unverified:
        model, oracle, random = (each.without(unverified) for each in (model, oracle, random))
    if not model.episodes:
        return None
    pairs = zip(oracle.returns, random.returns, strict=True)
    gain = mean_of([planned - chance for planned, chance in pairs])
    if gain.mean <= (gain.stderr or 0.0):
        return None
    return (model.mean.mean - random.mean.mean) / gain.mean


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
    shown="mean stderr R random oracle returns lengths mismatches failure stopped planner",
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
    """

    sides: Mapping[SideName, Side]
    asked: SideName
    journal: Path
    film: Path | None = None
    doubt: str = ""
    stopped: str = ""
    learn_from: LearnFrom | None = None

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
    def oracle(self) -> Mean | None:
        """The mean return of the oracle, None if it did not play."""
        return self.sides["oracle"].mean if "oracle" in self.sides else None

    @property
    def R(self) -> float | None:
        """The relative return: 1 for the oracle, 0 for random actions."""
        if "oracle" not in self.sides or self.asked == "oracle" or self.stopped:
            return None
        return relative_return(self.side, self.sides["oracle"], self.sides["random"])

    @property
    def mismatches(self) -> Mismatches | None:
        """Wrong predictions in the played episodes, None without a model."""
        return self.side.mismatches

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
        oracle = self.sides.get("oracle")
        return {
            "returns": side.returns,
            "lengths": side.lengths,
            **side.mean.as_json(),
            "random": self.random.as_json(),
            "oracle": oracle.mean.as_json() if oracle else None,
            "R": self.R,
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
            "stopped": self.stopped or None,
            "journal": str(self.journal),
            "render": None if self.film is None else str(self.film),
        }
