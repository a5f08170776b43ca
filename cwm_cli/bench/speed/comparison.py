"""The three ways to a transition side by side: how long they take, and how right they are."""

from dataclasses import asdict, dataclass
from math import log10
from typing import Any, NamedTuple

from cwm_cli.bench.speed.environment import ALONE, MANY
from cwm_cli.bench.speed.language_model import Asked
from cwm_cli.bench.speed.pace import Pace
from cwm_cli.bench.speed.world_model import Stepped
from cwm_cli.evaluation import Score
from cwm_cli.sandbox.pacing import PACED

SCALAR, BATCHED = "scalar", "batched"


class Ratio(NamedTuple):
    """How many transitions of the world model fit into one of something else."""

    times: float

    @property
    def orders(self) -> float:
        """The ratio in orders of magnitude: 1,000 times are 3."""
        return log10(self.times)

    @classmethod
    def of(cls, ours: Pace | None, theirs: Pace | None) -> "Ratio | None":
        """Compare two paces, if there are both."""
        return cls(theirs.median / ours.median) if ours and theirs else None


class Measured(NamedTuple):
    """The score of the world model and of the environment, and what both were timed at.

    The environment has none where it cannot be stood at observations, and one below 1
    where chance decides or observations hide something.
    """

    world_model: Score
    environment: Score | None
    timed: Stepped


@dataclass(frozen=True)
class Comparison:
    """A world model, the true environment, and a language model if one was named."""

    measured: Measured
    language_model: Asked | None

    @property
    def paces(self) -> dict[str, Pace]:
        """Paces of the forms of the program and of the environment, by name."""
        return self.measured.timed.paces

    def speedups(self) -> dict[str, dict[str, Ratio | None]]:
        """Return how many times faster the world model is, one by one and all rows at once.

        All at once it is compared with the fastest that the other side can do.
        """
        one, many = self.paces.get(ALONE), self.paces.get(MANY)
        sides = {"environment": (one, many or one)}
        if asked := self.language_model:
            sides["language_model"] = (asked.pace, asked.pace)
        return {
            name: {
                SCALAR: Ratio.of(self.paces.get(SCALAR), alone),
                BATCHED: Ratio.of(self.paces.get(BATCHED), fastest),
            }
            for name, (alone, fastest) in sides.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        speedups = {
            side: {form: ratio and _ratio(ratio) for form, ratio in ratios.items()}
            for side, ratios in self.speedups().items()
        }
        paces = self.paces
        return {
            "world_model": self._world_model(),
            "environment": _side(paces.get(ALONE), paces.get(MANY), self.measured.environment),
            "language_model": self._language_model(),
            "speedup": {"language_model": None} | speedups,
        }

    def _world_model(self) -> dict[str, Any]:
        """Return what there is of the world model."""
        rows, paces, notes, failure = self.measured.timed
        return {
            **_side(paces.get(SCALAR), paces.get(BATCHED), self.measured.world_model),
            "rows_timed": rows,
            "forms": {form: _pace(paces[form]) for form in PACED if form in paces},
            "notes": notes,
            "failure": asdict(failure) if failure else None,
        }

    def _language_model(self) -> dict[str, Any] | None:
        """Return what there is of the language model."""
        asked = self.language_model
        if asked is None:
            return None
        unread = [
            {"row": row, "reason": reason, "answer": asked.answers[row]}
            for row, reason in asked.unread.items()
        ]
        return {
            **_side(asked.pace, None, asked.score),
            "answered": len(asked.answers),
            "unread": unread,
            "refused": [{"row": row, "reason": why} for row, why in asked.refused.items()],
            "stopped": asked.stopped or None,
            "tokens": asked.spent.tokens,
            "cost": asked.spent.cost,
        }


def _side(pace: Pace | None, batched: Pace | None, score: Score | None) -> dict[str, Any]:
    """Return what all sides have."""
    return {
        "median_seconds": pace.median if pace else None,
        "low_seconds": pace.low if pace else None,
        "high_seconds": pace.high if pace else None,
        "batched_median_seconds": batched.median if batched else None,
        "accuracy": score.accuracy if score else None,
        "score": score.model_dump() if score else None,
    }


def _pace(pace: Pace) -> dict[str, Any]:
    """Return a pace."""
    names = ("median", "low", "high", "warm_up")
    counts = {"rounds": pace.rounds, "transitions": pace.transitions}
    return {f"{name}_seconds": getattr(pace, name) for name in names} | counts


def _ratio(ratio: Ratio) -> dict[str, float]:
    """Return a ratio."""
    return {"ratio": ratio.times, "orders": ratio.orders}
