"""Rollouts of many trees, side by side."""

from typing import NamedTuple, Self

import numpy as np

from cwm_cli.planning.model import Batch, Counter


class Rollouts(NamedTuple):
    """What is known of each lane: its tree, its next action, where these end, and its return.

    `factors` are those of the next rewards, 0 where the rollout has ended.
    """

    trees: np.ndarray
    places: np.ndarray
    ends: np.ndarray
    totals: np.ndarray
    factors: np.ndarray

    def keep(self, lanes: np.ndarray) -> Self:
        """Return some lanes."""
        return type(self)(*(column.take(lanes) for column in self))

    def join(self, other: Self) -> Self:
        """Return these lanes and others after them."""
        return type(self)(*map(np.concatenate, zip(self, other, strict=True)))

    def play(
        self,
        batch: Batch,
        proposals: np.ndarray,
        discount: float,
        *,
        counter: Counter,
        most_ended: float,
    ) -> None:
        """Take actions until a share of the rollouts has ended, counting each step of each.

        `proposals` are the actions that the places stand for.
        """
        going = most = len(self.places)
        soonest, step = int((self.ends - self.places).min(initial=0)), 0
        least = (1 - most_ended) * most
        _, places, ends, totals, factors = self
        while going and (going == most or going > least):
            rewards, terminated = batch.advance(proposals.take(places, mode="clip"))
            counter[0] += going
            step += 1
            totals += factors * rewards
            factors *= discount
            places += 1
            if terminated.any():
                factors[terminated] = 0.0
            if step >= soonest:
                factors[places >= ends] = 0.0
            going = int(np.count_nonzero(factors))
