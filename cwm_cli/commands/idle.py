"""The action that does nothing: zero for real numbers, else the best constant action.

An environment with discrete actions does not state which action does nothing. So the idle action
is measured: it is the action with the best mean return if it is played in every step. In the
trial, it is at least as good as an action without effect. Real parts of an action are zero in
each of the tried actions.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from math import prod
from typing import Any

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import space_of
from cwm_cli.envs.tasks import Task, reward_number, seeds_of

TRIAL_STEPS = 5_000
"""Steps of all trial episodes of an environment together: less than a second in most."""

FEWEST_TRIALS, MOST_TRIALS = 3, 30
"""Trial episodes of each action; more than the fewest only if they are short."""

ALL_TRIALS = 200
"""Maximum number of trial episodes of all actions, because some environments reset slowly."""

MOST_ACTIONS = 50
"""Of more discrete actions, as many with equal distances are tried."""


def can_idle(actions: Space, valid: Callable[[Any], Sequence[int] | None] | None) -> bool:
    """Return whether an action can be played in every step.

    Args:
        actions: The action space.
        valid: Returns the valid actions in a state; None if every action is valid everywhere.
    """
    return valid is None and all(leaf.space.kind != "text" for leaf in actions.leaves(""))


def idle_action(task: Task) -> Any:
    """Return the action that does nothing: zero, or the best constant action.

    Continuous actions are zero, within the bounds of the space. For discrete actions, each action
    is played in every step of at least 3 and at most 30 trial episodes. All trial episodes
    together have at most 5,000 steps. The action with the highest mean return is returned, of
    equal ones the lowest. Of more than 50 actions, 50 with equal distances are tried. Actions of
    several discrete parts are counted, the last part first; real parts are zero. The trial
    episodes are not among the episodes that `cwm plan` plays.

    Args:
        task: An environment whose actions can be played in every step (see `can_idle`).

    Returns:
        An action of the space.
    """
    with closing(task.make()) as env:
        space = space_of(env.action_space, "actions")
        actions = _tried_actions(space)
        if len(actions) == 1:
            return actions[0]
        count = len(actions)
        trials = max(FEWEST_TRIALS, min(MOST_TRIALS, ALL_TRIALS // count))
        returns = [_mean_return(env, task, each, trials, TRIAL_STEPS // count) for each in actions]
    return actions[int(np.argmax(returns))]


def _tried_actions(space: Space) -> list[Any]:
    """Return up to `MOST_ACTIONS` combinations of the discrete parts; boxes are zero."""
    leaves = [leaf.space for leaf in space.leaves("")]
    components = [
        (leaf.kind, *pair) for leaf in leaves for pair in zip(leaf.low, leaf.high, strict=True)
    ]
    sizes = [1 if kind == "box" else int(high - low) + 1 for kind, low, high in components]
    combinations = prod(sizes)
    count = min(MOST_ACTIONS, combinations)
    rows = np.zeros((count, len(sizes)))
    for row in range(count):
        number = row * (combinations - 1) // max(count - 1, 1)
        for place, (kind, low, high) in reversed([*enumerate(components)]):
            number, rest = divmod(number, sizes[place])
            rows[row, place] = np.clip(0.0, low, high) if kind == "box" else low + rest
    return [space.cast(value) for value in space.unflatten(rows.reshape(count, *space.flat_shape))]


def _mean_return(env: Any, task: Task, action: Any, trials: int, steps: int) -> float:
    """Return the mean return of a constant action in trial episodes of `steps` steps in total."""
    limit = min(task.limit, steps // FEWEST_TRIALS)
    returns = list[float]()
    while len(returns) < trials and steps >= limit:
        # The choice must not see the initial states of the result, so it uses other seeds.
        env.reset(seed=seeds_of(task.seed, 1_000_000 + len(returns))[0])
        returns.append(0.0)
        for _ in range(limit):
            steps -= 1
            _, reward, terminated, truncated, _ = env.step(action)
            returns[-1] += reward_number(reward)
            if terminated or truncated:
                break
    return sum(returns) / len(returns)
