"""Base classes of world models, their predictions, and planning sessions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import BaseModel

from cwm_cli.data.dataset import VALID, VECTORS, Dataset
from cwm_cli.data.spaces import Columns, Space
from cwm_cli.errors import CwmError
from cwm_cli.planning import Decider, Moment, find_planner
from cwm_cli.planning.model import EpisodeHistory, Model, Step
from cwm_cli.sandbox.failures import Failure
from cwm_cli.text import Grid

if TYPE_CHECKING:
    from pathlib import Path

    import gymnasium as gym

    from cwm_cli.envs.tasks import Task
    from cwm_cli.sandbox import Sandbox

Shape = Literal["certain", "draws", "outcomes"]
"""One prediction per row, several random draws, or all outcomes with their probabilities."""


@dataclass(frozen=True)
class Predictions:
    """The predictions of a world model for the rows of a dataset, in the order of the rows.

        Predictions(columns)
        Predictions(columns, shape="outcomes", probabilities=np.array([[0.8, 0.2]]))

    Args:
        columns: `next_observations` (one column per leaf of the space, as in a dataset: float64,
            int64 or str), `rewards` (float64), `terminations` (bool) and, if the environment names
            them, `valid_actions`. Empty if there is a `failure`.
        failure: The reason why the model could not predict.
        shape: The leading axes of the columns. `certain`: (rows, ...), one prediction for each row.
            `draws`: (rows, draws, ...), equally likely random predictions. `outcomes`:
            (rows, outcomes, ...), with `probabilities`.
        probabilities: (rows, outcomes); not negative, each row sums to 1.
        answered: Mask of the rows that the model could predict. The values of other rows have no
            meaning.

    Raises:
        ValueError: If the columns do not match each other, the shape or the probabilities.
    """

    columns: Columns
    failure: Failure | None = None
    shape: Shape = "certain"
    probabilities: np.ndarray | None = None
    answered: np.ndarray | None = None

    def __post_init__(self) -> None:
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
        # 1e-6 is far more than rounding errors, and far less than the probability of an outcome
        if not ((chances >= 0).all() and np.allclose(chances.sum(axis=1), 1, atol=1e-6)):
            raise ValueError("the probabilities of a row must not be negative and must sum to 1")

    def answers(self) -> Iterator[tuple[Columns, np.ndarray]]:
        """Yield (columns, probabilities): one prediction of each row and its probability."""
        rewards = self.columns["rewards"]
        if self.shape == "certain":
            yield self.columns, np.ones(len(rewards))
            return
        for place in range(rewards.shape[1]):
            shares = np.full(len(rewards), 1 / rewards.shape[1])
            if self.probabilities is not None:
                shares = self.probabilities[:, place]
            yield {name: column[:, place] for name, column in self.columns.items()}, shares

    def likeliest(self) -> Columns:
        """Return one prediction for each row.

        Of outcomes it is the most probable one. Of draws it is, for each leaf separately, the mean
        of real numbers and the most frequent value of other types.
        """
        if self.shape == "certain":
            return self.columns
        rows = np.arange(len(self.columns["rewards"]))
        if self.probabilities is not None:
            place = self.probabilities.argmax(axis=1)
            return {name: column[rows, place] for name, column in self.columns.items()}
        columns: Columns = {}
        for name, column in self.columns.items():
            if column.dtype.kind == "f":
                columns[name] = column.mean(axis=1)
                continue
            columns[name] = np.empty_like(column[:, 0])
            for row, draws in enumerate(column):
                values, times = np.unique(draws, axis=0, return_counts=True)
                columns[name][row] = values[times.argmax()]
        return columns

    def __getitem__(self, rows: np.ndarray) -> Self:
        """Select rows by mask or by index."""
        return replace(
            self,
            columns={name: column[rows] for name, column in self.columns.items()},
            probabilities=None if self.probabilities is None else self.probabilities[rows],
            answered=None if self.answered is None else self.answered[rows],
        )

    def checked(self, rows: Dataset) -> Self:
        """Return these predictions if their columns have the names and shapes of the rows.

        Raises:
            ValueError: If a column is missing or has another shape.
        """
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


class ImaginedStep(NamedTuple):
    """The results of one step in n imagined episodes, in the order of the episodes.

    Args:
        observations: Columns named `observations`, one per leaf of the space (without `next_`);
            the first axis is the episode.
        rewards: (n,) float64.
        terminated: (n,) bool.
        valid: (n, actions) bool, the actions that are valid next. None if all are.
    """

    observations: Columns
    rewards: np.ndarray
    terminated: np.ndarray
    valid: np.ndarray | None = None

    @classmethod
    def of(
        cls, steps: Sequence[Step], observations: Space, actions: Space, *, with_valid: bool
    ) -> Self:
        """Return the results of one step in each episode, with masks of valid actions if asked."""
        valid = None
        if with_valid:
            everything = np.ones(actions.count, np.bool_)
            masks = (everything if s.valid is None else actions.mask(s.valid) for s in steps)
            valid = np.array(list(masks))
        return cls(
            observations.pack("observations", [step.observation for step in steps]),
            np.array([step.reward for step in steps], float),
            np.array([step.terminated for step in steps], np.bool_),
            valid,
        )


class ImaginedEpisodes:
    """`count` episodes that continue inside a world model, in parallel.

    Each episode continues from the end of its history. `step` also steps episodes that have
    terminated; their further results have no meaning.
    """

    count: int

    def step(self, actions: Columns) -> ImaginedStep:
        """Take one action in each episode: columns named `actions`, as in a dataset."""
        raise NotImplementedError

    def keep(self, places: np.ndarray) -> None:
        """Keep only the episodes at these indices, in this order."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the resources of the episodes."""


