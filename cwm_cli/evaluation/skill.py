"""Skill: how likely a model held what came about, between what is usual and what can be reached.

A model says what may follow, and how likely that is; a proper score is highest, on average, for
the one that says the truth (Gneiting and Raftery, 2007, "Strictly proper scoring rules").
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.data.spaces import Columns, Space
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
)
from cwm_cli.worlds.model import Predictions, WorldModel

SMOOTHING = 0.001
"""The weight of what is usual beside what a model says: one surprise is costly and not fatal."""

CEILING_DRAWS = 1000
"""How often the true environment is drawn from where outcomes can be counted."""

MOST_STOOD = 1000
"""Rows at which the true environment is stood where real numbers vary: it draws 64 times at each,
which takes seconds, and leaves the skill a standard error of about 0.001."""

MOST_USUAL = 512
"""Train rows that stand for what is usual after an action, where there are real numbers."""

ROOM = 1 << 21
"""Numbers that are held at once while distances are summed."""

STANDARD_ERRORS = 2.0
"""By how much the skill may miss 1 and the ceiling counts as reached."""

LEFT_OPEN = 0.01
"""Skill that the ceiling itself may be off by: a thousand draws know a probability of a third to
0.015, and the situations that come up most often decide."""

CEILING_ERROR = 0.05
"""A skill that exceeds 1 by its error and this much refutes the ceiling: what the observations
hide decides, and a program that remembers it does better than the environment restored to them."""

LEAST_SKILL = 0.9
"""Below this no standard error, wide as it may be with few episodes, makes the ceiling reached."""


class RowScores(NamedTuple):
    """What each row scores: `likelihood` in nats, `energy` (less is better), and both together.

    `floor` is the score of the usual outcomes in the same row, `best` the score of a certain and
    right model. `ceiling` is the score of the true environment if `measured`. If it was not asked
    about a row, to save time, the ceiling is estimated from the other rows; if it had no answer,
    or if there is none to ask, the ceiling is `best`, so that no wrong row is left out.
    In `impossible` rows the model listed all outcomes, and the recorded one is missing.
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
        """Mask of rows that ought to be exact: the environment is certain, or had no answer."""
        certain: np.ndarray = self.ceiling >= self.best - TOLERANCE
        return certain

    @property
    def proper(self) -> np.ndarray:
        """The score of each row."""
        proper: np.ndarray = self.likelihood - self.energy
        return proper


