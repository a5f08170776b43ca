"""Scores of predictions: what each row weighs, and what a score is read against."""

from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from cwm_cli.data.dataset import VALID, Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.errors import CwmError
from cwm_cli.evaluation.matching import TOLERANCE, Matches, close, match

MetricKind = Literal["accuracy", "paper"]

MOST_CLASSES = 20
"""With more distinct rewards than this, all rows weigh the same."""


class Score(BaseModel):
    """How right predictions are, in [0, 1].

    `accuracy` is weighted; `observation` (None without a row that goes on),
    `reward` and `terminated` are plain means of each part, and so is
    `valid_actions` where programs have to name them. `exact` is the
    share of rows right in every part. `floor` is the accuracy of a program
    that says "nothing changes, the most common reward, never terminated" (and
    the most common valid actions), and `normalised` is the accuracy above it
    (None when the floor is 1). `paper` is the published score, where it was
    asked for.
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

    @property
    def value(self) -> float:
        """The score that counts: the published one where it was asked for."""
        return self.accuracy if self.paper is None else self.paper

    @model_serializer(mode="wrap")
    def _plain(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what was not asked for and what there is not."""
        data: dict[str, Any] = handler(self)
        optional = [name for name in ("paper", "valid_actions") if getattr(self, name) is None]
        return {name: value for name, value in data.items() if name not in optional}


@dataclass(frozen=True)
class Metric:
    """How rows are weighed, learned from the train rows.

    Rewards that are equal within the tolerance form a class, given by its
    centre and its number of train rows. With at most 20 classes each weighs
    the same in total: rare events decide whether a model is worth planning with.
    `valid` is the most common mask of valid actions.
    """

    kind: MetricKind
    classes: tuple[float, ...]
    counts: tuple[int, ...]
    valid: tuple[bool, ...] = ()

    @classmethod
    def of(cls, train: Dataset, kind: MetricKind = "accuracy") -> Self:
        """Learn the reward classes of the train rows."""
        if not len(train):
            raise CwmError("the dataset has no train rows: record some with `cwm collect`")
        rewards = train.columns["rewards"]
        classes = _centres(np.unique(rewards))
        counts = np.bincount(_nearest(rewards, np.array(classes)), minlength=len(classes))
        return cls(kind, classes, tuple(counts.tolist()), _most_common_mask(train))

    @property
    def most_common_reward(self) -> float:
        """The reward that the floor predicts."""
        return self.classes[int(np.argmax(self.counts))]

    def weights(self, dataset: Dataset) -> np.ndarray:
        """Return what each row weighs; an unseen reward weighs as the rarest one."""
        rewards = dataset.columns["rewards"]
        if len(self.classes) > MOST_CLASSES:
            return np.ones(len(rewards))
        classes, counts = np.array(self.classes), np.array(self.counts)
        nearest = _nearest(rewards, classes)
        seen = close(classes[nearest], rewards)
        weights: np.ndarray = 1.0 / np.where(seen, counts[nearest], counts[counts > 0].min())
        return weights

    def score(
        self, predictions: Columns, dataset: Dataset, matches: Matches | None = None
    ) -> Score:
        """Score predictions of all rows of a dataset; `matches` if they are compared already."""
        matches = match(predictions, dataset) if matches is None else matches
        paper = self._paper(predictions, matches, dataset) if self.kind == "paper" else None
        return self._scored(matches, dataset, paper)

    def failed(self, dataset: Dataset) -> Score:
        """Score a program that failed: nothing is right."""
        nothing = np.zeros(len(dataset))
        paper = 0.0 if self.kind == "paper" else None
        valid = nothing if dataset.has_valid_actions else None
        return self._scored(Matches(nothing, nothing, nothing, valid), dataset, paper)

    def _scored(self, matches: Matches, dataset: Dataset, paper: float | None) -> Score:
        """Put a score together."""
        terminal = dataset.columns["terminations"]
        weights = self.weights(dataset)
        losses, valid = matches.losses(terminal), matches.valid_actions
        accuracy = _share(losses, weights)
        floor = _share(match(self._nothing_changes(dataset), dataset).losses(terminal), weights)
        return Score(
            accuracy=accuracy,
            observation=None if terminal.all() else float(matches.observation[~terminal].mean()),
            reward=float(matches.reward.mean()),
            terminated=float(matches.terminated.mean()),
            exact=float((losses == 0).mean()),
            floor=floor,
            normalised=None if floor == 1 else (accuracy - floor) / (1 - floor),
            transitions=len(dataset),
            paper=paper,
            valid_actions=None if valid is None else float(valid[~terminal].mean()),
        )

    def _nothing_changes(self, dataset: Dataset) -> Columns:
        """Predict the observation itself, the most common reward, never terminated."""
        columns = {
            f"next_{name}": column for name, column in dataset.select("observations").items()
        }
        columns["rewards"] = np.full(len(dataset), self.most_common_reward)
        columns["terminations"] = np.zeros(len(dataset), dtype=np.bool_)
        if dataset.has_valid_actions:
            columns[VALID] = np.broadcast_to(np.array(self.valid), dataset.columns[VALID].shape)
        return columns

    def _paper(self, predictions: Columns, matches: Matches, dataset: Dataset) -> float:
        """Score as published (Dainese et al., 2024).

        Time limits count as the end, a reward counts when the double equals
        the one stored as float32, each exact reward value weighs the same
        in total however many there are, and some of the valid actions are enough.
        """
        stored = dataset.columns["rewards"].astype(np.float32).astype(np.float64)
        done = dataset.columns["terminations"] | dataset.columns["truncations"]
        _, value, count = np.unique(stored, return_inverse=True, return_counts=True)
        published = Matches(
            matches.observation,
            predictions["rewards"] == stored,
            predictions["terminations"] == done,
            _some_actions(predictions, dataset) if dataset.has_valid_actions else None,
        )
        return _share(published.losses(done), 1.0 / count[value.reshape(-1)])


def _share(losses: np.ndarray, weights: np.ndarray) -> float:
    """Return the weighted mean of what is right; from the losses, so that perfect is exactly 1."""
    return 1.0 - float((weights * losses).sum() / weights.sum())


def _some_actions(predictions: Columns, dataset: Dataset) -> np.ndarray:
    """Return where valid actions are named and no others."""
    named, allowed = predictions[VALID], dataset.columns[VALID]
    return np.logical_and((named <= allowed).all(axis=1), named.any(axis=1))


def _most_common_mask(train: Dataset) -> tuple[bool, ...]:
    """Return which actions are valid most often, nothing where all always are."""
    if not train.has_valid_actions:
        return ()
    masks, counts = np.unique(train.columns[VALID], axis=0, return_counts=True)
    return tuple(masks[np.argmax(counts)].tolist())


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
