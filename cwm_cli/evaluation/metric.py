"""Metrics: compare predictions with recorded transitions, weigh the rows, and score them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from pydantic import BaseModel, Field, SerializerFunctionWrapHandler, model_serializer

from cwm_cli.data.dataset import DONE, VALID, Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.errors import CwmError
from cwm_cli.evaluation.component_scores import ComponentScore
from cwm_cli.sandbox.failures import Failure

if TYPE_CHECKING:
    from cwm_cli.worlds import Predictions, WorldModel

TOLERANCE = 1e-5
"""Numbers are equal if |a - b| <= TOLERANCE + TOLERANCE * |b|."""

MOST_CLASSES = 20
"""Rewards with more distinct values than this count as real numbers, and all rows weigh equally."""

FURTHEST = 1e5
"""Upper bound of scaled errors, also used for infinite and undefined ones."""


class WeighedPart(BaseModel, frozen=True):
    """The weighted accuracy of a part of the outcome, and its weight in the total accuracy."""

    right: float
    weight: float


class Score(BaseModel, frozen=True):
    """The score of predictions. Accuracies are in [0, 1]; values that do not apply are None.

    Attributes:
        accuracy: Weighted mean over rows of the share of correct parts.
        observation: Unweighted mean accuracy of observations, without terminal rows.
        reward: Unweighted mean accuracy of rewards; None if the rows have none.
        terminated: Unweighted mean accuracy of termination; None if no row could show any.
        exact: Share of rows that are correct in every part.
        floor: Accuracy of the baseline: nothing changes, the most common reward, no termination
            (and the most common valid actions).
        normalised: (accuracy - floor) / (1 - floor); None if the floor is 1.
        transitions: Number of rows.
        paper: The published score, if it is the metric.
        valid_actions: Unweighted mean accuracy of valid actions, if programs must return them.
        weighed: Accuracy and weight of each part; the products add up to `accuracy`.
        skill: (proper - proper_floor) / (proper_ceiling - proper_floor), if skill is the metric.
            The following values exist only then.
        skill_stderr: Standard error of the skill over episodes.
        reached: Whether the score reaches the ceiling; None without a measured ceiling.
        open_gap: The reason if the ceiling is not reached.
        proper: Mean proper score of a row: `log_likelihood` minus `energy`.
        proper_floor: Proper score of the baseline.
        proper_ceiling: Proper score of the true environment, if it was measured.
        log_likelihood: Mean log-likelihood of a row, in nats.
        energy: Mean energy score of a row; None without real numbers.
        log_evidence: Mean log-likelihood of a whole episode; None with real numbers.
        impossible: Number of rows whose outcome has probability 0 in the model.
        uncertain: Number of rows whose observation and action also had another outcome.
        brier: Brier scores of the probabilities of rewards and of termination.
        explained: Mean share of the squared change of a component that the program explains, in
            [0, 1], if `explained` is the metric. `reached` and `open_gap` then refer to the noise.
        explained_ceiling: The same of a program at the noise level.
        components: Measures of each component, for data without a simulator.
        uniformity: Probability that draws from the true distribution would have ranks at least as
            uneven as the draws of the model have.
    """

    accuracy: float
    observation: float | None
    reward: float | None
    terminated: float | None
    exact: float
    floor: float
    normalised: float | None
    transitions: int = Field(ge=0, le=2**53)
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
    explained: float | None = None
    explained_ceiling: float | None = None
    components: tuple[ComponentScore, ...] | None = None

    @property
    def value(self) -> float:
        """The main score, in [0, 1]: the skill, the share explained, the published score, accuracy.

        A negative skill counts as 0. A skill counts as 1 only if no row is known to be wrong.
        """
        if self.explained is not None:
            return self.explained
        if self.skill is not None:
            return min(max(self.skill, 0.0), 1.0 - 1e-6 if self.reached is False else 1.0)
        return self.accuracy if self.paper is None else self.paper

    @property
    def refuted(self) -> bool:
        """Whether a row shows that the model is wrong.

        For a skill without a ceiling, only an outcome with probability 0 in the model shows it.
        The published score alone does not show it, because it is below 1 even for exact programs:
        it compares doubles with stored float32 numbers. A share explained shows it if an error
        is larger than the noise, or not white.
        """
        if self.explained is not None:
            return not self.reached
        if self.skill is not None:
            return bool(self.impossible) if self.reached is None else not self.reached
        return self.exact < 1 and (self.paper is None or self.paper < 1)

    @property
    def least(self) -> float:
        """The value of `value` for the baseline."""
        return self.floor if self.skill is None and self.explained is None else 0.0

    @model_serializer(mode="wrap")
    def _plain(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit fields that are None, except fields that have a meaning when they are null."""
        data: dict[str, Any] = handler(self)
        always = ("observation", "normalised", "reward", "terminated")
        return {name: value for name, value in data.items() if value is not None or name in always}