class ObservedEpisodes(ImaginedEpisodes):
    """Episodes whose whole state is the last observation of each, kept as columns."""

    def __init__(self, starts: Sequence[EpisodeHistory], rows: Dataset, seed: int) -> None:
        self.count, self._rows, self._seed, self._steps = len(starts), rows, seed, 0
        self._observations = rows.observation_space.pack(
            "observations", [start.observations[-1] for start in starts]
        )

    def keep(self, places: np.ndarray) -> None:
        """Keep only the episodes at these indices, in this order."""
        self._observations = {name: column[places] for name, column in self._observations.items()}
        self.count = len(next(iter(self._observations.values())))


class PredictedEpisodes(ObservedEpisodes):
    """Episodes in a model that predicts row by row: each step predicts one row per episode.

    Random outcomes follow from `seed`.
    """

    def __init__(
        self, model: WorldModel, starts: Sequence[EpisodeHistory], rows: Dataset, seed: int
    ) -> None:
        super().__init__(starts, rows, seed)
        self._model = model

    def step(self, actions: Columns) -> ImaginedStep:
        """Predict the next step of each episode."""
        rows, count, seen = self._rows, self.count, self._observations
        columns = {name: np.zeros_like(rows.columns[name], shape=count) for name in VECTORS}
        columns["episodes"] = np.arange(count)
        columns |= seen | actions
        columns |= {f"next_{name}": column for name, column in seen.items()}
        if rows.has_valid_actions:
            columns[VALID] = np.ones((count, rows.action_space.count), np.bool_)
        current = Dataset(columns, rows.observation_space, rows.action_space, rows.metadata)
        rng = np.random.default_rng([self._seed, self._steps])
        predictions = self._model.predict(current, seed=int(rng.integers(1 << 31)), draws=1)
        if predictions.failure is not None:
            raise CwmError(f"{self._model.describe()} failed: {predictions.failure.message}")
        after = predictions.columns
        if predictions.shape != "certain":
            episodes, width = np.arange(count), after["rewards"].shape[1]
            chances = predictions.probabilities
            if chances is None:
                chances = np.full((count, width), 1 / width)
            # Inverse transform sampling; rounding can leave the last cumulative sum below 1.
            places = (rng.random((count, 1)) > chances.cumsum(axis=1)).sum(axis=1)
            places = places.clip(max=width - 1)
            after = {name: column[episodes, places] for name, column in after.items()}
        self._steps += 1
        self._observations = {
            name.removeprefix("next_"): column
            for name, column in after.items()
            if name.startswith("next_observations")
        }
        return ImaginedStep(
            dict(self._observations), after["rewards"], after["terminations"], after.get(VALID)
        )


