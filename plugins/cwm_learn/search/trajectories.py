"""Ways through a model: actions, and what is due after each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from cwm_learn.search.rollouts import ImaginedLanes, doubted


class ImaginedWay(NamedTuple):
    """Actions (steps, ...), the observations (steps, components) due after them, the rewards.

    `ended` is whether the episode ends there. `gains` (steps, action, components) say how an
    action changes with what was observed before it, where that is known.
    """

    actions: np.ndarray
    observations: np.ndarray
    rewards: np.ndarray
    ended: bool
    gains: np.ndarray | None = None

    @property
    def value(self) -> float:
        """What it returns."""
        return float(self.rewards.sum()) if len(self.rewards) else -np.inf

    def sure(self, arrays: Mapping[str, np.ndarray]) -> float:
        """Return what it returns, less a share beyond all that was visited."""
        if not len(self.rewards):
            return -np.inf
        return float(doubted(self.rewards, self.observations.T, arrays).sum())


NO_WAY = ImaginedWay(np.empty(0), np.empty(0), np.empty(0), ended=False)


def played(lanes: ImaginedLanes, start: np.ndarray, actions: np.ndarray) -> ImaginedWay:
    """Return the way that actions lead, up to the end of the episode."""
    now, seen, rewards, ended = start[:, None], [], [], False
    for action in actions:
        now, reward, ends, lost = lanes.step(now, np.moveaxis(action[None], 0, -1))
        if lost[0]:
            break
        seen.append(now[:, 0])
        rewards.append(float(reward[0]))
        if ends[0]:
            ended = True
            break
    return ImaginedWay(actions[: len(seen)], np.array(seen), np.array(rewards), ended)