class Ceiling(NamedTuple):
    """The score of the true environment, and the number of rows that it could not predict."""

    score: Score
    unanswered: int


class Matches(NamedTuple):
    """The correctness of each part of each row, in [0, 1].

    For an observation it is the share of correct components. For predictions with several answers
    it is the expectation over the answers. Parts that the rows lack are None: rewards or ends of a
    table without them, and `valid_actions` if programs need not return them.
    """

    observation: np.ndarray
    reward: np.ndarray | None
    terminated: np.ndarray | None
    valid_actions: np.ndarray | None = None

    def scale(self, shares: np.ndarray) -> "Matches":
        """Multiply the correctness of each row by a share."""
        return Matches._make(None if part is None else part * shares for part in self)

    def losses(self, terminal: np.ndarray) -> np.ndarray:
        """Return the mean loss of the parts of each row, in [0, 1]; exactly 0 for correct rows.

        Rows in the mask `terminal` are scored by reward and termination only, because the
        observation after the end has no consequence.
        """
        ends = [part for part in (self.reward, self.terminated) if part is not None]
        loss = np.full(len(terminal), float(len(ends)))
        for part in ends:
            loss -= part
        full_loss, parts = loss + 1.0 - self.observation, len(ends) + 1
        if self.valid_actions is not None:
            full_loss, parts = full_loss + 1.0 - self.valid_actions, parts + 1
        return np.asarray(np.where(terminal, loss / max(1, len(ends)), full_loss / parts))


def close(
    predicted: np.ndarray, target: np.ndarray, tolerance: float | np.ndarray | None = None
) -> np.ndarray:
    """Return the mask of numbers that are finite and equal within the tolerance.

    Args:
        predicted: Predicted numbers.
        target: Recorded numbers of the same shape.
        tolerance: Absolute tolerance, by default `TOLERANCE`, absolute and relative.
    """
    target = np.asarray(target, dtype=np.float64)
    if tolerance is None:
        tolerance = TOLERANCE + TOLERANCE * np.abs(target)
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(predicted - target) <= tolerance
    return np.asarray(near & np.isfinite(predicted) & np.isfinite(target))


def components(predictions: Columns, dataset: Dataset) -> list[np.ndarray]:
    """Return for each leaf of the observation the mask (rows, size) of correct components."""
    right, first = [], 0
    for name, space in dataset.observation_space.leaves("next_observations"):
        predicted, target = predictions[name], dataset.columns[name]
        same = close(predicted, target) if space.is_float else predicted == target
        same = same.reshape(len(dataset), space.size)
        for number, tolerance in dataset.tolerances.items():
            place = int(number) - first if number.isdecimal() else -1
            if 0 <= place < space.size and space.kind != "text":
                one, other = (column.reshape(same.shape) for column in (predicted, target))
                same[:, place] = close(one[:, place], other[:, place], tolerance)
        right.append(same)
        first += space.size
    return right


def match(predictions: Columns, dataset: Dataset) -> Matches:
    """Compare predictions, one answer per row, with the recorded outcomes."""
    shares = [right.mean(axis=1) for right in components(predictions, dataset)]
    valid = None
    if dataset.has_valid_actions:
        valid = (predictions[VALID] == dataset.columns[VALID]).all(axis=1)
    reward = ended = None
    if dataset.has_rewards:
        tolerance = dataset.tolerances.get("reward")
        reward = close(predictions["rewards"], dataset.columns["rewards"], tolerance)
    if dataset.has_ends:
        ended = predictions["terminations"] == dataset.columns["terminations"]
    return Matches(np.mean(shares, axis=0), reward, ended, valid)


