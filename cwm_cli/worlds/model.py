"""The seam of world models: what they predict, and the planning session that they open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import BaseModel

from cwm_cli.data.dataset import VALID, VECTORS, Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.errors import CwmError
from cwm_cli.planning import Decider, Moment, find_planner
from cwm_cli.planning.model import EpisodeHistory, Model
from cwm_cli.sandbox.failures import Failure
from cwm_cli.text import Grid

if TYPE_CHECKING:
    from pathlib import Path

    import gymnasium as gym

    from cwm_cli.envs.tasks import Task
    from cwm_cli.sandbox import Sandbox

Shape = Literal["certain", "draws", "outcomes"]
"""One answer for each row, several draws of it, or what may follow and how likely each is."""

CERTAINTY = 1e-6
"""By how much probabilities may miss 1 in sum: far more than rounding, far less than an outcome."""


@dataclass(frozen=True)
class Predictions:
    """What a world model says to the rows of a dataset, in their order.

    The columns are those of what follows: `next_observations` (one per leaf of the space,
    as in a dataset: float64, int64 or str), `rewards` (float64), `terminations` (bool) and,
    where the environment names them, `valid_actions`. Their shape is

    - `certain`: (rows, ...), one answer for each row;
    - `draws`: (rows, draws, ...), answers that are drawn, each as likely as the others;
    - `outcomes`: (rows, outcomes, ...), with `probabilities` (rows, outcomes) that sum to 1.

    With a `failure` there are no columns. Rows outside the mask `answered` hold nothing
    that counts: the model had no answer.

        Predictions(columns)
        Predictions(columns, shape="outcomes", probabilities=np.array([[0.8, 0.2]]))
    """

    columns: Columns
    failure: Failure | None = None
    shape: Shape = "certain"
    probabilities: np.ndarray | None = None
    answered: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Refuse columns that do not fit together, with a ValueError."""
        axes = 1 if self.shape == "certain" else 2
        if any(column.ndim < axes for column in self.columns.values()):
            raise ValueError(f"predictions of shape {self.shape!r} need at least {axes} axes")
        if len({column.shape[:axes] for column in self.columns.values()}) > 1:
            raise ValueError("the columns of predictions have different lengths")
        if (self.shape == "outcomes") != (self.probabilities is not None):
            raise ValueError("probabilities are required for outcomes, and only for them")
        if self.probabilities is None:
            return
        chances = self.probabilities
        if chances.shape != self.columns["rewards"].shape[:2]:
            raise ValueError("each outcome of each row needs one probability")
        if not ((chances >= 0).all() and np.allclose(chances.sum(axis=1), 1, atol=CERTAINTY)):
            raise ValueError("the probabilities of a row must not be negative and must sum to 1")

    def answers(self) -> Iterator[tuple[Columns, np.ndarray]]:
        """Yield answers to all rows, with the share (rows,) that each has of the chance."""
        rows = self.columns["rewards"]
        if self.shape == "certain":
            yield self.columns, np.ones(len(rows))
            return
        for place in range(rows.shape[1]):
            shares = np.full(len(rows), 1 / rows.shape[1])
            if self.probabilities is not None:
                shares = self.probabilities[:, place]
            yield {name: column[:, place] for name, column in self.columns.items()}, shares

    def likeliest(self) -> Columns:
        """Return one answer for each row: the likeliest outcome; of draws their middle.

        That is the mean of real numbers, and of anything else what was drawn most often, each
        leaf by itself.
        """
        if self.shape == "certain":
            return self.columns
        rows = np.arange(len(self.columns["rewards"]))
        if self.probabilities is not None:
            place = self.probabilities.argmax(axis=1)
            return {name: column[rows, place] for name, column in self.columns.items()}
        return {
            name: column.mean(axis=1) if column.dtype.kind == "f" else _commonest(column)
            for name, column in self.columns.items()
        }

    def __getitem__(self, rows: np.ndarray) -> Self:
        """Select rows by mask or by index."""
        return replace(
            self,
            columns={name: column[rows] for name, column in self.columns.items()},
            probabilities=None if self.probabilities is None else self.probabilities[rows],
            answered=None if self.answered is None else self.answered[rows],
        )

    def checked(self, rows: Dataset) -> Self:
        """Refuse predictions that are none of these rows, with a ValueError."""
        if self.failure is not None:
            return self
        axes = 1 if self.shape == "certain" else 2
        names = ["rewards", "terminations", *([VALID] if rows.has_valid_actions else [])]
        names += [leaf.name for leaf in rows.observation_space.leaves("next_observations")]
        for name in names:
            column, recorded = self.columns.get(name), rows.columns[name]
            if column is None:
                raise ValueError(f"there is no prediction of {name}")
            if (len(column), *column.shape[axes:]) != recorded.shape:
                raise ValueError(f"{name} of shape {column.shape} do not fit {recorded.shape}")
        return self


