"""A program that always runs: nothing changes."""

from collections import Counter

from cwm_cli.data.dataset import Dataset

_PROGRAM = '''class Environment:
    """A model in which nothing changes, for transitions that no rule was found for.

    The reward is the most common one of {count} transitions, and no episode ends.
    """

    def __init__(self):
        self.observation = None

    def set_state(self, observation):
        """Stand at another observation."""
        self.observation = observation

    def step(self, action):
        """Predict that nothing changes."""
        return self.observation, {reward!r}, False
'''


def unchanged(data: Dataset) -> str:
    """Return the program for a dataset of any spaces."""
    rewards = Counter(data.columns["rewards"].tolist())
    reward = rewards.most_common(1)[0][0] if rewards else 0.0
    return _PROGRAM.format(count=len(data), reward=reward)