def log_error(predictions: Columns, rows: Dataset) -> float | None:
    """Return the mean decimal logarithm of the errors of real numbers, in mean changes.

    The unit of a component is its mean absolute change in one step; the unit of rewards is their
    mean absolute deviation. Logarithms are between -5 (equal within the tolerance) and 5 (also for
    values that are not finite). Rewards count only if they have more than 20 distinct values.

    Returns:
        The mean, rounded to 9 decimals; None if no real number counts.
    """
    going = ~rows.columns["terminations"]
    parts = []
    for name, space in rows.observation_space.leaves("next_observations"):
        if space.is_float and going.any():
            before = rows.columns[name.removeprefix("next_")][going].reshape(going.sum(), -1)
            after = rows.columns[name][going].reshape(before.shape).astype(np.float64)
            predicted = predictions[name][going].reshape(before.shape)
            parts.append(_logarithms(predicted, after, after - before))
    rewards = rows.columns["rewards"]
    if len(np.unique(rewards)) > MOST_CLASSES:
        parts.append(_logarithms(predictions["rewards"], rewards, rewards - rewards.mean()))
    if not parts:
        return None
    return float(np.round(np.mean(np.concatenate([part.reshape(-1) for part in parts])), 9))


def _logarithms(predicted: np.ndarray, target: np.ndarray, changes: np.ndarray) -> np.ndarray:
    """Return the bounded decimal logarithm of each error in units of the mean absolute change."""
    size = np.abs(changes).mean(axis=0)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(predicted - target) / np.where(np.isfinite(size) & (size > 0), size, 1.0)
    error = np.where(close(predicted, target), TOLERANCE, error)
    error = np.nan_to_num(error, nan=FURTHEST, posinf=FURTHEST)
    return np.asarray(np.log10(np.clip(error, TOLERANCE, FURTHEST)))


class Metric:
    """A score of predictions of recorded transitions.

    `of` fits a metric to the train rows. `score` scores predictions of any rows, `losses` each of
    the rows, and `failed` a model without predictions. `floor` is the score of the baseline,
    `ceiling` the score of the true environment if it is restored to each observation.

    Predictions are columns with one answer per row, or `Predictions`, which may be draws or
    outcomes with probabilities. The score is then the expectation over the answers.

    A metric that weighs all rows equally:

        class EvenMetric(AccuracyMetric):
            def weights(self, rows):
                return np.ones(len(rows))
    """

    draws: ClassVar[int] = 1
    """Number of predictions to draw for each row from a stochastic model."""

    @classmethod
    def of(cls, train: Dataset) -> Self:
        """Fit the metric to train rows; `CwmError` if there are none."""
        raise NotImplementedError

    def score(self, predictions: "Predictions | Columns", rows: Dataset) -> Score:
        """Score predictions of all rows of a dataset."""
        raise NotImplementedError

    def failed(self, rows: Dataset) -> Score:
        """Return the score of a model without predictions."""
        raise NotImplementedError

    def losses(self, predictions: "Predictions | Columns", rows: Dataset) -> np.ndarray:
        """Return the unweighted loss of each row, in [0, 1]; exactly 0 for correct rows."""
        return match_answers(predictions, rows).losses(rows.columns["terminations"])

    def tolerant(self, rows: Dataset) -> Dataset:
        """Return rows with the tolerances within which `losses` counts values as right."""
        return rows

    def weights(self, rows: Dataset) -> np.ndarray:
        """Return the weight of each row, by default 1."""
        return np.ones(len(rows))

    def with_environment(self, environment: "WorldModel", *, seed: int = 0) -> Self:
        """Return the metric with the true environment, if its score depends on the ceiling."""
        return self

    def with_memory(self) -> Self:
        """Return the metric of programs with memory, if it differs."""
        return self

    def words(self, rows: Dataset) -> str:
        """Return a description of scoring and row weights for prompts."""
        return "All transitions weigh the same."

    def floor(self, rows: Dataset) -> float:
        """Return the score of the baseline, which predicts the most common outcome."""
        raise NotImplementedError

    def ceiling(self, environment: "WorldModel", rows: Dataset, *, seed: int = 0) -> Score | None:
        """Return the score of the true environment.

        None if it cannot predict more than half of the rows from their observations.
        """
        reached = self.reach(environment, rows, seed=seed)
        return None if reached is None or 2 * reached.unanswered > len(rows) else reached.score

    def reach(self, environment: "WorldModel", rows: Dataset, *, seed: int = 0) -> Ceiling | None:
        """Score the true environment, restored to the observation of each row.

        A row that it cannot predict counts as wrong in every part. Random outcomes are drawn once
        from `seed`, so that a program that predicts the most likely outcome may score more. The
        score is below 1 if outcomes are random or if observations hide relevant state.

        Returns:
            The score; None if the environment cannot be restored, or if there are no rows.
        """
        predictions = environment.predict(rows, seed=seed) if len(rows) else None
        if predictions is None or predictions.failure is not None:
            return None
        answered = predictions.answered
        unanswered = 0 if answered is None else int((~answered).sum())
        return Ceiling(self.score(predictions, rows), unanswered)