def _commonest(column: np.ndarray) -> np.ndarray:
    """Return what was drawn most often of each row (rows, draws, ...)."""
    found = np.empty_like(column[:, 0])
    for row, drawn in enumerate(column):
        values, times = np.unique(drawn, axis=0, return_counts=True)
        found[row] = values[times.argmax()]
    return found


class ImaginedStep(NamedTuple):
    """What a step of several imagined episodes led to, in their order.

    `observations` are columns named `observations` (one per leaf of the space, as in a dataset,
    without `next_`), the first axis the episode; `rewards` (n,) float64, `terminated` (n,) bool;
    `valid` (n, actions) bool are the actions that may follow, None where all may.
    """

    observations: Columns
    rewards: np.ndarray
    terminated: np.ndarray
    valid: np.ndarray | None = None


class ImaginedEpisodes:
    """Several episodes that go on inside a world model, side by side.

    `count` is how many there are. Each goes on from where its history led; one that has ended is
    stepped on like the others, and what it says then counts for nothing. `keep` goes on with some
    of them only; `close` lets go of what they hold.
    """

    count: int

    def step(self, actions: Columns) -> ImaginedStep:
        """Take an action in each: columns named `actions`, as in a dataset."""
        raise NotImplementedError

    def keep(self, places: np.ndarray) -> None:
        """Go on with the episodes at some places only, in that order."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what they hold."""


class PredictedEpisodes(ImaginedEpisodes):
    """Episodes in a model that answers row by row: each step predicts one row for each.

    Of what chance decides one outcome is drawn, by the `seed`.
    """

    def __init__(
        self, model: WorldModel, starts: Sequence[EpisodeHistory], rows: Dataset, seed: int
    ) -> None:
        self.count = len(starts)
        self._model, self._like, self._seed, self._steps = model, rows, seed, 0
        self._seen = rows.observation_space.pack(
            "observations", [each.observations[-1] for each in starts]
        )

    def step(self, actions: Columns) -> ImaginedStep:
        """Predict what follows each of the observations."""
        like, count, key = self._like, self.count, [self._seed, self._steps]
        columns = {name: np.zeros_like(like.columns[name], shape=count) for name in VECTORS}
        columns["episodes"] = np.arange(count)
        columns |= self._seen | actions
        columns |= {f"next_{name}": column for name, column in self._seen.items()}
        if like.has_valid_actions:
            columns[VALID] = np.ones((count, like.action_space.count), np.bool_)
        asked = Dataset(columns, like.observation_space, like.action_space, like.metadata)
        rng = np.random.default_rng(key)
        found = self._model.predict(asked, seed=int(rng.integers(1 << 31)), draws=1)
        if found.failure is not None:
            raise CwmError(f"{self._model.describe()} failed: {found.failure.message}")
        after = self._drawn(found, rng)
        self._steps += 1
        self._seen = {
            name.removeprefix("next_"): column
            for name, column in after.items()
            if name.startswith("next_observations")
        }
        return ImaginedStep(
            dict(self._seen), after["rewards"], after["terminations"], after.get(VALID)
        )

    def keep(self, places: np.ndarray) -> None:
        """Go on with the episodes at some places only, in that order."""
        self._seen = {name: column[places] for name, column in self._seen.items()}
        self.count = len(next(iter(self._seen.values())))

    def _drawn(self, found: Predictions, rng: np.random.Generator) -> Columns:
        """Return one answer for each episode."""
        if found.shape == "certain":
            return found.columns
        rows, width = np.arange(self.count), found.columns["rewards"].shape[1]
        chances = found.probabilities
        if chances is None:
            chances = np.full((self.count, width), 1 / width)
        places = (rng.random((self.count, 1)) > chances.cumsum(axis=1)).sum(axis=1)
        places = places.clip(max=width - 1)
        return {name: column[rows, places] for name, column in found.columns.items()}


