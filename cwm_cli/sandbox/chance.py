"""What a program says of chance, in its process: outcomes, draws, and whether they fit."""

import math
from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.spaces import Columns, Space
from cwm_cli.sandbox.answers import Complaint, brief, recorder, reward_of
from cwm_cli.sandbox.job import MOST_OUTCOMES

TOLERANCE = 1e-6
"""By how much what a step answers may differ from the outcome that it is, absolutely plus
relatively: the same arithmetic in another order, and less than the metric forgives."""

SURPRISE = 6.0
"""Standard deviations by which outcomes may come more or less often than told: by chance one of a
thousand programs would see that in none of a million outcomes."""

ENOUGH = 10.0
"""The least variance of a count for that: below, it is not spread as the deviations say."""


class PossibleAnswer(NamedTuple):
    """What can follow, and how likely it is; `answer` has the parts that a step answers."""

    probability: float
    answer: tuple[Any, ...]


def outcomes_of(told: Any, *, with_valid: bool = False) -> list[PossibleAnswer]:
    """Accept what `outcomes` returned; the probabilities sum to 1 afterwards."""
    if not isinstance(told, Iterable) or isinstance(told, str | bytes | dict | np.ndarray):
        raise Complaint(f"outcomes should return a list of outcomes, got {brief(told)}")
    some = list(islice(told, MOST_OUTCOMES + 1))
    if len(some) > MOST_OUTCOMES:
        words = f"outcomes told more than {MOST_OUTCOMES} outcomes: draw in step, from self.rng"
        raise Complaint(words, "wrong_probabilities")
    if not some:
        raise Complaint("outcomes told none: something has to follow", "wrong_probabilities")
    for each in some:
        if not isinstance(each, tuple | list) or len(each) != 4 + with_valid:
            wanted = (
                "(probability, observation, reward, terminated" + ", valid actions" * with_valid
            )
            raise Complaint(f"an outcome should be {wanted}), got {brief(each)}")
    chances = _shares([each[0] for each in some])
    return [PossibleAnswer(p, tuple(each[1:])) for p, each in zip(chances, some, strict=True)]


def _shares(told: list[Any]) -> list[float]:
    """Return probabilities that sum to 1."""
    numbers = [
        float(each) if type(each) is float else reward_of(each, "a probability") for each in told
    ]
    for number in numbers:
        if not math.isfinite(number) or number < 0:
            words = f"a probability is {number:g}: none may be below 0, and all have to be finite"
            raise Complaint(words, "wrong_probabilities")
    most = max(numbers)
    if not most:
        words = "the probabilities of the outcomes sum to 0: something has to follow"
        raise Complaint(words, "wrong_probabilities")
    total = sum(number / most for number in numbers)
    return [number / most / total for number in numbers]


class DrawGenerator:
    """The generator that a program finds as `self.rng`, and that begins anew with every draw.

    It is an attribute of the class, so that it is there before an environment is made, and copies
    of one share it. Each draw begins at a state that the trusted side has drawn.
    """

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)
        self._rng = np.random.Generator(self._bits)
        self._state: Any = self._bits.state

    def put(self, made_by: Any, environment: Any = None) -> None:
        """Put it where a program finds it, instead of one that an environment has of its own."""
        if isinstance(made_by, type):
            made_by.rng = self._rng  # type: ignore[attr-defined]
        getattr(environment, "__dict__", {}).pop("rng", None)

    def begin(self, start: bytes) -> None:
        """Begin a draw at a state of `START_BYTES` bytes."""
        self._state["state"]["state"] = int.from_bytes(start, "little")
        self._bits.state = self._state  # a generator of its own for each takes ten times as long


class ComparedSteps:
    """Holds what `step` answers against the outcomes that were told for the same question.

    Each answer has to be one of them; where steps are `drawn`, all of them together as often as
    was told, place by place in the lists.
    """

    def __init__(
        self, space: Space, slots: Columns, action_space: Space | None = None, *, drawn: bool
    ) -> None:
        self._answer = {name: np.zeros_like(column[:1]) for name, column in slots.items()}
        self._record = recorder(space, self._answer, action_space)
        self._slots, self._drawn = slots, drawn
        self._seen = np.zeros((3, MOST_OUTCOMES))
        self._steps = 0

    def add(self, result: Any, chances: np.ndarray, first: int) -> None:
        """Compare a step with outcomes that lie in the slots from a place on."""
        self._record(0, result)
        alike, last = chances > 0, first + len(chances)
        for name, answer in self._answer.items():
            if name in _LASTING or not self._answer["terminations"][0]:
                alike &= _near(answer[0], self._slots[name][first:last])
        if not alike.any():
            words = f"step answered {repr(result)[:200]}, which is none of the outcomes told"
            raise Complaint(words, "contradiction")
        if self._drawn:
            shares = np.where(alike, chances, 0.0)
            observed, expected, variance = self._seen[:, : len(chances)]
            observed += shares / shares.sum()
            expected += chances
            variance += chances * (1 - chances)
            self._steps += 1

    def judge(self) -> None:
        """Complain of drawn steps that lead to some outcomes too often or too rarely."""
        observed, expected, variance = self._seen
        off = np.abs(observed - expected) / np.sqrt(np.maximum(variance, ENOUGH))
        place = int(np.where(variance >= ENOUGH, off, 0.0).argmax())
        if variance[place] >= ENOUGH and off[place] > SURPRISE:
            raise Complaint(
                f"step draws otherwise than outcomes tells: of {self._steps} steps "
                f"{observed[place]:.0f} led to outcome {place + 1} of those told, instead of "
                f"about {expected[place]:.0f}",
                "contradiction",
            )


_LASTING = ("rewards", "terminations")
"""What counts of an answer that ends an episode."""


def _near(answer: np.ndarray, told: np.ndarray) -> np.ndarray:
    """Return which outcomes (outcomes, ...) have a part that agrees with an answer."""
    alike: np.ndarray = np.array(told == answer)
    if not alike.all() and told.dtype.kind == "f":
        with np.errstate(invalid="ignore", over="ignore"):
            near = np.abs(told - answer) <= TOLERANCE + TOLERANCE * np.abs(told)
        both = np.isnan(told) & np.isnan(answer)
        alike = np.array(alike | (near & np.isfinite(told)) | both)
    return alike if alike.ndim == 1 else np.array(alike.reshape(len(told), -1).all(axis=1))