def match_answers(
    predictions: "Predictions | Columns",
    rows: Dataset,
    compare: Callable[[Columns, Dataset], Matches] = match,
) -> Matches:
    """Compare predictions, also draws and distributions, with the recorded outcomes.

    Returns:
        The expected correctness over the answers; 0 for rows without an answer.
    """
    if isinstance(predictions, dict):
        return compare(predictions, rows)
    answers = [(compare(columns, rows), shares) for columns, shares in predictions.answers()]
    matches = answers[0][0]
    if len(answers) > 1:
        parts = zip(*(one.scale(shares) for one, shares in answers), strict=True)
        # Rounded, so that shares which add up to 0.9999999999999999 count as exactly correct.
        sums = (None if part[0] is None else np.round(np.sum(part, axis=0), 12) for part in parts)
        matches = Matches._make(sums)
    return matches if predictions.answered is None else matches.scale(predictions.answered)


@dataclass(frozen=True)
class AccuracyMetric(Metric):
    """The share of correct parts, with equal total weight for rare and frequent rewards.

    Rewards that are equal within the tolerance form a class, given by its centre and its number
    of train rows. With at most 20 classes, each has the same total weight, because rare events
    decide whether a model is useful for planning. `valid` is the most common mask of valid
    actions.
    """

    classes: tuple[float, ...]
    counts: tuple[int, ...]
    valid: tuple[bool, ...] = ()

    @classmethod
    def of(cls, train: Dataset) -> Self:
        """Find the reward classes of the train rows."""
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
        """The reward that the baseline predicts."""
        return self.classes[int(np.argmax(self.counts))]

    def weights(self, rows: Dataset) -> np.ndarray:
        """Return the weight of each row; an unseen reward weighs as much as the rarest one."""
        rewards = rows.columns["rewards"]
        if len(self.classes) > MOST_CLASSES:
            return np.ones(len(rewards))
        classes, counts = np.array(self.classes), np.array(self.counts)
        nearest = _nearest(rewards, classes)
        seen = close(classes[nearest], rewards)
        return np.asarray(1.0 / np.where(seen, counts[nearest], counts[counts > 0].min()))

    def words(self, rows: Dataset) -> str:
        """Return a description of the scoring, with weights for the rewards in these rows."""
        names = "next observation"
        names += ", reward" if rows.has_rewards else ""
        names += ", terminated" if rows.has_ends else ""
        names += ", valid actions" if rows.has_valid_actions else ""
        parts = f"A transition scores the share of its right parts ({names})."
        if len(self.classes) > MOST_CLASSES:
            return f"{parts} {super().words(rows)}"
        rewards, weights = rows.columns["rewards"], self.weights(rows)
        masks = {c: close(rewards, np.full(len(rows), c)) for c in self.classes}
        found = {c: weights[mask][0] for c, mask in masks.items() if mask.any()}
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
        return self._score_of(match_answers(predictions, rows), rows)

    def failed(self, rows: Dataset) -> Score:
        """Return the score of a model without predictions: every part is wrong."""
        wrong = np.zeros(len(rows))
        has = (True, rows.has_rewards, rows.has_ends, rows.has_valid_actions)
        return self._score_of(Matches._make(wrong if part else None for part in has), rows)

    def floor(self, rows: Dataset) -> float:
        """Return the accuracy of the baseline."""
        losses = match(self.predict_baseline(rows), rows).losses(rows.columns["terminations"])
        return _accuracy(losses, self.weights(rows))

    def predict_baseline(self, rows: Dataset) -> Columns:
        """Predict no change, the most common reward, and no termination."""
        columns = {f"next_{name}": column for name, column in rows.select("observations").items()}
        columns["rewards"] = np.full(len(rows), self.most_common_reward)
        columns["terminations"] = np.zeros(len(rows), dtype=np.bool_)
        if rows.has_valid_actions:
            columns[VALID] = np.broadcast_to(np.array(self.valid), rows.columns[VALID].shape)
        return columns

    def _score_of(self, matches: Matches, rows: Dataset) -> Score:
        terminal, weights = rows.columns["terminations"], self.weights(rows)
        losses, valid = matches.losses(terminal), matches.valid_actions
        accuracy, floor = _accuracy(losses, weights), self.floor(rows)
        # Split the accuracy into parts; observations after the end of an episode weigh nothing.
        parts = {name: right for name, right in matches._asdict().items() if right is not None}
        ends = max(1, len({"reward", "terminated"} & parts.keys()))
        part_weights = weights / weights.sum() / np.where(terminal, ends, len(parts))
        weighed = {}
        for name, right in parts.items():
            own = part_weights if name in ("reward", "terminated") else part_weights * ~terminal
            if (weight := float(own.sum())) > 0:
                loss = float((own * (1.0 - right)).sum()) / weight
                weighed[name] = WeighedPart(right=1.0 - loss, weight=weight)
        return Score(
            accuracy=accuracy,
            observation=None if terminal.all() else float(matches.observation[~terminal].mean()),
            reward=None if matches.reward is None else float(matches.reward.mean()),
            terminated=None if matches.terminated is None else float(matches.terminated.mean()),
            exact=float((losses == 0).mean()),
            floor=floor,
            normalised=None if floor == 1 else (accuracy - floor) / (1 - floor),
            transitions=len(rows),
            valid_actions=None if valid is None else float(valid[~terminal].mean()),
            weighed=weighed,
        )


