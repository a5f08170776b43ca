"""Metrics: which parts of predicted transitions are right, what each row weighs, and the score."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from cwm_cli.data.dataset import DONE, VALID, Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.errors import CwmError
from cwm_cli.sandbox.failures import Failure

if TYPE_CHECKING:
    from cwm_cli.worlds import Predictions, WorldModel

TOLERANCE = 1e-5
"""Numbers are equal when they differ by at most this much, absolutely plus relatively."""

ALMOST = 1.0 - 1e-6
"""The highest score of a model with a known fault that its skill does not show."""

MOST_CLASSES = 20
"""With more distinct rewards than this, all rows weigh the same."""


class WeighedPart(BaseModel):
    """How right a part is where rows weigh what they weigh, and how much of the accuracy it is."""

    model_config = ConfigDict(frozen=True)

    right: float
    weight: float


class Score(BaseModel):
    """How right predictions are, in [0, 1].

    `accuracy` is weighted; `observation` (None without a row that goes on),
    `reward` and `terminated` are plain means of each part, and so is
    `valid_actions` where programs have to name them. `exact` is the
    share of rows right in every part. `floor` is the accuracy of a program
    that says "nothing changes, the most common reward, never terminated" (and
    the most common valid actions), and `normalised` is the accuracy above it
    (None when the floor is 1). `paper` is the published score, where it was
    asked for. Over the parts in `weighed`, right times weight adds up to the accuracy.

    Where the skill was asked for, `proper` is the mean proper score of a row, the
    `log_likelihood` in nats less the `energy` (None without real numbers), between that of what
    is usual, `proper_floor`, and that of the true environment, `proper_ceiling` (None where it
    cannot tell); `skill` is how much of that way was gone, with its standard error over
    episodes. `reached` is True at the ceiling (None without a ceiling); if it is False, `open_gap`
    is the reason. `log_evidence` is the
    log-likelihood of a whole episode. Of `impossible` rows the model had said that this cannot
    follow; of `uncertain` ones the same observation and action came out otherwise as well.
    `brier` has the squared error of the probabilities of rewards and ends, `uniformity` the
    chance that numbers drawn truly would rank as unevenly among those that the model draws.
    """

    model_config = ConfigDict(frozen=True)

    accuracy: float
    observation: float | None
    reward: float
    terminated: float
    exact: float
    floor: float
    normalised: float | None
    transitions: int
    paper: float | None = None
    valid_actions: float | None = None
    weighed: dict[str, WeighedPart] | None = None
    skill: float | None = None
    skill_stderr: float | None = None
    reached: bool | None = None
    open_gap: str | None = None
    proper: float | None = None
    proper_floor: float | None = None
    proper_ceiling: float | None = None
    log_likelihood: float | None = None
    energy: float | None = None
    log_evidence: float | None = None
    impossible: int | None = None
    uncertain: int | None = None
    brier: dict[str, float] | None = None
    uniformity: float | None = None

    @property
    def value(self) -> float:
        """The score that counts, in [0, 1]: the published one or the skill where it was asked for.

        A negative skill counts as 0. A skill counts as 1 only if no row is known to be wrong.
        """
        if self.skill is not None:
            return min(max(self.skill, 0.0), ALMOST if self.reached is False else 1.0)
        return self.accuracy if self.paper is None else self.paper

    @property
    def refuted(self) -> bool:
        """Whether some row shows that the model is wrong.

        Without a known ceiling, only an outcome with probability 0 in the model does. The
        published score alone does not: it compares doubles with stored float32 numbers, so that it
        is below 1 for programs that are exact.
        """
        if self.skill is not None:
            return bool(self.impossible) if self.reached is None else not self.reached
        return self.exact < 1 and (self.paper is None or self.paper < 1)

    @property
    def least(self) -> float:
        """What a model gets of the score that counts that says what is most common."""
        return self.floor if self.skill is None else 0.0

    @model_serializer(mode="wrap")
    def _plain(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what was not asked for and what there is not."""
        data: dict[str, Any] = handler(self)
        always = ("observation", "normalised")
        return {name: value for name, value in data.items() if value is not None or name in always}


