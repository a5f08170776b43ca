"""Skill: a proper score, scaled so that the baseline is 0 and the true environment is 1.

A proper score is highest, in expectation, for a model that predicts the true probabilities
(Gneiting and Raftery, 2007, "Strictly proper scoring rules").
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np
from scipy.special import digamma

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.data.spaces import Columns, Leaf, Space
from cwm_cli.evaluation.calibration import calibration
from cwm_cli.evaluation.metric import (
    FURTHEST,
    MOST_CLASSES,
    TOLERANCE,
    AccuracyMetric,
    Ceiling,
    Score,
    close,
    match,
    varies,
)
from cwm_cli.worlds.model import Predictions, WorldModel

SMOOTHING = 0.001
"""Weight of the baseline in smoothed probabilities, so that one surprise has a finite cost."""

CHUNK_NUMBERS = 1 << 21
"""Size limit of intermediate arrays when distances are summed, in numbers."""


MANY_VALUES = 256
"""Whole numbers with more values in the train rows are scored like real numbers, because draws
rarely hit the recorded value; a program lists at most 256 outcomes."""


class RowScores(NamedTuple):
    """The proper score of each row, with its bounds.

    Attributes:
        likelihood: Smoothed log-likelihood of the discrete part, in nats.
        energy: Energy score of the real numbers (lower is better).
        floor: Score of the baseline.
        best: Score of a model that is certain and correct.
        ceiling: Score of the true environment if `measured`. If the environment was not queried
            about a row, to save time, the ceiling is estimated from the other rows. If it has no
            answer, or is unknown, the ceiling is `best`, so that every wrong row counts.
        measured: Mask of rows with a measured ceiling.
        impossible: Mask of rows whose recorded outcome is missing in the model's full list of
            outcomes.
    """

    likelihood: np.ndarray
    energy: np.ndarray
    floor: np.ndarray
    best: np.ndarray
    ceiling: np.ndarray
    measured: np.ndarray
    impossible: np.ndarray

    @property
    def certain(self) -> np.ndarray:
        """Mask of rows that should be exact: the environment is deterministic or has no answer."""
        return np.asarray(self.ceiling >= self.best - TOLERANCE)

    @property
    def proper(self) -> np.ndarray:
        """The proper score of each row."""
        return np.asarray(self.likelihood - self.energy)


@dataclass(frozen=True)
class BaselineDistribution:
    """The distribution of outcomes in the train rows, given the action but not the observation.

    The discrete part of an outcome (whole numbers, text, termination, rewards of few values) has
    joint frequencies. Real numbers have a sample of next values or, if these score better on the
    train rows, of changes. An action without train rows has the distribution of all
    actions together, with the key `b""`.
    """

    space: Space
    real_reward: bool
    classes: np.ndarray
    scale: np.ndarray
    samples_changes: bool
    counts: Mapping[bytes, Counter[bytes]]
    samples: Mapping[tuple[bytes, bool], np.ndarray]
    wide: frozenset[str] = frozenset()
    """Paths of whole numbers that are scored like real numbers."""

    @classmethod
    def of(cls, train: Dataset, classes: tuple[float, ...]) -> Self:
        """Fit the distribution to train rows, with the given reward classes."""
        real_reward = len(classes) > MOST_CLASSES
        space, terminal = train.observation_space, train.columns["terminations"]
        wide = frozenset(
            leaf.name.removeprefix("next_")
            for leaf in space.leaves("next_observations")
            if leaf.space.kind == "box" and _has_many_values(train.columns[leaf.name])
        )
        found = cls(space, real_reward, np.array(classes), np.ones(1), False, {}, {}, wide)
        after, before = found.real_numbers(train.columns), found.real_numbers(train.columns, "")
        found = replace(found, scale=_step_deviations(after - before, terminal, real_reward))
        actions = found.action_keys(train)
        counts: dict[bytes, Counter[bytes]] = {}
        for action, outcome in zip(actions, found.outcome_keys(train), strict=True):
            # a set, because the action of real numbers itself has the key b""
            for key in {action, b""}:
                counts.setdefault(key, Counter())[outcome] += 1
        found = replace(found, counts=counts)
        if not found.scale.size:
            return found
        options = [replace(found, samples_changes=changes) for changes in (True, False)]
        options = [replace(each, samples=each._draw_samples(train, actions)) for each in options]
        return min(options, key=lambda option: float(option.energy(train).mean()))

    def real_numbers(self, columns: Columns, prefix: str = "next_", axes: int = 1) -> np.ndarray:
        """Return the real numbers of outcomes, concatenated (rows, ..., numbers).

        Args:
            columns: Recorded or predicted columns.
            prefix: With an empty prefix the numbers of the observations are returned, with a
                reward of 0.
            axes: Number of leading axes of the columns: 1 for rows, 2 for rows and draws.
        """
        lead = columns["rewards"].shape[:axes]
        parts = [
            columns[leaf.name].reshape(*lead, -1).astype(np.float64)
            for leaf in self.space.leaves(f"{prefix}observations")
            if self.is_real(leaf)
        ]
        if self.real_reward:
            rewards = columns["rewards"] if prefix else np.zeros(lead)
            parts.append(rewards.reshape(*lead, 1))
        return np.concatenate(parts, axis=-1) if parts else np.zeros((*lead, 0))

    def is_real(self, leaf: Leaf) -> bool:
        """Return whether a leaf of the observation is scored as real numbers."""
        return leaf.space.is_float or leaf.name.removeprefix("next_") in self.wide

    def match_discrete(self, columns: Columns, rows: Dataset) -> np.ndarray:
        """Return the mask of rows whose predicted discrete part equals the recorded one."""
        terminal = rows.columns["terminations"]
        right: np.ndarray = columns["terminations"] == terminal
        if not self.real_reward:
            right = right & close(columns["rewards"], rows.columns["rewards"])
        for name in self._discrete_columns(rows):
            equal = columns[name] == rows.columns[name]
            right &= terminal | equal.reshape(len(rows), -1).all(axis=1)
        return right

    def outcome_keys(self, rows: Dataset) -> list[bytes]:
        """Return a key for the discrete part of the outcome of each row."""
        names = self._discrete_columns(rows)
        recorded = rows.columns["rewards"]
        rewards = [b""] * len(recorded)
        if not self.real_reward:  # rewards that are equal within the tolerance share a key
            nearest = self.classes[np.abs(recorded[:, None] - self.classes).argmin(axis=1)]
            values = np.where(close(nearest, recorded), nearest, recorded).tolist()
            rewards = [f"{value:.6g}".encode() for value in values]
        keys = []
        for row, end in enumerate(rows.columns["terminations"].tolist()):
            parts = () if end else (rows.columns[name][row] for name in names)
            texts = (str(v).encode() if v.dtype.kind == "U" else v.tobytes() for v in parts)
            keys.append(b"\0".join([b"end" if end else b"", rewards[row], *texts]))
        return keys

    def action_keys(self, rows: Dataset) -> list[bytes]:
        """Return a key for the action of each row; all actions of real numbers share one key."""
        leaves = list(rows.action_space.leaves("actions"))
        if any(leaf.space.is_float for leaf in leaves):
            return [b""] * len(rows)
        columns = [rows.columns[leaf.name] for leaf in leaves]
        return [
            b"\0".join(str(column[row]).encode() for column in columns) for row in range(len(rows))
        ]

    def probability(self, rows: Dataset) -> np.ndarray:
        """Return the probability of the discrete part of each row's outcome.

        An outcome that never followed the action gets 1 / (n + 1), for n rows with the action.
        """
        probabilities = np.empty(len(rows))
        keys = zip(self.action_keys(rows), self.outcome_keys(rows), strict=True)
        for row, (action, outcome) in enumerate(keys):
            outcomes = self.counts.get(action, self.counts[b""])
            times, total = outcomes[outcome], outcomes.total()
            probabilities[row] = times / total if times else 1 / (total + 1)
        return probabilities

    def energy(self, rows: Dataset) -> np.ndarray:
        """Return the energy score of the baseline in each row."""
        found = np.zeros(len(rows))
        targets = self._targets(rows)
        terminal = rows.columns["terminations"]
        groups: dict[tuple[bytes, bool], list[int]] = {}
        for row, key in enumerate(zip(self.action_keys(rows), terminal.tolist(), strict=True)):
            groups.setdefault(key, []).append(row)
        for (action, end), places in groups.items():
            pooled = self.samples.get((b"", end), np.zeros((1, targets.shape[1])))
            sample = self.samples.get((action, end), pooled)
            # E|X - y| - E|X - X'| / 2, with X from the sample
            distance = _mean_distance(targets[places], sample)
            found[places] = distance - _mean_distance(sample, sample).mean() / 2
        return found

    def scale_numbers(self, numbers: np.ndarray, terminal: np.ndarray) -> np.ndarray:
        """Return real numbers in units of their deviation; observations after the end become 0."""
        observed = numbers.shape[-1] - self.real_reward
        found: np.ndarray = numbers / self.scale
        found[..., :observed][terminal] = 0.0
        np.nan_to_num(found, copy=False, nan=FURTHEST, posinf=FURTHEST, neginf=-FURTHEST)
        return found

    def _targets(self, rows: Dataset) -> np.ndarray:
        """Return the scaled real numbers of outcomes, or their changes."""
        numbers = self.real_numbers(rows.columns)
        if self.samples_changes:
            numbers = numbers - self.real_numbers(rows.columns, "")
        return self.scale_numbers(numbers, rows.columns["terminations"])

    def _draw_samples(
        self, train: Dataset, actions: list[bytes]
    ) -> dict[tuple[bytes, bool], np.ndarray]:
        """Return up to 512 outcomes of each action, separately for terminal rows."""
        targets, terminal = self._targets(train), train.columns["terminations"]
        action_keys, found = np.array(actions, dtype=object), {}
        for action in self.counts:
            for end in (False, True):
                mask = (terminal == end) & ((action_keys == action) | (action == b""))
                if mask.any():
                    sample = targets[mask]
                    chosen = np.linspace(0, len(sample) - 1, min(len(sample), 512))
                    found[action, end] = sample[chosen.round().astype(int)]
        return found

    def _discrete_columns(self, rows: Dataset) -> list[str]:
        leaves = self.space.leaves("next_observations")
        names = [leaf.name for leaf in leaves if not self.is_real(leaf)]
        return [*names, VALID] if rows.has_valid_actions else names


@dataclass(frozen=True)
class SkillMetric(AccuracyMetric):
    """A proper score, scaled so that the baseline is 0 and the true environment is 1.

    An outcome has two parts. The discrete part (whole numbers, text, termination, rewards of few
    values) is scored as one joint outcome by the logarithm of its probability, smoothed towards
    the baseline of the action (weight 0.001). The real numbers are scored by the energy score of
    their joint distribution, given whether the episode ended, in units of their usual change in
    one step; the energy score is subtracted. For a single number it is the continuous ranked
    probability score. After the end nothing is observed, so only reward and termination count.

    The sum is proper: in expectation no model scores higher than the true distribution. The
    probability of the discrete part, and the distribution of the rest given that part, are each
    scored properly. The smoothing can be exploited for at most 0.001 nats.

    The skill is (score - floor) / (ceiling - floor), summed over rows. Without a known
    environment the ceiling is the score of a model that is certain and correct. The score also
    contains the accuracy.
    """

    draws: ClassVar[int] = 64

    baseline: BaselineDistribution | None = field(default=None, repr=False, compare=False)
    environment: WorldModel | None = field(default=None, repr=False, compare=False)
    seed: int = 0
    _ceilings: dict[bytes, float] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, train: Dataset) -> Self:
        """Fit the baseline to train rows."""
        found = super().of(train)
        return replace(found, baseline=BaselineDistribution.of(train, found.classes))

    def with_environment(self, environment: WorldModel, *, seed: int = 0) -> Self:
        """Return the metric with the ceiling of the true environment."""
        return replace(self, environment=environment, seed=seed, _ceilings={})

    def words(self, rows: Dataset) -> str:
        """Return a description of the scoring for prompts."""
        real = any(map(self._fitted.is_real, rows.observation_space.leaves("observations")))
        numbers = (
            " Real numbers are scored by the distance of the predicted distribution (energy "
            "score): draws that spread too much or too little cost."
            if real or self._fitted.real_reward
            else ""
        )
        return (
            "The score is the mean log-probability of the recorded results, so return true "
            "probabilities and call nothing impossible that can happen."
            f"{numbers} All transitions weigh the same."
        )

    def score(self, predictions: Predictions | Columns, rows: Dataset) -> Score:
        """Score predictions of all rows of a dataset."""
        answers, scores = _as_predictions(predictions), self.row_scores(predictions, rows)
        skill, stderr = _skill(scores, rows.columns["episodes"])
        measured, limit = bool(scores.measured.any()), 1.0 + 2.0 * (stderr or 0.0)
        # A skill clearly above 1 refutes the ceiling: hidden state decides, and a program with
        # memory predicts better than the environment that is restored to the observations.
        if measured and skill > limit + 0.05:
            return replace(self, environment=None).score(predictions, rows)
        open_gap = self._open_gap(answers, scores, skill, stderr, rows) if measured else None
        baseline, checked = self._fitted, calibration(answers, rows)
        # rounded, so that outcomes which differ by rounding errors only are equal
        numbers = baseline.real_numbers(rows.columns)
        numbers = baseline.scale_numbers(numbers, rows.columns["terminations"]).round(4)
        discrete = baseline.outcome_keys(rows)
        outcomes = (key + real.tobytes() for key, real in zip(discrete, numbers, strict=True))
        episodes = len(np.unique(rows.columns["episodes"]))
        found = {
            "skill": min(skill, limit),
            "skill_stderr": stderr,
            "reached": None if open_gap is None else not open_gap,
            "open_gap": open_gap or None,
            "proper": float(scores.proper.mean()),
            "proper_floor": float(scores.floor.mean()),
            "proper_ceiling": float(scores.ceiling.mean()) if measured else None,
            "log_likelihood": float(scores.likelihood.mean()),
            "energy": float(scores.energy.mean()) if baseline.scale.size else None,
            "log_evidence": None
            if baseline.scale.size
            else float(scores.likelihood.sum() / episodes),
            "impossible": int(scores.impossible.sum()),
            "uncertain": int(varies(rows.situations(), outcomes).sum()),
            "brier": checked.brier,
            "uniformity": checked.uniformity,
        }
        return self._exact.score(predictions, rows).model_copy(update=found)

    def _open_gap(
        self,
        answers: Predictions,
        scores: RowScores,
        skill: float,
        stderr: float | None,
        rows: Dataset,
    ) -> str:
        """Return the reason if the ceiling is not reached, or "".

        The standard error alone does not decide, because an error in a single episode increases
        it by as much as it reduces the skill.
        """
        if impossible := int(scores.impossible.sum()):
            outcomes = "outcome has" if impossible == 1 else "outcomes have"
            return f"{impossible:,} recorded {outcomes} probability 0"
        unlikely = (self.losses(answers, rows) > 0) | (scores.likelihood < np.log(0.5))
        if wrong := int((scores.certain & unlikely).sum()):
            rows_are = "row without chance is" if wrong == 1 else "rows without chance are"
            return f"{wrong:,} {rows_are} predicted wrongly"
        # The ceiling counts as reached within two standard errors of the skill and of the ceiling.
        # With few episodes the standard error can be large, so that a skill below 0.9 never
        # reaches the ceiling.
        highest = skill + 2.0 * (stderr or 0.0)
        if skill < 0.9 or highest < 1 - 2.0 * self._ceiling_error(scores, rows):
            return "the skill is below the ceiling by more than its error"
        return ""

    def _ceiling_error(self, scores: RowScores, rows: Dataset) -> float:
        """Return the standard error of the ceiling, as a share of the room above the baseline.

        A probability p from n draws has the variance p (1 - p) / n, and its logarithm the variance
        (1 - p) / (p n). All rows with equal situations and outcomes have the same error. With real
        numbers, few rows and draws are queried, and the error is about 0.005.
        """
        if self._fitted.scale.size:
            return 0.005
        keys = np.array(self._keys(rows), dtype=object)
        _, places, times = np.unique(keys, return_index=True, return_counts=True)
        share = np.exp(np.minimum(scores.ceiling[places], 0.0))
        variance = (times**2 * (1 - share) / (share * self._ceiling_draws)).sum()
        room = float((scores.ceiling - scores.floor).sum())
        return max(0.0005, float(np.sqrt(variance)) / room) if room > 0 else 0.005

    def failed(self, rows: Dataset) -> Score:
        """Return the score of a model without predictions: a skill of 0."""
        return self._exact.failed(rows).model_copy(update={"skill": 0.0})

    def floor(self, rows: Dataset) -> float:
        """Return the skill of the baseline, which is 0."""
        return 0.0

    def losses(self, predictions: Predictions | Columns, rows: Dataset) -> np.ndarray:
        """Return the loss of each row, 0 if the model considered the recorded outcome possible.

        For draws of real numbers, values in the range of the draws, extended by its width on
        either side, are possible.
        """
        answers = _as_predictions(predictions)
        if answers.shape == "certain":
            return super().losses(predictions, rows)
        if answers.shape == "draws":
            # Recorded numbers in the extended range of the draws count as drawn.
            leaves = rows.observation_space.leaves("next_observations")
            names = [leaf.name for leaf in leaves if self._fitted.is_real(leaf)]
            found = dict(answers.columns)
            for name in [*names, *(["rewards"] if self._fitted.real_reward else [])]:
                drawn, recorded = answers.columns[name], rows.columns[name]
                low, high = drawn.min(axis=1), drawn.max(axis=1)
                width = high - low
                within = (recorded >= low - width) & (recorded <= high + width)
                found[name] = np.where(within[:, None], recorded[:, None], drawn)
            answers = replace(answers, columns=found)
        terminal = rows.columns["terminations"]
        least = np.full(len(rows), np.inf)
        for columns, shares in answers.answers():
            losses = match(columns, rows).losses(terminal)
            least = np.where(shares > 0, np.minimum(least, losses), least)
        return least if answers.answered is None else np.where(answers.answered, least, 1.0)

    def reach(self, environment: WorldModel, rows: Dataset, *, seed: int = 0) -> Ceiling | None:
        """Score the true environment, restored to the observation of each row."""
        if not len(rows):
            return None
        answers = environment.predict(rows, seed=seed, draws=self._ceiling_draws)
        if answers.failure is not None:
            return None
        metric = self.with_environment(environment, seed=seed)
        ceilings = self._score_ceilings(answers, rows)
        metric._ceilings.update(zip(metric._keys(rows), ceilings, strict=True))
        unanswered = 0 if answers.answered is None else int((~answers.answered).sum())
        return Ceiling(metric.score(answers, rows), unanswered)

    def row_scores(self, predictions: Predictions | Columns, rows: Dataset) -> RowScores:
        """Return the score of each row, with its floor and its ceiling."""
        answers, baseline = _as_predictions(predictions), self._fitted
        baseline_probability, baseline_energy = baseline.probability(rows), np.zeros(len(rows))
        if baseline.scale.size:
            baseline_energy = baseline.energy(rows)
        probability = self._probability(answers, rows)
        energy = self._energy(answers, rows, baseline_energy)
        if answers.answered is not None:
            probability = np.where(answers.answered, probability, baseline_probability)
            energy = np.where(answers.answered, energy, baseline_energy)
        smoothing = SMOOTHING * baseline_probability
        likelihood = np.log((1 - SMOOTHING) * np.minimum(probability, 1.0) + smoothing)
        floor, best = (
            np.log(baseline_probability) - baseline_energy,
            np.log(1 - SMOOTHING + smoothing),
        )
        ceiling, measured = self._ceiling_rows(rows, floor, best)
        impossible = (probability == 0) & (answers.shape != "draws")
        return RowScores(likelihood, energy, floor, best, ceiling, measured, impossible)

    def _probability(self, answers: Predictions, rows: Dataset) -> np.ndarray:
        """Return the predicted probability of the discrete part of each row's outcome."""
        probability = np.zeros(len(rows))
        for columns, shares in answers.answers():
            probability += shares * self._fitted.match_discrete(columns, rows)
        return probability

    @property
    def _fitted(self) -> BaselineDistribution:
        assert self.baseline is not None, "the metric was not made by SkillMetric.of"
        return self.baseline

    @property
    def _exact(self) -> AccuracyMetric:
        return AccuracyMetric(self.classes, self.counts, self.valid)

    @property
    def _ceiling_draws(self) -> int:
        """Number of draws from the true environment: 1000 if all outcomes can be counted.

        With real numbers 64 draws suffice, and 128 if whole numbers are counted beside them.
        """
        if not self._fitted.scale.size:
            return 1000
        leaves = self._fitted.space.leaves("observations")
        return 128 if any(not self._fitted.is_real(leaf) for leaf in leaves) else self.draws

    def _energy(
        self, predictions: Predictions, rows: Dataset, baseline_energy: np.ndarray
    ) -> np.ndarray:
        """Return the energy score of each row, over the answers whose termination is correct.

        Rows without such an answer get the energy score of the baseline.
        """
        baseline, terminal = self._fitted, rows.columns["terminations"]
        if not baseline.scale.size:
            return np.zeros(len(rows))
        certain = predictions.shape == "certain"
        ends = predictions.columns["terminations"]
        ends = ends[:, None] if certain else ends
        weights = (ends == terminal[:, None]) * (
            1.0 if predictions.probabilities is None else predictions.probabilities
        )
        total = weights.sum(axis=1)
        found = np.where(total > 0, 0.0, baseline_energy)
        recorded = baseline.real_numbers(rows.columns)
        answers = baseline.real_numbers(predictions.columns, axes=1 if certain else 2)
        answers = answers[:, None] if certain else answers
        draws = np.maximum(total, 2) if predictions.shape == "draws" else None
        step = max(1, CHUNK_NUMBERS // (ends.shape[1] * max(*answers.shape[1:], 1)))
        for first in range(0, len(rows), step):
            part = np.arange(first, min(first + step, len(rows)))
            part = part[total[part] > 0]
            errors = answers[part] - recorded[part, None]
            errors[close(answers[part], np.broadcast_to(recorded[part, None], errors.shape))] = 0.0
            share = weights[part] / total[part, None]
            fair = 1.0 if draws is None else draws[part] / (draws[part] - 1)
            scaled = baseline.scale_numbers(errors, terminal[part])
            found[part] = energy_scores(scaled, share, fair)
        return found

    def _ceiling_rows(
        self, rows: Dataset, floor: np.ndarray, best: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the ceiling of each row (see `RowScores`) and the mask of measured ones.

        No ceiling is measured if the true environment is unknown, or cannot be restored to most
        observations. The environment is queried once about each situation with its outcome.
        """
        unmeasured = best, np.zeros(len(rows), bool)
        if self.environment is None:
            return unmeasured
        keys = self._keys(rows)
        places = {key: place for place, key in enumerate(keys) if key not in self._ceilings}
        if places:
            queried = np.array(sorted(places.values()))
            # NaN: the environment was not queried; minus infinity: it had no answer.
            self._ceilings.update(dict.fromkeys(places, np.nan))
            # With real numbers at most 1000 rows are queried: 64 draws of each take seconds, and
            # the standard error of the skill is about 0.001.
            if self._fitted.scale.size and len(queried) > 1000:
                queried = queried[np.linspace(0, len(queried) - 1, 1000).round().astype(int)]
            sample, draws = rows[queried], self._ceiling_draws
            answers = self.environment.predict(sample, seed=self.seed, draws=draws)
            ceilings = self._score_ceilings(answers, sample)
            self._ceilings.update(zip([keys[row] for row in queried], ceilings, strict=True))
        found = np.array([self._ceilings[key] for key in keys])
        measured = np.isfinite(found)
        if 2 * measured.sum() <= (~np.isnan(found)).sum():
            return unmeasured
        room = (found - floor)[measured].mean()
        estimated = np.minimum(floor + room, best)
        return np.where(measured, found, np.where(np.isnan(found), estimated, best)), measured

    def _keys(self, rows: Dataset) -> list[bytes]:
        """Return a key for the situation and the outcome of each row."""
        outcomes = self._fitted.outcome_keys(rows)
        parts = rows.situations(), outcomes, self._fitted.real_numbers(rows.columns)
        return [
            b"\0".join((situation, outcome, real.tobytes()))
            for situation, outcome, real in zip(*parts, strict=True)
        ]

    def _score_ceilings(self, answers: Predictions, rows: Dataset) -> list[float]:
        """Return the score of the true environment in each row, minus infinity without answer."""
        if answers.failure is not None:
            return [-np.inf] * len(rows)
        scores = replace(self, environment=None).row_scores(answers, rows).proper
        if answers.shape != "certain" and self._fitted.scale.size:
            scores = scores + self._undersampled(answers, rows, self._ceiling_draws)
        answered = np.True_ if answers.answered is None else answers.answered
        return [float(score) for score in np.where(answered, scores, -np.inf)]

    def _undersampled(self, answers: Predictions, rows: Dataset, draws: int) -> np.ndarray:
        """Return what few draws underestimate the log-probability of the outcomes by.

        The recorded outcome is one more draw from the true environment. The estimate of Grassberger
        (2003, "Entropy estimates from insufficient samplings") has almost no bias on average.
        """
        share, baseline = self._probability(answers, rows), self._fitted.probability(rows)
        seen = np.rint(share * draws) + 1
        signs = 0.5 * (-1.0) ** seen
        logs = digamma(seen) + signs * (digamma((seen + 1) / 2) - digamma(seen / 2))
        unbiased = np.where(seen > draws, 1.0, np.exp(logs) / (draws + 1))
        smooth = [(1 - SMOOTHING) * p + SMOOTHING * baseline for p in (unbiased, share)]
        return np.asarray(np.log(smooth[0]) - np.log(smooth[1]))


def _as_predictions(predictions: Predictions | Columns) -> Predictions:
    return Predictions(predictions) if isinstance(predictions, dict) else predictions


def _has_many_values(column: np.ndarray) -> bool:
    """Return whether a component of a column of whole numbers has many values."""
    if column.dtype.kind not in "iu":
        return False
    parts = column.reshape(len(column), -1).T
    return any(len(np.unique(part)) > MANY_VALUES for part in parts)


def _step_deviations(changes: np.ndarray, terminal: np.ndarray, real_reward: bool) -> np.ndarray:
    """Return the standard deviation of each number's change in one step, 1 for constant ones."""
    observed = changes.shape[1] - real_reward
    deviations = np.ones(changes.shape[1])
    if not terminal.all():
        deviations[:observed] = changes[~terminal, :observed].std(axis=0)
    deviations[observed:] = changes[:, observed:].std(axis=0)
    usable = np.isfinite(deviations) & (deviations > TOLERANCE)
    return np.asarray(np.where(usable, deviations, 1.0))


def _mean_distance(points: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the mean Euclidean distance of each point (points, numbers) to `others`."""
    found = np.empty(len(points))
    step = max(1, CHUNK_NUMBERS // max(others.size, 1))
    for first in range(0, len(points), step):
        differences = points[first : first + step, None] - others
        found[first : first + step] = np.sqrt((differences**2).sum(axis=2)).mean(axis=1)
    return found


def energy_scores(errors: np.ndarray, share: np.ndarray, fair: np.ndarray | float) -> np.ndarray:
    """Return the energy score E|X - y| - fair * E|X - X'| / 2 of each row.

    Args:
        errors: Answers minus recorded outcome (rows, answers, numbers).
        share: Weight of each answer (rows, answers); each row adds up to 1.
        fair: n / (n - 1) for n draws, because a draw paired with itself has distance 0; 1 for
            distributions.
    """
    distances = np.sqrt((errors**2).sum(axis=2))
    mean_distance = (share * distances).sum(axis=1)
    if errors.shape[1] == 1:
        return np.asarray(mean_distance)
    centred = errors - (share[..., None] * errors).sum(axis=1, keepdims=True)
    squares = (centred**2).sum(axis=2)
    # |a - b|^2 = |a|^2 + |b|^2 - 2ab: one matrix product instead of all differences.
    pairs = squares[:, :, None] + squares[:, None] - 2 * centred @ centred.transpose(0, 2, 1)
    between = np.sqrt(np.maximum(pairs, 0.0))
    # Equal answers leave a rounding error, whose root would be far from 0.
    between[pairs <= 1e-13 * squares.max(axis=1)[:, None, None]] = 0.0
    spread = ((between @ share[..., None])[..., 0] * share).sum(axis=1)
    return np.asarray(mean_distance - fair * spread / 2)


def _skill(scores: RowScores, episodes: np.ndarray) -> tuple[float, float | None]:
    """Return the skill, and its standard error as a ratio of sums over episodes.

    The standard error is None for a single episode. If floor and ceiling are equal, the skill is 1
    for a score that reaches them, else 0.
    """
    gains, ranges = scores.proper - scores.floor, scores.ceiling - scores.floor
    total = float(ranges.sum())
    if total <= TOLERANCE * max(len(ranges), 1):
        return float(gains.sum() >= total - TOLERANCE * len(ranges)), None
    skill = float(gains.sum() / total)
    _, episode = np.unique(episodes, return_inverse=True)
    residuals = np.bincount(episode.reshape(-1), gains - skill * ranges)
    if (count := len(residuals)) < 2:
        return skill, None
    return skill, float(np.sqrt(count / (count - 1) * (residuals**2).sum()) / total)
