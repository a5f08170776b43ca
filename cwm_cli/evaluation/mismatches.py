"""Comparison of played episodes with the predictions of a world model.

A planner exploits errors of a model that are in its favour. Therefore accuracy on recorded rows
says little about the situations that plans reach.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from pydantic import BaseModel

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Columns, Space
from cwm_cli.evaluation.metric import match, varies
from cwm_cli.evaluation.skill import energy_scores
from cwm_cli.worlds.model import Predictions, WorldModel

DRAWS = 8
"""Number of predictions of a wrong step. A program that draws from two equally likely outcomes
returns both with a probability of 0.99."""

LEAST_STEPS = 10
"""Fewer steps refute neither a program nor its draws, because they may be wrong by chance."""

KINDS = ("observation", "reward", "terminated", "valid_actions")


class Mismatches(BaseModel, frozen=True):
    """Numbers of steps that a model predicted wrongly.

    Attributes:
        steps: Compared steps.
        wrong: Steps with an error in any part.
        observation: Steps with a wrong observation; observations after the end do not count.
        reward: Steps with a wrong reward.
        terminated: Steps with a wrong termination.
        valid_actions: Steps with wrong valid actions.
        chance: Wrong steps whose situation has several recorded outcomes.
        drawn: Wrong steps whose outcome the program draws, so that no single answer is right.
        uninformative: Wrong steps whose prediction is little better than a guess without a model.
            Draws count only if they are bad as a distribution.
        unanswered: Steps that could not be compared because the program failed.
    """

    steps: int = 0
    wrong: int = 0
    observation: int = 0
    reward: int = 0
    terminated: int = 0
    valid_actions: int = 0
    chance: int = 0
    drawn: int = 0
    uninformative: int = 0
    unanswered: int = 0

    def plus(self, other: "Mismatches") -> "Mismatches":
        """Return the sum of both."""
        pairs = other.model_dump().items()
        return Mismatches(**{name: getattr(self, name) + count for name, count in pairs})

    @property
    def mistakes(self) -> int:
        """Number of wrong steps that a better program could have predicted."""
        return self.wrong - self.chance - self.drawn

    @property
    def right_share(self) -> float:
        """The share of steps without a mistake."""
        steps = self.steps + self.unanswered
        return 1 - (self.mistakes + self.unanswered) / steps if steps else 1.0

    @property
    def refutes(self) -> bool:
        """Whether more than half of the predictions were uninformative, so that plans were too."""
        failed = self.uninformative + self.unanswered
        steps = self.steps + self.unanswered
        return steps >= LEAST_STEPS and failed > 0.5 * steps

    @property
    def kinds(self) -> dict[str, int]:
        """Number of wrong steps by part, without the parts that are always correct."""
        return {kind: getattr(self, kind) for kind in KINDS if getattr(self, kind)}


@dataclass(frozen=True)
class Comparing:
    """A comparison of episodes with one-step predictions of a model.

    `known` are recorded rows, which may show other outcomes of the same situation. If the
    environment is `noisy` (`--noise`), no prediction counts as uninformative, because correct
    predictions may be as wrong as a guess. If it `stops`, episodes end early if predictions fail.
    """

    model: WorldModel
    observation_space: Space
    action_space: Space
    known: Dataset | None = None
    seed: int = 0
    noisy: bool = False
    stops: bool = False

    @cached_property
    def recorded_share(self) -> float:
        """The share of correct predictions of the first 500 known rows, 0 without rows."""
        if self.known is None or not len(self.known):
            return 0.0
        return self.compare(self.known[np.arange(min(500, len(self.known)))]).right_share

    def fails(self, found: Mismatches) -> bool:
        """Return whether play has less than half of the share of correct predictions of records.

        A program that predicts most recorded rows wrongly does not fail: its plans may be as good
        as its accuracy lets expect.
        """
        return self.recorded_share >= 0.5 and found.right_share < self.recorded_share / 2

    def rows(self, steps: Sequence[Transition]) -> Dataset:
        """Return steps as a dataset."""
        return Dataset.of(
            steps, observation_space=self.observation_space, action_space=self.action_space
        )

    def compare(self, rows: Dataset) -> Mismatches:
        """Count the wrong one-step predictions of an episode."""
        [found] = self.compare_all([rows])
        return found

    def compare_all(self, episodes: Sequence[Dataset]) -> list[Mismatches]:
        """Compare several episodes in one batch, or one by one if the batch fails."""
        if not episodes:
            return []
        together = episodes[0].concatenate(*episodes[1:])
        predictions = self.model.predict(together, seed=self.seed, draws=DRAWS)
        if predictions.failure is None:
            # The audit finds a program that copies outcomes from consecutive rows of the batch.
            predictions = self.model.audit(together, predictions, seed=self.seed)
        if predictions.failure is not None:
            if len(episodes) > 1:
                return list(map(self.compare, episodes))
            return [Mismatches(unanswered=len(together))]
        rows = np.split(np.arange(len(together)), np.cumsum(list(map(len, episodes)))[:-1])
        return [
            self._count(episode, predictions[own])
            for episode, own in zip(episodes, rows, strict=True)
        ]

    def _count(self, rows: Dataset, predictions: Predictions) -> Mismatches:
        parts = wrong_parts(predictions, rows)
        wrong = np.logical_or.reduce(list(parts.values()))
        drawn, is_bad = self._find_drawn(rows, wrong, predictions)
        chance = self._find_chance(rows, wrong)
        uninformative = uninformative_rows(predictions, rows, parts) & ~chance
        if not is_bad:
            uninformative &= ~drawn
        if self.noisy:
            uninformative[:] = False
        return Mismatches(
            steps=len(rows),
            wrong=int(wrong.sum()),
            chance=int((chance & ~drawn).sum()),
            drawn=int(drawn.sum()),
            uninformative=int(uninformative.sum()),
            **{kind: int(part.sum()) for kind, part in parts.items()},
        )

    def _find_drawn(
        self, rows: Dataset, wrong: np.ndarray, predictions: Predictions
    ) -> tuple[np.ndarray, bool]:
        """Return a mask of the wrong rows that the model draws, and whether its draws are bad.

        A model that lists all outcomes is simply wrong if another one occurs.
        """
        drawn, places = np.zeros(len(rows), bool), np.flatnonzero(wrong)
        if predictions.shape == "draws":
            draws = {name: column[places] for name, column in predictions.columns.items()}
        elif predictions.shape == "outcomes" or self.model.remembers or not len(places):
            return drawn, False
        else:
            if len(places) > 100:  # a sample, spread evenly over the episode
                places = places[np.linspace(0, len(places) - 1, 100).astype(int)]
            # The same row several times in a batch shows whether the program draws.
            again = self.model.predict(rows[np.tile(places, DRAWS)], seed=self.seed)
            columns = again.columns if again.failure is None else {}
            draws = {
                name: np.stack(np.split(column, DRAWS), axis=1) for name, column in columns.items()
            }
        for column in draws.values():
            differs = column != column[:, :1]
            drawn[places] |= differs.any(axis=tuple(range(1, differs.ndim)))
        is_drawn = drawn[places]
        sample = rows[places[is_drawn]]
        # An outcome with the distribution of the draws is beyond all nine draws in 2 of 10 steps.
        max_beyond = 0.75
        # On average the right distribution scores no worse than any guess; one with three times the
        # right standard deviation has 1.04 times the error of "nothing changes". Draws over a wide
        # range have many times that error, although the outcome is among them.
        max_energy_ratio = 1.5
        is_bad = len(sample) >= LEAST_STEPS and any(
            _share_beyond(column[is_drawn], sample.columns[name]) > max_beyond
            or _energy_ratio(column[is_drawn], sample, name) > max_energy_ratio
            for name, column in draws.items()
            if column.dtype.kind in "iuf"
        )
        if 2 * is_drawn.sum() > len(places):  # assume the same of the rows outside the sample
            drawn |= wrong
        return drawn, bool(is_bad)

    def _find_chance(self, rows: Dataset, wrong: np.ndarray) -> np.ndarray:
        """Return a mask of the wrong rows whose situation has several recorded outcomes.

        For a model with memory, equal observations are not equal situations.
        """
        if self.model.remembers or not wrong.any():
            return np.zeros(len(rows), bool)
        recorded = _transition_columns(rows)
        if self.known is not None:
            recorded = recorded.concatenate(_transition_columns(self.known))
        results = recorded.select("next_observations", "rewards", "terminations").values()
        outcomes = (
            b"".join(np.ascontiguousarray(column[row]).tobytes() for column in results)
            for row in range(len(recorded))
        )
        return np.asarray(wrong & varies(recorded.situations(), outcomes)[: len(rows)])


def wrong_parts(predictions: Predictions, rows: Dataset) -> dict[str, np.ndarray]:
    """Return for each part a mask of the rows with a wrong prediction.

    If a model gives several answers to a row, the answer with the fewest wrong parts counts.
    """
    going = ~rows.columns["terminations"]
    parts: dict[str, np.ndarray] = {}
    for columns, shares in predictions.answers():
        found = match(columns, rows)._asdict()
        wrong = {
            kind: (found[kind] < 1) & (going if kind in ("observation", "valid_actions") else True)
            for kind in KINDS
            if found[kind] is not None
        }
        if not parts:
            parts = wrong
            continue
        fewer = np.sum(list(wrong.values()), axis=0) < np.sum(list(parts.values()), axis=0)
        better = fewer & (shares > 0)
        parts = {kind: np.where(better, wrong[kind], parts[kind]) for kind in parts}
    return parts


def uninformative_rows(
    predictions: Predictions, rows: Dataset, wrong: dict[str, np.ndarray]
) -> np.ndarray:
    """Return a mask of rows with a wrong part that is little better than a guess.

    The guess is the previous observation, the mean reward, and no termination. Errors of real
    numbers are in units of the mean change of the component; other wrong components count 1. If
    there are several answers, the nearest one counts.
    """
    columns, going = rows.columns, ~rows.columns["terminations"]
    leaves = list(rows.observation_space.leaves("next_observations"))
    before = {leaf.name: columns[leaf.name.removeprefix("next_")] for leaf in leaves}
    rewards = columns["rewards"]

    def error(answer: Columns) -> np.ndarray:
        """Return the distance of an answer from the next observation of each row."""
        total = np.zeros(len(rows))
        for name, space in leaves:
            after = columns[name].reshape(len(rows), -1)
            found = answer[name].reshape(len(rows), -1)
            if space.is_float:
                changes = np.abs(after - before[name].reshape(len(rows), -1)).mean(axis=0)
                distance = np.abs(found - after) / np.where(changes > 0, changes, 1.0)
            else:
                distance = (found != after).astype(float)
            total += np.nan_to_num(distance, nan=np.inf).sum(axis=1)
        return total

    nearest, reward_error = np.full(len(rows), np.inf), np.full(len(rows), np.inf)
    for answer, shares in predictions.answers():
        exists, off = shares > 0, np.abs(answer["rewards"] - rewards)
        nearest = np.minimum(nearest, np.where(exists, error(answer), np.inf))
        reward_error = np.minimum(reward_error, np.where(exists, off, np.inf))
    # Programs that approximate an environment, or that have wrong constants (`--shift`), have less
    # than half the error of a guess, although they predict no real number exactly.
    max_share = 0.5
    # Negated comparisons, so that an error of NaN counts as uninformative.
    bad = wrong["observation"] & going & ~(nearest < max_share * error(before))
    bad |= wrong["reward"] & ~(reward_error < max_share * np.abs(rewards - rewards.mean()))
    return np.asarray(bad | wrong["terminated"])


def _share_beyond(draws: np.ndarray, found: np.ndarray) -> float:
    """Return the largest share, over components, of rows (n, draws, ...) beyond all their draws."""
    shares = ((found < draws.min(axis=1)) | (found > draws.max(axis=1))).mean(axis=0)
    return float(shares.max(initial=0.0))


def _energy_ratio(draws: np.ndarray, rows: Dataset, name: str) -> float:
    """Return the largest energy score of draws (n, draws, ...) of a column, over components.

    The unit is the mean error of a guess: the previous observation, or the mean reward. Terminal
    rows have no next observation.
    """
    found = rows.columns[name].astype(float).reshape(len(rows), -1)
    guess = np.full_like(found, found.mean())
    going = np.ones(len(rows), bool)
    if name.startswith("next_"):
        guess = rows.columns[name.removeprefix("next_")].astype(float).reshape(len(rows), -1)
        going = ~rows.columns["terminations"]
    if not going.any():
        return 0.0
    count = draws.shape[1]
    errors = draws.astype(float).reshape(len(rows), count, -1)[going] - found[going][:, None]
    share, fair = np.full(errors.shape[:2], 1 / count), count / max(count - 1, 1)
    numbers = range(errors.shape[2])
    energy = [energy_scores(errors[..., [number]], share, fair).mean() for number in numbers]
    error = np.abs(guess - found)[going].mean(axis=0)
    return float((energy / np.where(error > 0, error, 1.0)).max(initial=0.0))


def _transition_columns(rows: Dataset) -> Dataset:
    """Return rows with the columns that all datasets have."""
    names = ("observations", "actions", "next_observations", "rewards", "terminations")
    return Dataset(rows.select(*names), rows.observation_space, rows.action_space)
