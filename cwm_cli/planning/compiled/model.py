"""A program as a model of machine code."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from cwm_cli.planning.compiled.lowering import Code
from cwm_cli.planning.compiled.tools import tools
from cwm_cli.planning.model import Batch, Step, Unbatched
from cwm_cli.planning.traced.model import Traced


class CompiledModel:
    """Does what a traced program does; what takes many steps runs in machine code.

    Where the code fails, the traced program does all of it again.
    """

    deterministic = True

    def __init__(self, traced: Traced, code: Code, size: int) -> None:
        self._traced = traced
        self._code = code
        self._size = size
        self.action_space = traced.action_space
        self.counter = traced.counter
        self.used = traced.used
        self.batch: Batch | None = traced.batch
        self.stand, self.here = traced.stand, traced.here

    def step(self, action: Any) -> Step:
        """Take an action."""
        return self._traced.step(action)

    def play(self, actions: Iterable[Any], discount: float = 1.0) -> float:
        """Take actions until they or the episode end; return the discounted sum of rewards."""
        state = self._traced.here().state
        if type(actions) is not bytes or state is None:
            return self._traced.play(actions, discount)
        numbers, room = np.frombuffer(bytearray(actions), np.uint8), np.array([*state, 0.0])
        total, steps = tools().kernels.play(
            self._code.advance, room, numbers, len(numbers), discount, np.empty(1)
        )
        if steps < 0:
            return self._traced.play(actions, discount)
        self.counter[0] += int(steps)
        self.used.add("compiled")
        return float(total)

    def returns(self, states: Sequence[Any], plans: np.ndarray) -> np.ndarray:
        """Return the sums of rewards of plans from each state."""
        flat = np.ascontiguousarray(plans, np.float64).reshape(*plans.shape[:3], -1)
        totals, room = np.empty(plans.shape[:2]), np.empty(self._size + 1)
        try:
            starts = np.stack([self._numbers(state) for state in states])
        except Unbatched:
            return self._traced.returns(states, plans)
        steps = tools().kernels.returns(self._code.advance, starts, flat, totals, room)
        if steps < 0:
            return self._traced.returns(states, plans)
        self.counter[0] += steps
        self.used.add("compiled")
        return totals

    def _numbers(self, state: Any) -> np.ndarray:
        """Return a state as the code takes it."""
        self._traced.stand(state)
        values = self._traced.here().state
        if values is None:
            raise Unbatched("there is no state to start from")
        return np.array([*values, 0.0])