class Planning(NamedTuple):
    """A planner by name, with its options; `address` (module:name) if a plugin provides it."""

    name: str
    options: Mapping[str, Any]
    address: str = ""

    @property
    def lookup_name(self) -> str:
        """The name for `find_planner`, also in processes that load no plugins."""
        return self.address or self.name


class Plan(NamedTuple):
    """The next actions, none after a failure; `supported` if data support the first action."""

    actions: list[Any]
    failure: Failure | None
    supported: bool = True


class PlannedWith(NamedTuple):
    """The planner that made the plans, the forms of the model, and why others were not used."""

    planner: str
    forms: tuple[str, ...]
    note: str


class Confirmation(NamedTuple):
    """The number of decisions of an episode that were repeated, and whether all due ones were.

    An episode is not verified if the time for this ran out. Its return is no evidence.
    """

    decisions: int = 0
    verified: bool = True


class Stuck(Exception):
    """A model reached its limits in several decisions in a row, so that planning stops."""


class PlanningSession:
    """Plans with a model, decision by decision, for the episodes of an evaluation.

    `state` returns the state of an environment where plans start. `plan` returns the next
    actions, and `confirm` checks the plans of finished episodes. `close`, or the end of a `with`
    block, ends the session. `steps` counts the model's steps so far. `report` describes the
    planner, and is None before the first plan.
    """

    steps: int = 0
    report: PlannedWith | None = None

    def state(self, env: gym.Env[Any, Any], history: EpisodeHistory) -> Any:
        """Return the start state of plans: by default the last observation.

        Some models need the whole history of the episode or a saved state of the environment.
        """
        return history.observations[-1]

    def plan(self, moments: Sequence[Moment]) -> list[Plan]:
        """Return the next actions at moments of different episodes.

        A plan with a failure has no actions.

        Raises:
            Unsuited: If no planner can plan with the model.
            Stuck: If further plans would fail as well.
        """
        raise NotImplementedError

    def confirm(self, seconds: Mapping[int, float]) -> dict[int, Confirmation]:
        """Check the plans of finished episodes.

        A session that plans outside the sandbox, with a model that runs there too, has nothing to
        check.

        Args:
            seconds: The planning time of each episode, by the number of the episode.

        Raises:
            CwmError: If a plan was not made by the planner.
        """
        return dict.fromkeys(seconds, Confirmation())

    def close(self) -> None:
        """Release the resources of the session."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TrustedSession(PlanningSession):
    """Plans outside the sandbox, with a model that runs no untrusted code.

    Args:
        model: The model to plan with.
        planners: The planners in order of preference; the first that suits the model is used.
        seed: Seed of the planner's random numbers.
        form: The form of the model that `report` names, e.g. "simulator".
    """

    def __init__(self, model: Model, planners: Sequence[Planning], seed: int, *, form: str) -> None:
        self._names = [planner.name for planner in planners]
        self._form = form
        self._model = model
        made = [find_planner(planner.lookup_name)(**planner.options) for planner in planners]
        self._decider = Decider(made, model, seed=seed)

    def plan(self, moments: Sequence[Moment]) -> list[Plan]:
        """Return the next actions at each moment."""
        plans = self._decider.plan(moments)
        self.steps = self._model.counter[0]
        reasons = self._decider.passed_over
        pairs = zip(self._names, reasons, strict=False)
        notes = [f"not {name}: it {reason}" for name, reason in pairs]
        self.report = PlannedWith(self._names[len(reasons)], (self._form,), "; ".join(notes))
        space = self._model.action_space  # environments may check the types of actions
        return [Plan([space.cast(action) for action in actions], None) for actions in plans]


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
    """A model that predicts the next observation, the reward and the end of an episode.

    A model is constructed, or read with `load`. `predict` predicts rows of a dataset, `audit`
    confirms these predictions before they are scored, `open` starts planning, and `save` writes
    the model to disk. `kind` is the name of the class in the hook `cwm_world_models`. Several
    threads may use one model.

    A model that predicts that nothing changes:

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
        """The planners to try before others if the user names none."""
        return ()

    @property
    def remembers(self) -> bool:
        """Whether the prediction of a row depends on earlier rows of its episode."""
        return False

    @property
    def digest(self) -> str:
        """A hash of everything that determines the predictions; "" if the model has none."""
        return ""

    @property
    def planned(self) -> WorldModel:
        """The model that planning uses, if it is not this one."""
        return self

    def describe(self) -> str:
        """Return a short name of the model for messages."""
        return self.kind

    def predict(self, rows: Dataset, *, seed: int = 0, draws: int = 1) -> Predictions:
        """Predict the next observation, reward and end of each row.

        A model that fails returns predictions with a `failure`.

        Args:
            rows: The rows. The model may use only their observations and actions.
            seed: Seed of random predictions.
            draws: The number of random predictions per row. A stochastic model may return
                outcomes with probabilities instead. A deterministic model ignores it.
        """
        raise NotImplementedError

    def seen(self, observations: Columns) -> Columns:
        """Return observations as the model sees them, e.g. after its tokenizer.

        Args:
            observations: Columns named `observations`.
        """
        return observations

    def unroll(
        self, starts: Sequence[EpisodeHistory], plans: Sequence[Sequence[Any]], rows: Dataset
    ) -> Iterator[list[Any]]:
        """Yield the predicted observations of each rollout; only models with memory need this.

        The model continues from its own predictions, also after the end of an episode. If it
        fails, it yields no further rollouts.

        Args:
            starts: The histories that the rollouts continue.
            plans: The actions of each rollout.
            rows: The dataset that contains the histories.
        """
        raise CwmError(f"{self.describe()} does not support rollouts")

    def audit(self, rows: Dataset, predictions: Predictions, *, seed: int = 0) -> Predictions:
        """Return confirmed predictions for the rows, or predictions with a `failure`.

        A model that runs no untrusted code returns its predictions unchanged.
        """
        return predictions

    def imagine(
        self, starts: Sequence[EpisodeHistory], rows: Dataset, *, seed: int = 0
    ) -> ImaginedEpisodes:
        """Continue several episodes inside the model, from the ends of their histories.

        Args:
            starts: The histories, one per episode.
            rows: Transitions of the environment. Their values do not affect the result.
            seed: Seed of random outcomes.
        """
        if self.remembers:
            raise CwmError(f"{self.describe()} has memory: episodes cannot be imagined in it")
        return PredictedEpisodes(self, starts, rows, seed)

    def open(self, planners: Sequence[Planning], task: Task) -> PlanningSession:
        """Start planning for episodes of a task, with the first planner that suits the model.

        Raises:
            CwmError: If this kind of model cannot be planned with.
        """
        raise CwmError(f"cannot plan with {self.describe()}: choose another world model")

    def save(self, path: Path) -> None:
        """Write the model to a file or folder that `load` can read."""
        raise CwmError(f"{self.describe()} cannot be saved")

    @classmethod
    def load(cls, path: Path, *, sandbox: Sandbox | None = None) -> Self:
        """Read a model that `save` wrote. Code in it runs only in the sandbox."""
        raise CwmError(f"a {cls.kind} cannot be loaded from {path}")
