"""Whether a form of a program does what the program does."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from cwm_cli.planning.model import Model, Step, Unbatched
from cwm_cli.planning.traced.model import Traced
from cwm_cli.translation.scalar import Translated

TOLERANCE = 1e-5
"""Largest difference, relative to the size of a number or to 1."""

TRAJECTORIES, STEPS = 4, 30

_SELDOM = 0.1

Form = TypeVar("Form", Traced, Translated)


def verified_traced(
    traced: Form, program: Model, observations: Sequence[Any], actions: Sequence[Any]
) -> Form:
    """Return a traced program that does on real rows what the program does, or refuse it."""
    try:
        _compare(*(list(_single(model, observations, actions)) for model in (traced, program)))
        for start in range(0, len(actions), max(1, len(actions) // TRAJECTORIES)):
            plan = actions[start : start + STEPS]
            _compare_trajectories(traced, program, observations[start], plan)
    except Unbatched:
        raise
    except Exception as error:  # a program raises what it likes
        raise Unbatched(f"it fails on a real observation: {error}") from error
    if traced.redone > _SELDOM * len(observations):
        raise Unbatched("plain arithmetic fails too often")
    return traced


def _single(model: Model, observations: Sequence[Any], actions: Sequence[Any]) -> Iterator[Step]:
    """Take one step from each observation."""
    for observation, action in zip(observations, actions, strict=True):
        model.stand(observation)
        yield model.step(action)


def _compare_trajectories(
    traced: Model, program: Model, observation: Any, actions: Sequence[Any]
) -> None:
    """Take many steps from one observation, one by one and at once."""
    trajectories = [list(_steps(model, observation, actions)) for model in (traced, program)]
    _compare(*trajectories)
    traced.stand(observation)
    if not _close(traced.play(actions), sum(step.reward for step in trajectories[1])):
        raise Unbatched("the returns differ")


def _steps(model: Model, observation: Any, actions: Sequence[Any]) -> Iterator[Step]:
    """Take steps until the episode ends."""
    model.stand(observation)
    for action in actions:
        step = model.step(action)
        yield step
        if step.terminated:
            return


def _compare(here: Sequence[Step], there: Sequence[Step]) -> None:
    """Refuse steps that differ."""
    if [step.terminated for step in here] != [step.terminated for step in there]:
        raise Unbatched("the ends of episodes differ")
    if not _close(*([step.reward for step in steps] for steps in (here, there))):
        raise Unbatched("the rewards differ")
    if not _close(*([step.observation for step in steps] for steps in (here, there))):
        raise Unbatched("the observations differ")


def _close(one: Any, other: Any) -> bool:
    """Whether numbers are as good as equal."""
    one, other = np.asarray(one), np.asarray(other)
    return bool(np.all(np.abs(one - other) <= TOLERANCE * np.maximum(1.0, np.abs(other))))
