"""Loops around a compiled model; importing this module compiles them, which takes seconds.

A model is the address of its function `advance(state, action)`, so that the
loops are compiled once for all models. They hold no lock of the interpreter.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

import numpy as np

from cwm_cli.planning.model import LARGEST

numba: Any = import_module("numba")
extending: Any = import_module("numba.extending")
ir: Any = import_module("llvmlite.ir")

Function = TypeVar("Function", bound=Callable[..., Any])

ODD = -1
"""How many steps loops say they took where the model failed: the program has to take them."""


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function one that writes instructions."""
    made: Callable[..., Any] = extending.intrinsic(function)
    return made


def compiled(*signatures: str) -> Callable[[Function], Function]:
    """Compile a function now, for arguments of some types."""

    def decorate(function: Function) -> Function:
        decorator = numba.njit(list(signatures), nogil=True, error_model="numpy")
        made: Function = decorator(function)
        return made

    return decorate


@intrinsic
def advance(typing: Any, model: Any, state: Any, action: Any) -> Any:
    """Call a model; all arguments are addresses."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = ir.IntType(64)
        kind = ir.FunctionType(ir.DoubleType(), [address, address])
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])

    return numba.float64(numba.int64, numba.int64, numba.int64), generate


@compiled("UniTuple(float64, 2)(int64, float64[::1], uint8[::1], int64, float64, float64[::1])")
def play(
    model: int,
    state: np.ndarray,
    actions: np.ndarray,
    count: int,
    discount: float,
    action: np.ndarray,
) -> tuple[float, float]:
    """Take integer actions; return the discounted sum of rewards and the number of steps."""
    total, factor, steps = 0.0, 1.0, 0
    ended = state.shape[0] - 1
    for number in range(count):
        action[0] = actions[number]
        reward = advance(model, state.ctypes.data, action.ctypes.data)
        steps += 1
        if not -LARGEST < reward < LARGEST:
            return 0.0, float(ODD)
        total += factor * reward
        if state[ended]:
            break
        factor *= discount
    return total, float(steps)


@compiled("int64(int64, float64[:, ::1], float64[:, :, :, ::1], float64[:, ::1], float64[::1])")
def returns(
    model: int, starts: np.ndarray, plans: np.ndarray, totals: np.ndarray, state: np.ndarray
) -> int:
    """Play plans from each start into `totals`; return how many steps that took."""
    taken, ended = 0, state.shape[0] - 1
    for start in range(plans.shape[0]):
        for plan in range(plans.shape[1]):
            state[:] = starts[start]
            total = 0.0
            for step in range(plans.shape[2]):
                reward = advance(model, state.ctypes.data, plans[start, plan, step].ctypes.data)
                taken += 1
                if not -LARGEST < reward < LARGEST:
                    return ODD
                total += reward
                if state[ended]:
                    break
            totals[start, plan] = total
    return taken