class Ceiling(NamedTuple):
    """What the true environment scores, and for how many rows it has no answer."""

    score: Score
    unanswered: int


class Matches(NamedTuple):
    """What is right in each row: a share of the observation, the reward, the termination.

    And the valid actions, where programs have to name them. Of predictions that are no
    single answer, each is the share of the chance that is right.
    """

    observation: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    valid_actions: np.ndarray | None = None

    def scaled(self, shares: np.ndarray) -> "Matches":
        """Count only a share of what is right in each row."""
        valid = None if self.valid_actions is None else self.valid_actions * shares
        return Matches(
            self.observation * shares, self.reward * shares, self.terminated * shares, valid
        )

    def losses(self, terminal: np.ndarray) -> np.ndarray:
        """Return one minus the score of each row; 0.0 exactly where all that counts is right.

        What is seen after the end has no consequence, so rows in `terminal`
        are scored by reward and termination alone.
        """
        ends = 2.0 - self.reward - self.terminated
        goes_on, parts = ends + 1.0 - self.observation, 3
        if self.valid_actions is not None:
            goes_on, parts = goes_on + 1.0 - self.valid_actions, 4
        losses: np.ndarray = np.where(terminal, ends / 2, goes_on / parts)
        return losses


def close(predicted: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return where numbers are finite and equal within the tolerance."""
    target = np.asarray(target, dtype=np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(predicted - target) <= TOLERANCE + TOLERANCE * np.abs(target)
    right: np.ndarray = near & np.isfinite(predicted) & np.isfinite(target)
    return right


def components(predictions: Columns, dataset: Dataset) -> list[np.ndarray]:
    """Return for each leaf of the observation which components are right, one line per row."""
    right = []
    for name, space in dataset.observation_space.leaves("next_observations"):
        predicted, target = predictions[name], dataset.columns[name]
        same = close(predicted, target) if space.is_float else predicted == target
        right.append(same.reshape(len(dataset), space.size))
    return right


def match(predictions: Columns, dataset: Dataset) -> Matches:
    """Compare one answer for each row with what was recorded."""
    shares = [right.mean(axis=1) for right in components(predictions, dataset)]
    valid = None
    if dataset.has_valid_actions:
        valid = (predictions[VALID] == dataset.columns[VALID]).all(axis=1)
    return Matches(
        np.mean(shares, axis=0),
        close(predictions["rewards"], dataset.columns["rewards"]),
        predictions["terminations"] == dataset.columns["terminations"],
        valid,
    )


FURTHEST = 1e5
"""Errors beyond so many typical changes count as this large: infinities, and what is no number."""


def log_error(predictions: Columns, rows: Dataset) -> float | None:
    """Return how far numbers are off: the mean decimal logarithm of the error in typical changes.

    What is right within the tolerance counts as -5, what is no finite number as 5. Where rewards
    take few values only the observation counts; None where nothing that counts is a real number.
    """
    goes_on = ~rows.columns["terminations"]
    parts = []
    for name, space in rows.observation_space.leaves("next_observations"):
        if space.is_float and goes_on.any():
            before = rows.columns[name.removeprefix("next_")][goes_on].reshape(goes_on.sum(), -1)
            after = rows.columns[name][goes_on].reshape(before.shape).astype(np.float64)
            predicted = predictions[name][goes_on].reshape(before.shape)
            parts.append(_logarithms(predicted, after, _typical(after - before)))
    rewards = rows.columns["rewards"]
    if len(np.unique(rewards)) > MOST_CLASSES:
        parts.append(
            _logarithms(predictions["rewards"], rewards, _typical(rewards - rewards.mean()))
        )
    if not parts:
        return None
    return float(np.round(np.mean(np.concatenate([part.reshape(-1) for part in parts])), 9))


def _typical(changes: np.ndarray) -> np.ndarray:
    """Return the mean size of changes, 1 where there are none."""
    size = np.abs(changes).mean(axis=0)
    typical: np.ndarray = np.where(np.isfinite(size) & (size > 0), size, 1.0)
    return typical


def _logarithms(predicted: np.ndarray, target: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Return the decimal logarithm of each error in this unit, within bounds."""
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(predicted - target) / unit
    error = np.where(close(predicted, target), TOLERANCE, error)
    error = np.nan_to_num(error, nan=FURTHEST, posinf=FURTHEST)
    logarithms: np.ndarray = np.log10(np.clip(error, TOLERANCE, FURTHEST))
    return logarithms


class Metric:
    """Scores the predictions of recorded transitions.

    In the order of its life: it is learned from the train rows (`of`); `score` judges
    predictions of any rows, `losses` each row of them, `failed` a model that gave none.
    `floor` is what a model gets that knows nothing but the most common, `ceiling` (where too
    much is hidden none, which `reach` counts) what the true environment gets that knows
    nothing but the observations.

    Predictions are one answer for each row (columns as they are), or `Predictions`, which
    may be draws or outcomes with probabilities: what is right then counts by its share.

    A metric by which every row weighs the same:

        class EvenMetric(AccuracyMetric):
            def weights(self, rows):
                return np.ones(len(rows))
    """

    draws: ClassVar[int] = 1
    """How many draws of each row are asked of a model that draws."""

    @classmethod
    def of(cls, train: Dataset) -> Self:
        """Learn from the train rows what rows weigh; `CwmError` where there are none."""
        raise NotImplementedError

    def score(self, predictions: "Predictions | Columns", rows: Dataset) -> Score:
        """Score predictions of all rows of a dataset."""
        raise NotImplementedError

    def failed(self, rows: Dataset) -> Score:
        """Score a model that failed: nothing is right."""
        raise NotImplementedError

    def losses(self, predictions: "Predictions | Columns", rows: Dataset) -> np.ndarray:
        """Return what each row lacks, unweighted: 0.0 exactly where all that counts is right."""
        return match_all(predictions, rows).losses(rows.columns["terminations"])

    def weights(self, rows: Dataset) -> np.ndarray:
        """Return what each row weighs, all the same unless a metric says otherwise."""
        return np.ones(len(rows))

    def knowing(self, environment: "WorldModel", *, seed: int = 0) -> Self:
        """Return the metric that measures against what the true environment reaches, if it does."""
        return self

    def words(self, rows: Dataset) -> str:
        """Say how rows are weighed, as far as these show it, to whoever writes a program."""
        return "All transitions weigh the same."

    def floor(self, rows: Dataset) -> float:
        """Return the score of a model that says nothing but the most common."""
        raise NotImplementedError

    def ceiling(self, environment: "WorldModel", rows: Dataset, *, seed: int = 0) -> Score | None:
        """Return the score of the true environment, None where observations hide its state."""
        reached = self.reach(environment, rows, seed=seed)
        return None if reached is None or 2 * reached.unanswered > len(rows) else reached.score

    def reach(self, environment: "WorldModel", rows: Dataset, *, seed: int = 0) -> Ceiling | None:
        """Score what the true environment answers where it is stood at each observation.

        A row for which it has no answer counts as wrong in every part. What
        chance decides is drawn once, from `seed`: the score is that of one draw, and
        a program that always says what is likeliest may well score more. It is
        below 1 where chance decides or where an observation hides what matters.
        None where nothing restores it, or there is no row.
        """
        predictions = environment.predict(rows, seed=seed) if len(rows) else None
        if predictions is None or predictions.failure is not None:
            return None
        answered = predictions.answered
        unanswered = 0 if answered is None else int((~answered).sum())
        return Ceiling(self.score(predictions, rows), unanswered)


def match_all(
    predictions: "Predictions | Columns",
    rows: Dataset,
    compare: Callable[[Columns, Dataset], Matches] = match,
) -> Matches:
    """Compare predictions of any shape with what was recorded; what chance decides by its share."""
    if isinstance(predictions, dict):
        return compare(predictions, rows)
    answers = [(compare(columns, rows), shares) for columns, shares in predictions.answers()]
    matches = answers[0][0] if len(answers) == 1 else _expected(answers)
    return matches if predictions.answered is None else matches.scaled(predictions.answered)


def _expected(answers: list[tuple[Matches, np.ndarray]]) -> Matches:
    """Return what is right of several answers to each row, by the share of each.

    Rounded, so that what is right in every answer counts as exactly right.
    """
    every = [matches.scaled(shares) for matches, shares in answers]
    parts = zip(*every, strict=True)
    sums = [None if part[0] is None else np.round(np.sum(part, axis=0), 12) for part in parts]
    return Matches._make(sums)


@dataclass(frozen=True)
class AccuracyMetric(Metric):
    """The share of what is right, in which rare rewards count as much as frequent ones.

    Rewards that are equal within the tolerance form a class, given by its
    centre and its number of train rows. With at most 20 classes each weighs
    the same in total: rare events decide whether a model is worth planning with.
    `valid` is the most common mask of valid actions.
    """

    classes: tuple[float, ...]
    counts: tuple[int, ...]
    valid: tuple[bool, ...] = ()

    @classmethod
    def of(cls, train: Dataset) -> Self:
        """Learn the reward classes of the train rows."""
        if not len(train):
            raise CwmError("the dataset has no train rows: record some with `cwm collect`")
        rewards = train.columns["rewards"]
        classes = _centres(np.unique(rewards))
        counts = np.bincount(_nearest(rewards, np.array(classes)), minlength=len(classes))
        valid: tuple[bool, ...] = ()
        if train.has_valid_actions:
            masks, times = np.unique(train.columns[VALID], axis=0, return_counts=True)
            valid = tuple(masks[np.argmax(times)].tolist())
        return cls(classes, tuple(counts.tolist()), valid)

    @property
    def most_common_reward(self) -> float:
        """The reward that the floor predicts."""
        return self.classes[int(np.argmax(self.counts))]

    def weights(self, rows: Dataset) -> np.ndarray:
        """Return what each row weighs; an unseen reward weighs as the rarest one."""
        rewards = rows.columns["rewards"]
        if len(self.classes) > MOST_CLASSES:
            return np.ones(len(rewards))
        classes, counts = np.array(self.classes), np.array(self.counts)
        nearest = _nearest(rewards, classes)
        seen = close(classes[nearest], rewards)
        weights: np.ndarray = 1.0 / np.where(seen, counts[nearest], counts[counts > 0].min())
        return weights

    def words(self, rows: Dataset) -> str:
        """Return the scoring and the weight of a transition, for the rewards in these rows."""
        names = "next observation, reward, terminated"
        names += ", valid actions" if rows.has_valid_actions else ""
        parts = f"A transition scores the share of its right parts ({names})."
        if len(self.classes) > MOST_CLASSES:
            return f"{parts} {super().words(rows)}"
        rewards, weights = rows.columns["rewards"], self.weights(rows)
        first = {c: np.flatnonzero(close(rewards, np.full(len(rows), c))) for c in self.classes}
        found = {c: weights[places[0]] for c, places in first.items() if len(places)}
        if len(set(found.values())) < 2:
            return f"{parts} {super().words(rows)}"
        least = min(found.values())
        each = ", ".join(f"{reward:g}: {weight / least:.3g}" for reward, weight in found.items())
        return (
            f"{parts} Each reward value weighs the same in total, so rare rewards count "
            f"most. Weight of one transition by its reward: {each}."
        )

    def score(self, predictions: "Predictions | Columns", rows: Dataset) -> Score:
        """Score predictions of all rows of a dataset."""
        return self._score_of(match_all(predictions, rows), rows)

    def failed(self, rows: Dataset) -> Score:
        """Score a model that failed: nothing is right."""
        nothing = np.zeros(len(rows))
        valid = nothing if rows.has_valid_actions else None
        return self._score_of(Matches(nothing, nothing, nothing, valid), rows)

    def floor(self, rows: Dataset) -> float:
        """Return the score of what is usual."""
        losses = match(self.commonest(rows), rows).losses(rows.columns["terminations"])
        return _share(losses, self.weights(rows))

    def commonest(self, rows: Dataset) -> Columns:
        """Predict that nothing changes, the most common reward, and never an end."""
        columns = {f"next_{name}": column for name, column in rows.select("observations").items()}
        columns["rewards"] = np.full(len(rows), self.most_common_reward)
        columns["terminations"] = np.zeros(len(rows), dtype=np.bool_)
        if rows.has_valid_actions:
            columns[VALID] = np.broadcast_to(np.array(self.valid), rows.columns[VALID].shape)
        return columns

    def _score_of(self, matches: Matches, rows: Dataset) -> Score:
        """Put a score together."""
        terminal = rows.columns["terminations"]
        losses, valid = matches.losses(terminal), matches.valid_actions
        accuracy, floor = _share(losses, self.weights(rows)), self.floor(rows)
        return Score(
            accuracy=accuracy,
            observation=None if terminal.all() else float(matches.observation[~terminal].mean()),
            reward=float(matches.reward.mean()),
            terminated=float(matches.terminated.mean()),
            exact=float((losses == 0).mean()),
            floor=floor,
            normalised=None if floor == 1 else (accuracy - floor) / (1 - floor),
            transitions=len(rows),
            valid_actions=None if valid is None else float(valid[~terminal].mean()),
            weighed=self._weighed(matches, rows),
        )

    def _weighed(self, matches: Matches, rows: Dataset) -> dict[str, WeighedPart]:
        """Take the accuracy apart; what is seen after the end of an episode has no weight in it."""
        terminal, weights = rows.columns["terminations"], self.weights(rows)
        parts = {name: right for name, right in matches._asdict().items() if right is not None}
        of_a_part = weights / weights.sum() / np.where(terminal, 2, len(parts))
        found = {}
        for name, right in parts.items():
            own = of_a_part if name in ("reward", "terminated") else of_a_part * ~terminal
            if (weight := float(own.sum())) > 0:
                lost = float((own * (1.0 - right)).sum()) / weight
                found[name] = WeighedPart(right=1.0 - lost, weight=weight)
        return found


@dataclass(frozen=True)
class PaperMetric(AccuracyMetric):
    """The score as published (Dainese et al., 2024), beside the others.

    The end is what the data call `done`, and a time limit only where an imported file does not
    tell the two apart. Of a tuple each part is right as a whole or not at all, a reward counts
    when the double equals the one stored as float32, each exact reward value weighs the same in
    total however many there are, and some of the valid actions are enough.
    """

    def words(self, rows: Dataset) -> str:
        """Say what a transition weighs by its reward."""
        if len(self.classes) <= MOST_CLASSES:
            return super().words(rows)
        return "Every exact value of the reward counts the same in total, however rare it is."

    def score(self, predictions: "Predictions | Columns", rows: Dataset) -> Score:
        """Score predictions of all rows of a dataset."""
        stored = _stored(rows)
        _, value, count = np.unique(stored, return_inverse=True, return_counts=True)
        losses = match_all(predictions, rows, _match_as_published).losses(_done(rows))
        paper = _share(losses, 1.0 / count[value.reshape(-1)])
        return super().score(predictions, rows).model_copy(update={"paper": paper})

    def failed(self, rows: Dataset) -> Score:
        """Score a model that failed: nothing is right."""
        return super().failed(rows).model_copy(update={"paper": 0.0})


class Evaluation(NamedTuple):
    """A model's predictions, the score of each row and of all, and why there are no predictions.

    `predictions` hold one answer for each row, the likeliest; `answers` all that the model said.
    """

    predictions: Columns
    rows: np.ndarray
    score: Score
    failure: Failure | None
    answers: "Predictions | None" = None


def evaluate(
    model: "WorldModel", rows: Dataset, metric: Metric, *, seed: int = 0, audited: bool = True
) -> Evaluation:
    """Score a world model on every row of a dataset; one that fails scores 0.

    So does one whose predictions do not stand up to its audit, without which no score counts.
    """
    predictions = model.predict(rows, seed=seed, draws=metric.draws)
    if audited and predictions.failure is None:
        predictions = model.audit(rows, predictions, seed=seed)
    if predictions.failure is not None:
        return failed(rows, metric, predictions.failure)
    right = 1.0 - metric.losses(predictions, rows)
    score = metric.score(predictions, rows)
    return Evaluation(predictions.likeliest(), right, score, None, predictions)


def failed(rows: Dataset, metric: Metric, failure: Failure) -> Evaluation:
    """Score a world model that failed."""
    return Evaluation({}, np.zeros(len(rows)), metric.failed(rows), failure)


def baseline(rows: Dataset | None, train: Dataset) -> Score | None:
    """Return the score of a prediction without a model; None without rows.

    The prediction: nothing changes, the most common reward of the training rows, and no end.
    """
    metric = AccuracyMetric.of(train)
    return metric.score(metric.commonest(rows), rows) if rows else None


def unseen(rows: Dataset, known: Dataset) -> np.ndarray:
    """Return the mask of rows whose observation and action do not occur together in `known`.

    Where all real numbers differ it says nothing, so it is empty where no row is known.
    """
    familiar = set(known.situations())
    mask = np.array([one not in familiar for one in rows.situations()], dtype=bool)
    return mask & ~mask.all()


def _share(losses: np.ndarray, weights: np.ndarray) -> float:
    """Return the weighted mean of what is right; from the losses, so that perfect is exactly 1."""
    return 1.0 - float((weights * losses).sum() / weights.sum())


def _done(rows: Dataset) -> np.ndarray:
    """Return which rows are stored as the end of an episode."""
    return rows.columns.get(DONE, rows.columns["terminations"])


def _stored(rows: Dataset) -> np.ndarray:
    """Return the rewards as they were published: as float32."""
    stored: np.ndarray = rows.columns["rewards"].astype(np.float32).astype(np.float64)
    return stored


def _match_as_published(predictions: Columns, rows: Dataset) -> Matches:
    """Compare one answer for each row by the published rules."""
    valid = None
    if rows.has_valid_actions:
        named, allowed = predictions[VALID], rows.columns[VALID]
        valid = np.logical_and((named <= allowed).all(axis=1), named.any(axis=1))
    return Matches(
        _elements(predictions, rows),
        predictions["rewards"] == _stored(rows),
        predictions["terminations"] == _done(rows),
        valid,
    )


def _elements(predictions: Columns, rows: Dataset) -> np.ndarray:
    """Return the share of each observation's elements that are right as a whole.

    They are what `len` counts: the parts of a tuple, such as a board, or the lines of an array.
    """
    right, space = components(predictions, rows), rows.observation_space
    if space.children:
        leaves = iter(right)
        parts = [[next(leaves) for _ in part.leaves("")] for part in space.children]
        elements = [np.concatenate(part, axis=1) for part in parts]
    else:
        elements = np.array_split(right[0], space.shape[0] if space.shape else 1, axis=1)
    share: np.ndarray = np.mean([element.all(axis=1) for element in elements], axis=0)
    return share


def _centres(rewards: np.ndarray) -> tuple[float, ...]:
    """Cut sorted rewards into classes no wider than the tolerance; return the middle of each."""
    centres, start = [], 0
    while start < len(rewards):
        first = rewards[start]
        widest = first + TOLERANCE + TOLERANCE * abs(first)
        end = max(int(np.searchsorted(rewards, widest, side="right")), start + 1)
        last = rewards[end - 1]
        centres.append(float(first + (last - first) / 2))
        start = end
    return tuple(centres)


def _nearest(rewards: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return for each reward the index of the nearest of the sorted classes."""
    right = np.searchsorted(classes, rewards).clip(1, max(len(classes) - 1, 1))
    right = np.minimum(right, len(classes) - 1)
    left = np.maximum(right - 1, 0)
    nearer: np.ndarray = np.where(rewards - classes[left] <= classes[right] - rewards, left, right)
    return nearer