@dataclass(frozen=True)
class PaperMetric(AccuracyMetric):
    """The published score (Dainese et al., 2024), in addition to the accuracy.

    It differs from the accuracy: the end of an episode is the `done` of the data, which includes
    time limits if an imported file does not distinguish the two. Each element of an observation
    is correct only as a whole. A predicted double must equal the reward stored as float32. Each
    exact reward value has the same total weight, however many values there are. A non-empty
    subset of the valid actions is correct.
    """

    def words(self, rows: Dataset) -> str:
        """Return a description of the weights of transitions."""
        if len(self.classes) <= MOST_CLASSES:
            return super().words(rows)
        return "Every exact value of the reward counts the same in total, however rare it is."

    def score(self, predictions: "Predictions | Columns", rows: Dataset) -> Score:
        """Score predictions of all rows of a dataset."""
        rewards = _float32_rewards(rows)
        _, value, count = np.unique(rewards, return_inverse=True, return_counts=True)
        done = rows.columns.get(DONE, rows.columns["terminations"])
        losses = match_answers(predictions, rows, _match_as_published).losses(done)
        paper = _accuracy(losses, 1.0 / count[value.reshape(-1)])
        return super().score(predictions, rows).model_copy(update={"paper": paper})

    def failed(self, rows: Dataset) -> Score:
        """Return the score of a model without predictions: every part is wrong."""
        return super().failed(rows).model_copy(update={"paper": 0.0})


class Evaluation(NamedTuple):
    """The predictions of a model with their score, or its failure.

    Attributes:
        predictions: The most likely answer for each row.
        rows: Score of each row, in [0, 1].
        score: Score of all rows.
        failure: The reason if there are no predictions.
        answers: All answers, with their probabilities.
    """

    predictions: Columns
    rows: np.ndarray
    score: Score
    failure: Failure | None
    answers: "Predictions | None" = None


