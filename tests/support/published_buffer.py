"""A replay buffer in the format of the paper."""

import pickle

import numpy as np

from cwm_cli.commands.recording import record
from cwm_cli.registry import environment


def published(protocol: int) -> bytes:
    """Return a published buffer."""
    rows = list(record(environment("CartPole-v1"), episodes=2, test_episodes=0, policy="random"))
    starts = {}
    for index, row in enumerate(rows):
        starts.setdefault(row.episode, index)
    fields = {
        "obs": [row.observation for row in rows],
        "next_obs": [row.next_observation for row in rows],
        "actions": [row.action for row in rows],
        "rewards": np.array([row.reward for row in rows], np.float32),
        "dones": np.array([row.terminated for row in rows]),
        "traj_starts": np.array([starts[row.episode] for row in rows]),
        "extra_info": [{} for _ in rows],
        "idx": len(rows),
    }
    return pickle.dumps(fields, protocol)