@dataclass(frozen=True)
class Usual:
    """What usually follows each action, in train rows: what is said by who looks at nothing else.

    Whole numbers and text are counted together, as one outcome; real numbers are a sample of what
    followed, or of how much changed, whichever scores better. An action that train rows do not
    show is followed by what follows any.
    """

    space: Space
    real_reward: bool
    classes: np.ndarray
    scale: np.ndarray
    changes: bool
    counts: Mapping[bytes, Counter[bytes]]
    samples: Mapping[tuple[bytes, bool], np.ndarray]

    @classmethod
    def of(cls, train: Dataset, classes: tuple[float, ...]) -> Self:
        """Count what followed each action in the train rows."""
        real_reward = len(classes) > MOST_CLASSES
        space, terminal = train.observation_space, train.columns["terminations"]
        found = cls(space, real_reward, np.array(classes), np.ones(1), False, {}, {})
        after, before = found.reals(train.columns), found.reals(train.columns, "")
        found = replace(found, scale=_spread(after - before, terminal, real_reward))
        actions, outcomes = found.actions(train), found.outcomes(train)
        counts: dict[bytes, Counter[bytes]] = {}
        for action, outcome in zip(actions, outcomes, strict=True):
            for key in {action, b""}:
                counts.setdefault(key, Counter())[outcome] += 1
        found = replace(found, counts=counts)
        if not found.scale.size:
            return found
        ways = [replace(found, changes=changes) for changes in (True, False)]
        ways = [replace(way, samples=way._sampled(train, actions)) for way in ways]
        return min(ways, key=lambda way: float(way.energy(train).mean()))

    def reals(self, columns: Columns, before: str = "next_", axes: int = 1) -> np.ndarray:
        """Return the real numbers of outcomes side by side (rows, ..., numbers).

        With another `before` those of the observations, as if they were outcomes without reward.
        """
        lead = columns["rewards"].shape[:axes]
        leaves = self.space.leaves(f"{before}observations")
        parts = [
            columns[leaf.name].reshape(*lead, -1).astype(np.float64)
            for leaf in leaves
            if leaf.space.is_float
        ]
        if self.real_reward:
            rewards = columns["rewards"] if before else np.zeros(lead)
            parts.append(rewards.reshape(*lead, 1))
        return np.concatenate(parts, axis=-1) if parts else np.zeros((*lead, 0))

    def same(self, columns: Columns, rows: Dataset) -> np.ndarray:
        """Tell where one answer is what followed in all that is no real number."""
        terminal = rows.columns["terminations"]
        right: np.ndarray = columns["terminations"] == terminal
        if not self.real_reward:
            right = right & close(columns["rewards"], rows.columns["rewards"])
        for name in self._discrete(rows):
            equal = columns[name] == rows.columns[name]
            right &= terminal | equal.reshape(len(rows), -1).all(axis=1)
        return right

    def outcomes(self, rows: Dataset) -> list[bytes]:
        """Return a key for all that is no real number of what followed each row."""
        columns, terminal = rows.columns, rows.columns["terminations"]
        names = self._discrete(rows)
        rewards = self._rewards(columns["rewards"])
        keys = []
        for row, end in enumerate(terminal.tolist()):
            seen = () if end else (columns[name][row] for name in names)
            parts = (str(v).encode() if v.dtype.kind == "U" else v.tobytes() for v in seen)
            keys.append(b"\0".join([b"end" if end else b"", rewards[row], *parts]))
        return keys

    def actions(self, rows: Dataset) -> list[bytes]:
        """Return a key for the action of each row, the same for all where they are real numbers."""
        leaves = list(rows.action_space.leaves("actions"))
        if any(leaf.space.is_float for leaf in leaves):
            return [b""] * len(rows)
        columns = [rows.columns[leaf.name] for leaf in leaves]
        return [
            b"\0".join(str(column[row]).encode() for column in columns) for row in range(len(rows))
        ]

    def probability(self, rows: Dataset) -> np.ndarray:
        """Return how likely what followed each row is; what never did counts as one row more."""
        chances = np.empty(len(rows))
        for row, (action, outcome) in enumerate(
            zip(self.actions(rows), self.outcomes(rows), strict=True)
        ):
            counted = self.counts.get(action, self.counts[b""])
            times, total = counted[outcome], counted.total()
            chances[row] = times / total if times else 1 / (total + 1)
        return chances

    def energy(self, rows: Dataset) -> np.ndarray:
        """Return the energy score of what is usual in each row."""
        found = np.zeros(len(rows))
        followed = self._followed(rows)
        terminal = rows.columns["terminations"]
        groups: dict[tuple[bytes, bool], list[int]] = {}
        for row, key in enumerate(zip(self.actions(rows), terminal.tolist(), strict=True)):
            groups.setdefault(key, []).append(row)
        for (action, end), places in groups.items():
            none = np.zeros((1, followed.shape[1]))
            pooled = self.samples.get((b"", end), none)
            sample = self.samples.get((action, end), pooled)
            apart = _mean_distance(followed[places], sample)
            found[places] = apart - _mean_distance(sample, sample).mean() / 2
        return found

    def scaled(self, numbers: np.ndarray, terminal: np.ndarray) -> np.ndarray:
        """Return real numbers in units of their spread; what is seen after the end is nothing."""
        seen = numbers.shape[-1] - self.real_reward
        found: np.ndarray = numbers / self.scale
        found[..., :seen][terminal] = 0.0
        np.nan_to_num(found, copy=False, nan=FURTHEST, posinf=FURTHEST, neginf=-FURTHEST)
        return found

    def _followed(self, rows: Dataset) -> np.ndarray:
        """Return the scaled real numbers of what followed, or of how much they changed."""
        numbers = self.reals(rows.columns)
        if self.changes:
            numbers = numbers - self.reals(rows.columns, "")
        return self.scaled(numbers, rows.columns["terminations"])

    def _sampled(
        self, train: Dataset, actions: list[bytes]
    ) -> dict[tuple[bytes, bool], np.ndarray]:
        """Return a sample of what followed each action, apart where the episode ended."""
        followed, terminal = self._followed(train), train.columns["terminations"]
        done, found = np.array(actions, dtype=object), {}
        for action in self.counts:
            for end in (False, True):
                mask = (terminal == end) & ((done == action) | (action == b""))
                if mask.any():
                    some = followed[mask]
                    chosen = np.linspace(0, len(some) - 1, min(len(some), MOST_USUAL))
                    found[action, end] = some[chosen.round().astype(int)]
        return found

    def _discrete(self, rows: Dataset) -> list[str]:
        """Return the columns of what follows that hold no real numbers."""
        leaves = self.space.leaves("next_observations")
        names = [leaf.name for leaf in leaves if not leaf.space.is_float]
        return [*names, VALID] if rows.has_valid_actions else names

    def _rewards(self, rewards: np.ndarray) -> list[bytes]:
        """Return a key for each reward; nothing where they are real numbers."""
        if self.real_reward:
            return [b""] * len(rewards)
        nearest = np.abs(rewards[:, None] - self.classes).argmin(axis=1)
        known = close(self.classes[nearest], rewards)
        values = np.where(known, self.classes[nearest], rewards)
        return [f"{value:.6g}".encode() for value in values.tolist()]