class Planning(NamedTuple):
    """A planner by name, and its options; one of a plugin has an address, module:name."""

    name: str
    options: Mapping[str, Any]
    address: str = ""

    @property
    def sought(self) -> str:
        """By what it is found where there are no plugins."""
        return self.address or self.name


class Plan(NamedTuple):
    """The next actions; none after a failure. `supported` says whether rows support the first."""

    actions: list[Any]
    failure: Failure | None
    supported: bool = True


class PlannedWith(NamedTuple):
    """What plans are made with: the planner, the forms of the model, and why no other."""

    planner: str
    forms: tuple[str, ...]
    note: str


class Confirmation(NamedTuple):
    """How many decisions of an episode were made again, and whether all that were due were.

    An episode that is not verified ran out of the time for that; its return is no evidence.
    """

    decisions: int = 0
    verified: bool = True


class Stuck(Exception):
    """A model reached its limits in so many decisions that more of them would be no other."""


class PlanningSession:
    """Plans with a model, one decision after the other, for episodes that are played.

    In the order of its life: `state` says where an environment stands, as plans begin from
    it; `plan` is asked whenever actions are due, and `confirm` when an episode is over;
    `close` ends it, as `with` does. `steps`
    counts those that the model took so far, `report` says what plans are made with, once
    that is known.
    """

    steps: int = 0
    report: PlannedWith | None = None

    def state(self, env: gym.Env[Any, Any], history: EpisodeHistory) -> Any:
        """Return where an environment stands: what was observed last, unless a model needs more.

        That may be all that happened in the episode so far, or what is saved of the environment.
        """
        return history.observations[-1]

    def plan(self, moments: Sequence[Moment]) -> list[Plan]:
        """Return the next actions at each of some moments of different episodes.

        A plan with a failure has no actions; `Unsuited` when no planner can plan with the model,
        `Stuck` when there is no use in asking on.
        """
        raise NotImplementedError

    def confirm(self, seconds: Mapping[int, float]) -> dict[int, Confirmation]:
        """Check plans of episodes that are over.

        Sessions that plan on the trusted side, with a model that runs there, have nothing to
        check.

        Args:
            seconds: The planning time of each episode, by the number of the episode.

        Raises:
            CwmError: If a plan was not made by the planner.
        """
        return dict.fromkeys(seconds, Confirmation())

    def close(self) -> None:
        """Let go of what the session holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TrustedSession(PlanningSession):
    """Plans on the trusted side, with a model that runs nobody's code; `form` says what it is."""

    def __init__(self, model: Model, planners: Sequence[Planning], seed: int, *, form: str) -> None:
        self._names = [planner.name for planner in planners]
        self._form = form
        self._model = model
        made = [find_planner(each.sought)(**each.options) for each in planners]
        self._decider = Decider(made, model, seed=seed)

    def plan(self, moments: Sequence[Moment]) -> list[Plan]:
        """Return the next actions at each moment."""
        plans = self._decider.plan(moments)
        self.steps = self._model.counter[0]
        reasons = self._decider.passed_over
        pairs = zip(self._names, reasons, strict=False)
        notes = [f"not {name}: it {reason}" for name, reason in pairs]
        self.report = PlannedWith(self._names[len(reasons)], (self._form,), "; ".join(notes))
        return [Plan(actions, None) for actions in plans]


class ExtraScores(BaseModel):
    """Scores that only some kinds of world model have; `cwm evaluate` prints them.

    Each object holds the scores of one part of the recorded transitions. `key` is their name in
    `cwm evaluate --json`.
    """

    key: ClassVar[str]

    @classmethod
    def grid(cls, parts: Mapping[str, Self]) -> Grid:
        """Return one table of all parts, by name."""
        raise NotImplementedError

    def line(self, part: str) -> str:
        """Return one line about a part, to print below the table."""
        raise NotImplementedError


