"""What playing came to: the world model beside random actions and plans made in the environment."""

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
"""Who plays: plans in a world model, plans in the true environment, random actions."""


class Mean(NamedTuple):
    """A mean and its standard error, None when there is one value only."""

    mean: float
    stderr: float | None

    def as_json(self) -> dict[str, float | None]:
        """Return it as plain data."""
        return {"mean": None if isnan(self.mean) else self.mean, "stderr": self.stderr}


def mean_of(values: Sequence[float]) -> Mean:
    """Return the mean of values and how sure it is; of no values that is no number."""
    if not values:
        return Mean(nan, None)
    mean = float(np.mean(values))
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Mean(mean, None if spread is None else spread / len(values) ** 0.5)


@dataclass(frozen=True)
class Side:
    """The episodes of one side, in order, and what its plans were made with."""

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
        """The other episodes."""
        return [episode for episode in self.episodes if episode.verified]

    @property
    def mean(self) -> Mean:
        """The mean return of the verified episodes."""
        return mean_of([episode.returned for episode in self.verified])

    def without(self, numbers: Collection[int]) -> "Side":
        """Return the side without some episodes."""
        return Side([each for each in self.episodes if each.number not in numbers], self.report)

    @cached_property
    def cost(self) -> PlanningCost:
        """What planning took, over all episodes."""
        costs: Iterable[PlanningCost] = (episode.cost for episode in self.episodes)
        return reduce(PlanningCost.plus, costs, PlanningCost())

    @property
    def mismatches(self) -> Mismatches | None:
        """What was predicted wrongly, over all episodes; None where nothing was compared."""
        found = [each.mismatches for each in self.episodes if each.mismatches]
        return reduce(Mismatches.plus, found) if found else None

    @property
    def speeds(self) -> dict[str, float | None]:
        """Decisions and steps of the model per second that one worker plans."""
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
    """Return R = (model - random) / (oracle - random) of the mean returns, where it has a meaning.

    The oracle has to be better than chance by more than the standard error of
    the difference of episodes with the same start. If an episode of the model is not verified,
    no side counts it.
    """
    if unverified := model.unverified:
        model, oracle, random = (each.without(unverified) for each in (model, oracle, random))
    if not model.episodes:
        return None
    pairs = zip(oracle.returns, random.returns, strict=True)
    gain = mean_of([planned - drawn for planned, drawn in pairs])
    if gain.mean <= (gain.stderr or 0.0):
        return None
    return (model.mean.mean - random.mean.mean) / gain.mean


class LearnFrom(NamedTuple):
    """With what `cwm learn` goes on: the environment, its arguments, and the folder of a run."""

    env: str
    env_args: Mapping[str, Any]
    run: Path

    @property
    def command(self) -> list[str]:
        """The command, word by word."""
        words = ["cwm", "learn", "--env", self.env]
        for name, value in self.env_args.items():
            words += ["--env-arg", f"{name}={json.dumps(value)}"]
        return [*words, "--from", named(self.run)]


@dataclass(frozen=True)
class PlanResult(
    Result,
    shown="mean stderr R random oracle returns lengths mismatches failure stopped planner",
):
    """What `plan` came to.

    `sides` holds who played, the one that was asked about (`asked`) first; `journal` is the
    file with a line per episode, `film` the one that was filmed. `doubt` says what was made of
    steps that no row supports, `stopped` why not all episodes were played, if they were not.
    `learn_from` is how to go on where something was predicted wrongly.
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
        """The side that was asked about."""
        return self.sides[self.asked]

    @property
    def returns(self) -> list[float]:
        """The return of every episode of that side."""
        return self.side.returns

    @property
    def lengths(self) -> list[int]:
        """The length of every episode of that side."""
        return self.side.lengths

    @property
    def mean(self) -> float:
        """The mean return of that side over its verified episodes."""
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
        """The mean return of plans made in the environment, where it played."""
        return self.sides["oracle"].mean if "oracle" in self.sides else None

    @property
    def R(self) -> float | None:
        """How close to the oracle the model is: the oracle has 1, random actions have 0."""
        if "oracle" not in self.sides or self.asked == "oracle" or self.stopped:
            return None
        return relative_return(self.side, self.sides["oracle"], self.sides["random"])

    @property
    def mismatches(self) -> Mismatches | None:
        """What the model predicted wrongly where its plans led; None where there is no model."""
        return self.side.mismatches

    @property
    def unverified(self) -> list[int]:
        """The numbers of the episodes whose decisions could not be confirmed in time."""
        return self.side.unverified

    @property
    def refuted(self) -> bool:
        """Whether the predictions failed in most steps, so that the return is no evidence."""
        return bool(self.mismatches and self.mismatches.refutes)

    @property
    def unsupported(self) -> float | None:
        """The share of decisions that rest on what no row supports, where that is known."""
        cost = self.side.cost
        known = self.doubt and not self.doubt.startswith("none") and cost.decisions
        return cost.unsupported / cost.decisions if known else None

    def as_json(self) -> dict[str, Any]:
        """Return what `cwm plan --json` prints."""
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
