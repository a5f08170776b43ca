"""What came about otherwise than a world model predicts: how many steps, and in which part.

A planner finds the few situations in which a model is wrong in its favour, so that what is
predicted rightly of recorded rows says little of those where plans lead.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel, ConfigDict

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Columns, Space
from cwm_cli.evaluation.metric import match
from cwm_cli.evaluation.skill import energy_scores
from cwm_cli.worlds.model import Predictions, WorldModel

DRAWS = 8
"""How often a step that was predicted wrongly is predicted: a program that draws from two equally
likely outcomes shows it with a chance of 0.99."""

MOST_DRAWN = 100
"""Wrong steps of an episode that are predicted so often, spread evenly over the episode."""

REFUTED = 0.5
"""A program is refuted if more than this share of its predictions are uninformative."""

GUESS = 0.5
"""A wrong prediction is informative if its error is less than this share of the error of a guess.

Programs that approximate an environment, or that have wrong constants (`--shift`), are informative
although they predict no real number exactly.
"""

BEYOND = 0.75
"""Share of steps beyond all draws, in a component, that refutes a program that draws.

An outcome with the distribution of the draws is beyond all nine draws in 2 of 10 steps.
"""

WORSE_THAN_A_GUESS = 1.5
"""Draws with an energy score above this multiple of the error of a guess refute a program.

On average the right distribution scores no worse than any guess; one with three times the right
standard deviation has 1.04 times the error of "nothing changes". Draws over a wide range have many
times that error, although the outcome is among them.
"""

LEAST_STEPS = 10
"""With fewer steps no program is refuted, and no draws are: they may be wrong by chance."""

KINDS = ("observation", "reward", "terminated", "valid_actions")


class Mismatches(BaseModel):
    """How many steps a model predicted otherwise than they came about.

    Of all compared `steps` the `wrong` ones differ in some part, and each part has a count of its
    own. Observations after the end do not count. Of the wrong steps `chance`
    have several recorded outcomes, and for `drawn` ones the program draws the next observation, so
    that no single answer is right. A wrong prediction is `uninformative` if it is little better
    than a guess without any model. Draws are so only if they are bad as a distribution.
    `unanswered` steps could not be compared, because the program failed.
    """

    model_config = ConfigDict(frozen=True)

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
        """How many steps a better program could have predicted."""
        return self.wrong - self.chance - self.drawn

    @property
    def refutes(self) -> bool:
        """Whether most predictions were uninformative: plans in the program were no plans."""
        failed = self.uninformative + self.unanswered
        steps = self.steps + self.unanswered
        return steps >= LEAST_STEPS and failed > REFUTED * steps

    @property
    def kinds(self) -> dict[str, int]:
        """How many steps differ in a part, for those in which some do."""
        return {kind: getattr(self, kind) for kind in KINDS if getattr(self, kind)}


@dataclass(frozen=True)
class Comparing:
    """Compares episodes with what a model predicts for each of their steps.

    `known` are rows in which the same situation may have come out otherwise, if there are any.
    Where an environment is `noisy`, because noise is added to it, no prediction counts as
    uninformative: the right ones may be as far off as a guess.
    """

    model: WorldModel
    observation_space: Space
    action_space: Space
    known: Dataset | None = None
    seed: int = 0
    noisy: bool = False

    def rows(self, steps: Sequence[Transition]) -> Dataset:
        """Return steps as a dataset."""
        return Dataset.of(
            steps, observation_space=self.observation_space, action_space=self.action_space
        )

    def compare(self, rows: Dataset) -> Mismatches:
        """Predict the steps of an episode, each from what was observed, and count."""
        [found] = self.compare_all([rows])
        return found

    def compare_all(self, episodes: Sequence[Dataset]) -> list[Mismatches]:
        """Predict the steps of several episodes at once; where that fails, one by one."""
        if not episodes:
            return []
        together = episodes[0].concatenate(*episodes[1:])
        predictions = self.model.predict(together, seed=self.seed, draws=DRAWS)
        if predictions.failure is None:  # a program could look ahead in rows that lie near
            predictions = self.model.audit(together, predictions, seed=self.seed)
        if predictions.failure is not None:
            if len(episodes) > 1:
                return list(map(self.compare, episodes))
            return [Mismatches(unanswered=len(together))]
        rows = np.split(np.arange(len(together)), np.cumsum(list(map(len, episodes)))[:-1])
        return [
            self._counted(own, predictions[some]) for own, some in zip(episodes, rows, strict=True)
        ]

    def _counted(self, rows: Dataset, predictions: Predictions) -> Mismatches:
        """Count the steps of an episode that were predicted otherwise."""
        parts = wrong_parts(predictions, rows)
        wrong = np.logical_or.reduce(list(parts.values()))
        drawn, unlikely = self._drawn(rows, wrong, predictions)
        chance = self._by_chance(rows, wrong)
        uninformative = uninformative_rows(predictions, rows, parts) & ~chance
        if not unlikely:
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

    def _drawn(
        self, rows: Dataset, wrong: np.ndarray, predictions: Predictions
    ) -> tuple[np.ndarray, bool]:
        """Return a mask of the wrong rows that the model itself draws, and whether it draws badly.

        One that tells all that can follow is wrong where something else did.
        """
        drawn, places = np.zeros(len(rows), bool), np.flatnonzero(wrong)
        if predictions.shape == "draws":
            every = [(name, each[places]) for name, each in predictions.columns.items()]
        elif predictions.shape == "outcomes" or self.model.remembers or not len(places):
            return drawn, False
        else:
            if len(places) > MOST_DRAWN:
                places = places[np.linspace(0, len(places) - 1, MOST_DRAWN).astype(int)]
            again = self.model.predict(rows[np.tile(places, DRAWS)], seed=self.seed)
            columns = again.columns if again.failure is None else {}
            every = [
                (name, np.stack(np.split(column, DRAWS), axis=1))
                for name, column in columns.items()
            ]
        for _, draws in every:
            several = draws.reshape(len(places), draws.shape[1], -1)
            drawn[places] |= (several != several[:, :1]).any(axis=(1, 2))
        examined = drawn[places]
        some = rows[places[examined]]
        unlikely = len(some) >= LEAST_STEPS and any(
            _beyond(draws[examined], some.columns[name]) > BEYOND
            or _energy_ratio(draws[examined], some, name) > WORSE_THAN_A_GUESS
            for name, draws in every
            if draws.dtype.kind in "iuf"
        )
        if 2 * examined.sum() > len(places):  # the rows that were not examined are like these
            drawn |= wrong
        return drawn, bool(unlikely)

    def _by_chance(self, rows: Dataset, wrong: np.ndarray) -> np.ndarray:
        """Return a mask of the wrong rows whose situation was met with another outcome.

        To a model that remembers it was not the same situation.
        """
        if self.model.remembers or not wrong.any():
            return np.zeros(len(rows), bool)
        every = _bare(rows)
        if self.known is not None:
            every = every.concatenate(_bare(self.known))
        outcomes: dict[bytes, set[bytes]] = {}
        situations = every.situations()
        results = every.select("next_observations", "rewards", "terminations").values()
        for row, key in enumerate(situations):
            result = b"".join(np.ascontiguousarray(column[row]).tobytes() for column in results)
            outcomes.setdefault(key, set()).add(result)
        several = [len(outcomes[key]) > 1 for key in situations[: len(rows)]]
        return np.asarray(wrong & several)


def wrong_parts(predictions: Predictions, rows: Dataset) -> dict[str, np.ndarray]:
    """Return for each part a mask of the rows in which it came about otherwise.

    Of a model that gives several answers to a row, the one that is right in most parts counts.
    """
    goes_on = ~rows.columns["terminations"]
    parts: dict[str, np.ndarray] = {}
    for columns, shares in predictions.answers():
        found = match(columns, rows)._asdict()
        wrong = {
            kind: (found[kind] < 1)
            & (goes_on if kind in ("observation", "valid_actions") else True)
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

    The guess for an observation is the one before, for a reward the mean of the rewards, and
    that an episode goes on. Errors of real numbers count in mean changes of that component, others
    as 1 each. Of several answers the nearest counts.
    """
    columns, goes_on = rows.columns, ~rows.columns["terminations"]
    leaves = list(rows.observation_space.leaves("next_observations"))
    before = {leaf.name: columns[leaf.name.removeprefix("next_")] for leaf in leaves}
    rewards = columns["rewards"]

    def error(answer: Columns) -> np.ndarray:
        """Return the distance of an answer from the observation of each row."""
        total = np.zeros(len(rows))
        for name, space in leaves:
            after, found = (each.reshape(len(rows), -1) for each in (columns[name], answer[name]))
            if space.is_float:
                changes = np.abs(after - before[name].reshape(len(rows), -1)).mean(axis=0)
                distance = np.abs(found - after) / np.where(changes > 0, changes, 1.0)
            else:
                distance = (found != after).astype(float)
            total += np.nan_to_num(distance, nan=np.inf).sum(axis=1)
        return total

    nearest, off = np.full(len(rows), np.inf), np.full(len(rows), np.inf)
    for answer, shares in predictions.answers():
        given = shares > 0
        nearest = np.minimum(nearest, np.where(given, error(answer), np.inf))
        off = np.minimum(off, np.where(given, np.abs(answer["rewards"] - rewards), np.inf))
    blind = wrong["observation"] & goes_on & ~(nearest < GUESS * error(before))
    blind |= wrong["reward"] & ~(off < GUESS * np.abs(rewards - rewards.mean()))
    return np.asarray(blind | wrong["terminated"])