@dataclass(frozen=True)
class SkillMetric(AccuracyMetric):
    """How likely a model held what came about: 0 for what is usual, 1 for the true environment.

    An outcome has two parts. What is whole numbers, text, a reward of few values or the end is
    scored together, as one outcome, by the logarithm of its probability, which is smoothed towards
    what is usual after the action (weight 0.001). What is real numbers is scored by the energy
    score of their joint distribution given whether the episode ended (for a single number that is
    the continuous ranked probability score), in units of their usual change of one step, and
    subtracted. After the end nothing is observed, so there only the reward and the end are scored.

    The sum is proper: on average no model scores more than the one that says the truth. First the
    probability of a part and then the distribution of another given that part are each scored
    properly, and from the smoothing nobody gains more than 0.001 nats.

    The skill is (score - floor) / (ceiling - floor), summed over rows. Where no environment is
    known that could tell what can be reached, the ceiling is to be certain and right. The accuracy
    stands beside it; it says what is exact.
    """

    draws: ClassVar[int] = 64

    usual: Usual | None = field(default=None, repr=False, compare=False)
    environment: WorldModel | None = field(default=None, repr=False, compare=False)
    seed: int = 0
    _ceilings: dict[bytes, float] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, train: Dataset) -> Self:
        """Learn from the train rows what is usual."""
        found = super().of(train)
        return replace(found, usual=Usual.of(train, found.classes))

    def knowing(self, environment: WorldModel, *, seed: int = 0) -> Self:
        """Return the metric that measures against what the true environment reaches."""
        return replace(self, environment=environment, seed=seed, _ceilings={})

    def words(self, rows: Dataset) -> str:
        """Return how programs are scored, for a prompt."""
        real = any(leaf.space.is_float for leaf in rows.observation_space.leaves("observations"))
        numbers = (
            " Real numbers are scored by the distance of the predicted distribution (energy "
            "score): draws that spread too much or too little cost."
            if real or self._known.real_reward
            else ""
        )
        return (
            "The score is the mean log-probability of the recorded results, so return true "
            "probabilities and call nothing impossible that can happen."
            f"{numbers} All transitions weigh the same."
        )

    def score(self, predictions: Predictions | Columns, rows: Dataset) -> Score:
        """Score predictions of all rows of a dataset."""
        said, scores = _whole(predictions), self.row_scores(predictions, rows)
        skill, stderr = _skill(
            scores.proper, scores.floor, scores.ceiling, rows.columns["episodes"]
        )
        measured, limit = bool(scores.measured.any()), 1.0 + STANDARD_ERRORS * (stderr or 0.0)
        if measured and skill > limit + CEILING_ERROR:
            return replace(self, environment=None).score(predictions, rows)
        open_gap = self._open_gap(said, scores, skill, stderr, rows) if measured else None
        real, checked = self._known.scale.size > 0, calibration(said, rows)
        found = {
            "skill": min(skill, limit),
            "skill_stderr": stderr,
            "reached": None if open_gap is None else not open_gap,
            "open_gap": open_gap or None,
            "proper": float(scores.proper.mean()),
            "proper_floor": float(scores.floor.mean()),
            "proper_ceiling": float(scores.ceiling.mean()) if measured else None,
            "log_likelihood": float(scores.likelihood.mean()),
            "energy": float(scores.energy.mean()) if real else None,
            "log_evidence": None if real else _per_episode(scores.likelihood, rows),
            "impossible": int(scores.impossible.sum()),
            "uncertain": self.uncertain(rows),
            "brier": checked.brier,
            "uniformity": checked.uniformity,
        }
        return self._exact.score(predictions, rows).model_copy(update=found)

    def _open_gap(
        self,
        said: Predictions,
        scores: RowScores,
        skill: float,
        stderr: float | None,
        rows: Dataset,
    ) -> str:
        """Return why the ceiling is not reached, "" if it is.

        A standard error alone does not decide: an error in a single episode widens it by as much
        as it lowers the skill.
        """
        if impossible := int(scores.impossible.sum()):
            outcomes = "outcome has" if impossible == 1 else "outcomes have"
            return f"{impossible:,} recorded {outcomes} probability 0"
        unlikely = (self.losses(said, rows) > 0) | (scores.likelihood < np.log(0.5))
        if wrong := int((scores.certain & unlikely).sum()):
            rows_are = "row without chance is" if wrong == 1 else "rows without chance are"
            return f"{wrong:,} {rows_are} predicted wrongly"
        if not _reached(skill, stderr):
            return "the skill is below the ceiling by more than its error"
        return ""

    def failed(self, rows: Dataset) -> Score:
        """Score a model that failed: it has no skill."""
        return self._exact.failed(rows).model_copy(update={"skill": 0.0})

    def floor(self, rows: Dataset) -> float:
        """Return the skill of what is usual."""
        return 0.0

    def losses(self, predictions: Predictions | Columns, rows: Dataset) -> np.ndarray:
        """Return what each row lacks: nothing where the model held possible what followed.

        Where it draws real numbers, that is within their range and as far again on either side.
        """
        said = _whole(predictions)
        if said.shape == "certain":
            return super().losses(predictions, rows)
        if said.shape == "draws":
            said = replace(said, columns=self._met(said.columns, rows))
        terminal = rows.columns["terminations"]
        least = np.full(len(rows), np.inf)
        for columns, shares in said.answers():
            losses = match(columns, rows).losses(terminal)
            least = np.where(shares > 0, np.minimum(least, losses), least)
        return least if said.answered is None else np.where(said.answered, least, 1.0)

    def reach(self, environment: WorldModel, rows: Dataset, *, seed: int = 0) -> Ceiling | None:
        """Score what the true environment says where it is stood at each observation."""
        said = (
            environment.predict(rows, seed=seed, draws=self._ceiling_draws) if len(rows) else None
        )
        if said is None or said.failure is not None:
            return None
        told = self.knowing(environment, seed=seed)
        told._ceilings.update(zip(told._keys(rows), self._ceiling(said, rows), strict=True))
        unanswered = 0 if said.answered is None else int((~said.answered).sum())
        return Ceiling(told.score(said, rows), unanswered)

    def row_scores(self, predictions: Predictions | Columns, rows: Dataset) -> RowScores:
        """Score each row, with the floor and the ceiling of each."""
        said, usual = _whole(predictions), self._known
        chance, usual_energy = usual.probability(rows), np.zeros(len(rows))
        if usual.scale.size:
            usual_energy = usual.energy(rows)
        held = np.zeros(len(rows))
        for columns, shares in said.answers():
            held += shares * usual.same(columns, rows)
        energy = self._energy(said, rows, usual_energy)
        if said.answered is not None:
            held = np.where(said.answered, held, chance)
            energy = np.where(said.answered, energy, usual_energy)
        likelihood = np.log((1 - SMOOTHING) * np.minimum(held, 1.0) + SMOOTHING * chance)
        floor, best = np.log(chance) - usual_energy, np.log(1 - SMOOTHING + SMOOTHING * chance)
        ceiling, measured = self._ceiling_of(rows, floor, best)
        impossible = (held == 0) & (said.shape != "draws")
        return RowScores(likelihood, energy, floor, best, ceiling, measured, impossible)

    def uncertain(self, rows: Dataset) -> int:
        """Count the rows of which the same observation and action also came out otherwise."""
        usual = self._known
        numbers = usual.scaled(usual.reals(rows.columns), rows.columns["terminations"])
        met: dict[bytes, set[bytes]] = {}
        situations = rows.situations()
        for key, outcome, real in zip(situations, usual.outcomes(rows), numbers, strict=True):
            met.setdefault(key, set()).add(outcome + real.round(4).tobytes())
        return sum(len(met[key]) > 1 for key in situations)

    @property
    def _known(self) -> Usual:
        assert self.usual is not None, "a metric is learned from train rows"
        return self.usual

    @property
    def _exact(self) -> AccuracyMetric:
        """The metric of what is exact, which stands beside it."""
        return AccuracyMetric(self.classes, self.counts, self.valid)

    @property
    def _ceiling_draws(self) -> int:
        """How often the true environment is drawn from: real numbers as often as a model."""
        return self.draws if self._known.scale.size else CEILING_DRAWS

    def _energy(self, said: Predictions, rows: Dataset, otherwise: np.ndarray) -> np.ndarray:
        """Return the energy score of each row, of the answers that end where the recording does.

        Where there is none, that of what is usual.
        """
        usual, terminal = self._known, rows.columns["terminations"]
        if not usual.scale.size:
            return np.zeros(len(rows))
        certain = said.shape == "certain"
        ends = said.columns["terminations"]
        ends = ends[:, None] if certain else ends
        weights = (ends == terminal[:, None]) * (
            1.0 if said.probabilities is None else said.probabilities
        )
        total = weights.sum(axis=1)
        found = np.where(total > 0, 0.0, otherwise)
        followed = usual.reals(rows.columns)
        answers = usual.reals(said.columns, axes=1 if certain else 2)
        answers = answers[:, None] if certain else answers
        several = np.maximum(total, 2) if said.shape == "draws" else None
        step = max(1, ROOM // (ends.shape[1] * max(*answers.shape[1:], 1)))
        for first in range(0, len(rows), step):
            part = np.arange(first, min(first + step, len(rows)))
            part = part[total[part] > 0]
            apart = answers[part] - followed[part, None]
            apart[close(answers[part], np.broadcast_to(followed[part, None], apart.shape))] = 0.0
            share = weights[part] / total[part, None]
            fair = 1.0 if several is None else several[part] / (several[part] - 1)
            found[part] = energy_scores(usual.scaled(apart, terminal[part]), share, fair)
        return found

    def _met(self, columns: Columns, rows: Dataset) -> Columns:
        """Put what was recorded where it lies within what was drawn, or little beside."""
        names = [leaf.name for leaf in rows.observation_space.leaves("next_observations")]
        found = dict(columns)
        for name in [*names, *(["rewards"] if self._known.real_reward else [])]:
            drawn, recorded = columns[name], rows.columns[name]
            if drawn.dtype.kind == "f":
                low, high = drawn.min(axis=1), drawn.max(axis=1)
                beside = high - low
                within = (recorded >= low - beside) & (recorded <= high + beside)
                found[name] = np.where(within[:, None], recorded[:, None], drawn)
        return found

    def _ceiling_of(
        self, rows: Dataset, floor: np.ndarray, best: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the ceiling of each row, see `RowScores`, and the mask of measured ones.

        No ceiling is measured if the true environment is unknown, or cannot be restored to most
        observations. It is asked once about each situation with its outcome.
        """
        unmeasured = best, np.zeros(len(rows), bool)
        if self.environment is None:
            return unmeasured
        keys = self._keys(rows)
        places = {key: place for place, key in enumerate(keys) if key not in self._ceilings}
        if places:
            asked = np.array(sorted(places.values()))
            self._ceilings.update(dict.fromkeys(places, np.nan))  # not asked about
            if self._known.scale.size and len(asked) > MOST_STOOD:
                asked = asked[np.linspace(0, len(asked) - 1, MOST_STOOD).round().astype(int)]
            draws, some = self._ceiling_draws, rows[asked]
            said = self.environment.predict(some, seed=self.seed, draws=draws)
            for place, ceiling in zip(asked, self._ceiling(said, some), strict=True):
                self._ceilings[keys[place]] = ceiling
        found = np.array([self._ceilings[key] for key in keys])
        measured = np.isfinite(found)
        if 2 * measured.sum() <= (~np.isnan(found)).sum():
            return unmeasured
        room = (found - floor)[measured].mean()
        estimated = np.minimum(floor + room, best)
        return np.where(measured, found, np.where(np.isnan(found), estimated, best)), measured

    def _keys(self, rows: Dataset) -> list[bytes]:
        """Return a key for each situation and what followed it."""
        parts = rows.situations(), self._known.outcomes(rows), self._known.reals(rows.columns)
        return [
            b"\0".join((situation, outcome, real.tobytes()))
            for situation, outcome, real in zip(*parts, strict=True)
        ]

    def _ceiling(self, said: Predictions, rows: Dataset) -> list[float]:
        """Score what the true environment says; endlessly little where it has no answer."""
        if said.failure is not None:
            return [-np.inf] * len(rows)
        scores = replace(self, environment=None).row_scores(said, rows).proper
        answered = np.True_ if said.answered is None else said.answered
        return [float(score) for score in np.where(answered, scores, -np.inf)]


def _whole(predictions: Predictions | Columns) -> Predictions:
    """Return predictions of one answer for each row as any others."""
    return Predictions(predictions) if isinstance(predictions, dict) else predictions


def _spread(changes: np.ndarray, terminal: np.ndarray, real_reward: bool) -> np.ndarray:
    """Return how much each real number varies in one step, 1 where it does not."""
    seen = changes.shape[1] - real_reward
    spread = np.ones(changes.shape[1])
    if len(changes[~terminal]):
        spread[:seen] = changes[~terminal, :seen].std(axis=0)
    spread[seen:] = changes[:, seen:].std(axis=0)
    usable = np.isfinite(spread) & (spread > TOLERANCE)
    found: np.ndarray = np.where(usable, spread, 1.0)
    return found


def _mean_distance(points: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return for each point how far others are from it on average."""
    found = np.empty(len(points))
    step = max(1, ROOM // max(others.size, 1))
    for first in range(0, len(points), step):
        apart = points[first : first + step, None] - others
        found[first : first + step] = np.sqrt((apart**2).sum(axis=2)).mean(axis=1)
    return found


def energy_scores(apart: np.ndarray, share: np.ndarray, fair: np.ndarray | float) -> np.ndarray:
    """Return energy scores of answers (rows, answers, numbers), given as what they miss by.

    `fair` makes up for pairs of one draw with itself, which are no distance apart.
    """
    far = np.sqrt((apart**2).sum(axis=2))
    missed = (share * far).sum(axis=1)
    if apart.shape[1] == 1:
        return np.asarray(missed)
    middle = apart - (share[..., None] * apart).sum(axis=1, keepdims=True)
    squares = (middle**2).sum(axis=2)
    pairs = squares[:, :, None] + squares[:, None] - 2 * middle @ middle.transpose(0, 2, 1)
    between = np.sqrt(np.maximum(pairs, 0.0))
    between[pairs <= 1e-13 * squares.max(axis=1)[:, None, None]] = 0.0  # what rounding left
    spread = ((between @ share[..., None])[..., 0] * share).sum(axis=1)
    found: np.ndarray = missed - fair * spread / 2
    return found


def _skill(
    proper: np.ndarray, floor: np.ndarray, ceiling: np.ndarray, episodes: np.ndarray
) -> tuple[float, float | None]:
    """Return how much of the way from the floor to the ceiling was gone, and its standard error.

    The latter is over episodes, of a ratio of sums (None for a single one).
    """
    gained, room = proper - floor, ceiling - floor
    way = float(room.sum())
    if way <= TOLERANCE * max(len(room), 1):  # what is usual is all that can be known
        return float(gained.sum() >= way - TOLERANCE * len(room)), None
    skill = float(gained.sum() / way)
    _, place = np.unique(episodes, return_inverse=True)
    missed = np.bincount(place.reshape(-1), gained - skill * room)
    if len(missed) < 2:
        return skill, None
    return skill, float(np.sqrt(len(missed) / (len(missed) - 1) * (missed**2).sum()) / way)


def _reached(skill: float, stderr: float | None) -> bool:
    """Tell whether the ceiling is within standard errors."""
    return skill >= LEAST_SKILL and skill + STANDARD_ERRORS * (stderr or 0.0) >= 1 - LEFT_OPEN


def _per_episode(likelihood: np.ndarray, rows: Dataset) -> float:
    """Return the mean log-evidence of an episode: the likelihood of all that came about in it."""
    return float(likelihood.sum() / len(np.unique(rows.columns["episodes"])))