def evaluate(
    model: "WorldModel", rows: Dataset, metric: Metric, *, seed: int = 0, audited: bool = True
) -> Evaluation:
    """Score a world model on every row of a dataset.

    A model that fails scores 0, and so does a model whose predictions do not pass the audit.

    Args:
        model: The world model.
        rows: Recorded transitions.
        metric: The metric.
        seed: Seed of the draws of a stochastic model.
        audited: Whether to audit the predictions, which is required before a score counts.
    """
    predictions = model.predict(rows, seed=seed, draws=metric.draws)
    if audited and predictions.failure is None:
        predictions = model.audit(rows, predictions, seed=seed)
    if predictions.failure is not None:
        return failed_evaluation(rows, metric, predictions.failure)
    right = 1.0 - metric.losses(predictions, rows)
    score = metric.score(predictions, rows)
    return Evaluation(predictions.likeliest(), right, score, None, predictions)


def failed_evaluation(rows: Dataset, metric: Metric, failure: Failure) -> Evaluation:
    """Return the evaluation of a world model that failed."""
    return Evaluation({}, np.zeros(len(rows)), metric.failed(rows), failure)


def baseline(rows: Dataset | None, train: Dataset) -> Score | None:
    """Return the score of the baseline; None without rows.

    The baseline predicts no change, the most common reward of the train rows and no termination.
    """
    metric = AccuracyMetric.of(train)
    return metric.score(metric.predict_baseline(rows), rows) if rows else None


def unseen(rows: Dataset, known: Dataset) -> np.ndarray:
    """Return the mask of rows whose observation and action do not occur together in `known`.

    If no row occurs in `known`, as with real numbers, the mask has no true element.
    """
    known_keys = set(known.situations())
    mask = np.array([key not in known_keys for key in rows.situations()], dtype=bool)
    return mask & ~mask.all()


def varies(situations: Sequence[bytes], outcomes: Iterable[bytes]) -> np.ndarray:
    """Return the mask of rows whose situation also occurs with another outcome."""
    found: dict[bytes, set[bytes]] = {}
    for situation, outcome in zip(situations, outcomes, strict=True):
        found.setdefault(situation, set()).add(outcome)
    return np.array([len(found[situation]) > 1 for situation in situations], bool)


def _accuracy(losses: np.ndarray, weights: np.ndarray) -> float:
    """Return 1 minus the weighted mean loss, which is exactly 1 for perfect predictions."""
    return 1.0 - float((weights * losses).sum() / weights.sum())


def _float32_rewards(rows: Dataset) -> np.ndarray:
    return np.asarray(rows.columns["rewards"].astype(np.float32).astype(np.float64))


def _match_as_published(predictions: Columns, rows: Dataset) -> Matches:
    """Compare predictions with the recorded outcomes as `PaperMetric` describes.

    `len` of the observation is the number of its elements: parts of a tuple, such as a board, or
    rows of an array.
    """
    valid = None
    if rows.has_valid_actions:
        named, allowed = predictions[VALID], rows.columns[VALID]
        valid = np.logical_and((named <= allowed).all(axis=1), named.any(axis=1))
    right, space = components(predictions, rows), rows.observation_space
    if space.children:
        leaves = iter(right)
        parts = [[next(leaves) for _ in part.leaves("")] for part in space.children]
        elements = [np.concatenate(part, axis=1) for part in parts]
    else:
        elements = np.array_split(right[0], space.shape[0] if space.shape else 1, axis=1)
    return Matches(
        np.mean([element.all(axis=1) for element in elements], axis=0),
        predictions["rewards"] == _float32_rewards(rows),
        predictions["terminations"] == rows.columns.get(DONE, rows.columns["terminations"]),
        valid,
    )


def _centres(rewards: np.ndarray) -> tuple[float, ...]:
    """Split sorted rewards into classes at most as wide as the tolerance; return their middles."""
    centres, start = [], 0
    while start < len(rewards):
        first = rewards[start]
        # A class starts at its smallest reward, so that chains of close rewards are split.
        widest = first + TOLERANCE + TOLERANCE * abs(first)
        end = max(int(np.searchsorted(rewards, widest, side="right")), start + 1)
        last = rewards[end - 1]
        centres.append(float(first + (last - first) / 2))
        start = end
    return tuple(centres)


def _nearest(rewards: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return for each reward the index of the nearest of the sorted classes."""
    # A binary search for both neighbours, instead of all distances of rewards and classes.
    right = np.searchsorted(classes, rewards).clip(1, max(len(classes) - 1, 1))
    right = np.minimum(right, len(classes) - 1)
    left = np.maximum(right - 1, 0)
    return np.asarray(np.where(rewards - classes[left] <= classes[right] - rewards, left, right))
