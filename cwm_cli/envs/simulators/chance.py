"""Random generators of numpy and of the standard library, with common functions."""

import pickle
import random
from typing import Any

import numpy as np

Generator = np.random.Generator | np.random.RandomState | random.Random

GLOBAL: tuple[Generator, ...] = (random.random.__self__, np.random.random_sample.__self__)  # type: ignore[attr-defined]
"""The generators behind the functions of `random` and `numpy.random`."""


def is_generator(value: object) -> bool:
    """Return whether a value is a random generator whose state can be saved."""
    return isinstance(value, Generator) and not isinstance(value, random.SystemRandom)


def save_state(generator: Generator) -> Any:
    """Return the state of a generator; later draws do not change it."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state()
    return generator.getstate()


def fingerprint(generator: Generator) -> bytes:
    """Return bytes that stay equal until the generator draws a number."""
    return pickle.dumps(save_state(generator))


def restore(generator: Generator, state: Any) -> None:
    """Restore the state of a generator."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.setstate(state)


def reseed(generator: Generator, rng: np.random.Generator) -> None:
    """Give a generator a new random state; equal states of `rng` give equal results."""
    if isinstance(generator, np.random.Generator):
        kind = type(generator.bit_generator)
        generator.bit_generator.state = kind(int(rng.integers(2**63))).state
    else:
        generator.seed(int(rng.integers(2**32)))