def _beyond(draws: np.ndarray, found: np.ndarray) -> float:
    """Return the largest share, over components, of rows (n, draws, ...) beyond all their draws."""
    rows = len(found)
    low, high = draws.min(axis=1).reshape(rows, -1), draws.max(axis=1).reshape(rows, -1)
    flat = found.reshape(rows, -1)
    shares = ((flat < low) | (flat > high)).mean(axis=0)
    return float(shares.max(initial=0.0))


def _energy_ratio(draws: np.ndarray, rows: Dataset, name: str) -> float:
    """Return the largest energy score of draws (n, draws, ...) of a column, over components.

    The unit is the mean error of a guess: the observation before, or the mean reward. Terminal
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
    apart = draws.astype(float).reshape(len(rows), count, -1)[going] - found[going][:, None]
    share, fair = np.full(apart.shape[:2], 1 / count), count / max(count - 1, 1)
    numbers = range(apart.shape[2])
    energy = [energy_scores(apart[..., [number]], share, fair).mean() for number in numbers]
    error = np.abs(guess - found)[going].mean(axis=0)
    return float((energy / np.where(error > 0, error, 1.0)).max(initial=0.0))


def _bare(rows: Dataset) -> Dataset:
    """Return rows without what not all rows have."""
    names = ("observations", "actions", "next_observations", "rewards", "terminations")
    return Dataset(rows.select(*names), rows.observation_space, rows.action_space)