class WorldModel:
    """Predicts what follows an action.

    In the order of its life: it is made, or read back with `load`; `predict` answers the
    rows of a dataset, which is how it is scored, once `audit` has confirmed them; `open`
    begins to plan with it; `save` keeps it. `kind` is the name under which the hook
    `cwm_world_models` knows it, and
    `describe` says in a few words what it is. Several threads may use one model.

    A model that says that nothing ever changes:

        class Still(WorldModel):
            kind = "still"

            def predict(self, rows, *, seed=0, draws=1):
                seen = rows.select("observations")
                columns = {f"next_{name}": column for name, column in seen.items()}
                columns["rewards"] = np.zeros(len(rows))
                columns["terminations"] = np.zeros(len(rows), bool)
                return Predictions(columns)
    """

    kind: ClassVar[str]

    can_be_timed: ClassVar[bool] = True
    """Whether `cwm bench-speed` can time its steps."""

    def extra_scores(self, rows: Dataset) -> ExtraScores | None:
        """Return scores on `rows` that only this kind of model has, for `cwm evaluate`."""
        return None

    @property
    def planners(self) -> Sequence[str]:
        """Name planners that suit it best: where none is named they are tried before others."""
        return ()

    @property
    def remembers(self) -> bool:
        """Whether what it says to a row depends on those before it in the episode."""
        return False

    @property
    def digest(self) -> str:
        """The hash of all that it predicts by, empty where there is none."""
        return ""

    @property
    def planned(self) -> WorldModel:
        """The model as plans are made with it, to compare with what comes about."""
        return self

    def describe(self) -> str:
        """Say what it is, in a few words."""
        return self.kind

    def predict(self, rows: Dataset, *, seed: int = 0, draws: int = 1) -> Predictions:
        """Say what follows each row, of which only observation and action are looked at.

        What is random follows from `seed`. A model of chance gives its outcomes, or as many
        `draws` of them as are asked for; one that is certain gives one answer whatever is asked.
        A model that fails says so in its predictions.
        """
        raise NotImplementedError

    def seen(self, observations: Columns) -> Columns:
        """Return observations (columns named `observations`) as the model sees them.

        That is as they are, unless it sees them through a tokenizer.
        """
        return observations

    def unroll(
        self, starts: Sequence[EpisodeHistory], plans: Sequence[Sequence[Any]], rows: Dataset
    ) -> Iterator[list[Any]]:
        """Yield the observations that actions lead to, from where histories do.

        The model only hears of what it predicts by itself, also after the end of an episode.
        Asked of models that remember; `rows` are those that the starts are from. Nothing is
        yielded from where it fails on.
        """
        raise CwmError(f"{self.describe()} does not support rollouts")

    def audit(self, rows: Dataset, predictions: Predictions, *, seed: int = 0) -> Predictions:
        """Return predictions of the rows that were confirmed, or say in them what is wrong.

        Those of a model that runs nobody's code are what they are.
        """
        return predictions

    def imagine(
        self, starts: Sequence[EpisodeHistory], rows: Dataset, *, seed: int = 0
    ) -> ImaginedEpisodes:
        """Go on with several episodes inside the model, from where their histories lead.

        `rows` are of the environment: their spaces count, and not what is in them. What is random
        follows from `seed`.
        """
        if self.remembers:
            raise CwmError(f"{self.describe()} has memory: episodes cannot be imagined in it")
        return PredictedEpisodes(self, starts, rows, seed)

    def open(self, planners: Sequence[Planning], task: Task) -> PlanningSession:
        """Begin to plan for episodes of a task, with the first of the planners that can.

        `CwmError` from a kind of model that cannot be planned with.
        """
        raise CwmError(f"cannot plan with {self.describe()}: choose another world model")

    def save(self, path: Path) -> None:
        """Write it to a file or folder, from which `load` makes the same model."""
        raise CwmError(f"{self.describe()} cannot be saved")

    @classmethod
    def load(cls, path: Path, *, sandbox: Sandbox | None = None) -> Self:
        """Read what `save` wrote; what is code runs in the sandbox only."""
        raise CwmError(f"a {cls.kind} cannot be loaded from {path}")
