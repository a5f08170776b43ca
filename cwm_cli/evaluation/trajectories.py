"""What a world model makes of whole recorded episodes, when it lives on its own predictions.

`rollouts` says in a number how far a model drifts; here are the episodes themselves.
"""

import time
from contextlib import closing
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Columns
from cwm_cli.errors import CwmError
from cwm_cli.evaluation.rollouts import lasting_steps
from cwm_cli.planning.model import EpisodeHistory

if TYPE_CHECKING:
    from cwm_cli.worlds import WorldModel

STEPS = 100
"""Steps of an episode that are followed at most."""

TOO_LONG = "it took too long"


class FollowedEpisode(NamedTuple):
    """A recorded episode, and what a model says from its first observation and its actions.

    `rows` are the recorded steps that were followed. Of the model there are `draws` episodes side
    by side: `columns` (steps, draws, ...) hold what it observed after each step, named
    `observations` as in a dataset, `rewards` and `ends`. Where it failed before the recording
    ended `failure` says why, and there are fewer steps than rows.
    """

    rows: Dataset
    draws: int
    columns: Columns
    failure: str = ""

    @property
    def steps(self) -> int:
        """How many steps the model took."""
        return len(self.columns["rewards"])

    @property
    def alive(self) -> np.ndarray:
        """Mask (steps, draws): whether the model's episode had not ended before the step."""
        ended = np.cumsum(self.columns["ends"], axis=0) - self.columns["ends"]
        mask: np.ndarray = ended == 0
        return mask


def trajectories(
    model: "WorldModel",
    dataset: Dataset,
    count: int,
    *,
    known: Dataset,
    draws: int = 1,
    seconds: float = inf,
) -> list[FollowedEpisode]:
    """Follow `count` recorded episodes of a dataset, or as many as it has, spread evenly.

    A model gets the first observation and then only the recorded actions, one after the other.
    `known` are rows that it may see whole, such as those it was fitted to: faster forms of a
    program have to agree with it there. After `seconds`, over all episodes, it is told no more.
    """
    episodes = dataset.columns["episodes"]
    firsts = np.sort(np.unique(episodes, return_index=True)[1])
    chosen = np.unique(np.linspace(0, len(firsts) - 1, min(count, len(firsts))).astype(int))
    lasting, deadline = lasting_steps(dataset), time.monotonic() + seconds
    found = list[FollowedEpisode]()
    for first in firsts[chosen].tolist():
        if time.monotonic() > deadline:
            break
        rows = dataset[np.arange(first, first + min(int(lasting[first]), STEPS))]
        found.append(_followed(model, rows, known, draws, deadline))
    return found


def _followed(
    model: "WorldModel", rows: Dataset, known: Dataset, draws: int, deadline: float
) -> FollowedEpisode:
    """Follow one episode."""
    start = EpisodeHistory((rows.row(0).observation,), (), ())
    names = [leaf.name for leaf in rows.observation_space.leaves("observations")]
    steps, failure = list[Columns](), ""
    try:
        with closing(model.imagine([start] * draws, known)) as episodes:
            for step in range(len(rows)):
                if time.monotonic() > deadline:
                    failure = TOO_LONG
                    break
                actions = rows[np.full(draws, step)].select("actions")
                after = episodes.step(actions)
                seen = {name: np.array(after.observations[name]) for name in names}
                steps.append(seen | {"rewards": after.rewards, "ends": after.terminated})
    except CwmError as error:
        failure = str(error)
    empty = {name: rows.columns[name][:0][:, None] for name in names}
    empty |= {"rewards": np.zeros((0, draws)), "ends": np.zeros((0, draws), np.bool_)}
    columns = (
        {name: np.stack([step[name] for step in steps]) for name in steps[0]} if steps else empty
    )
    return FollowedEpisode(rows, draws, columns, failure)
