"""Tree search over arrays and a compiled model; importing this module compiles it.

The trees are those of `cwm_cli.planning.tree`, number for number.
"""

from math import log, sqrt

import numpy as np

from cwm_cli.planning.compiled.kernels import ODD, advance, compiled, numba, sixteen
from cwm_cli.planning.compiled.nodes import Limits, Nodes
from cwm_cli.planning.draws import DEPTHS
from cwm_cli.planning.model import LARGEST

SMALL = 1e-3

NODES = numba.typeof(Nodes.room(1, 1, 1))

LIMITS = numba.typeof(Limits(1, 1, 1, 1, 1, 1, 1.0, 1.0, np.uint64(1)))


@compiled(numba.int64(NODES, numba.int64, numba.float64, numba.int64))
def highest(nodes: Nodes, node: int, exploration: float, number: int) -> int:
    """Return the action of the highest upper confidence bound; a 16-bit number breaks ties."""
    factor = exploration * sqrt(log(nodes.visits[node]))
    most, ties = -np.inf, 0
    for index in range(nodes.values.shape[1]):
        bound = nodes.values[node, index] + factor * (1 / sqrt(nodes.tried[node, index] + SMALL))
        ties = 1 if bound > most else ties + (bound == most)
        most = max(bound, most)
    left = number * ties >> 16
    for index in range(nodes.values.shape[1]):
        bound = nodes.values[node, index] + factor * (1 / sqrt(nodes.tried[node, index] + SMALL))
        if bound == most:
            if not left:
                return index
            left -= 1
    return 0


@compiled(numba.boolean(numba.int64, NODES, numba.int64, numba.int64, numba.float64[::1]))
def expand(model: int, nodes: Nodes, parent: int, index: int, action: np.ndarray) -> bool:
    """Add the state that an action leads to; return whether the model could say which it is."""
    child = nodes.used[0]
    nodes.states[child] = nodes.states[parent]
    state = nodes.states[child]
    reward: float = advance(model, state.ctypes.data, action.ctypes.data)
    nodes.rewards[child] = reward
    nodes.children[parent, index] = child
    nodes.used[0] = child + 1
    return -LARGEST < reward < LARGEST


@compiled(numba.void(NODES, numba.int64, numba.int64, numba.float64, numba.float64))
def back_up(nodes: Nodes, depth: int, node: int, value: float, discount: float) -> None:
    """Count a return for every action that led to it."""
    nodes.visits[node] += 1
    for level in range(depth - 1, -1, -1):
        parent, index = nodes.path[level]
        value = nodes.rewards[node] + discount * value
        nodes.visits[parent] += 1
        nodes.tried[parent, index] += 1
        nodes.totals[parent, index] += value
        nodes.values[parent, index] = nodes.totals[parent, index] / nodes.tried[parent, index]
        node = parent


@compiled(numba.int64(LIMITS, numba.int64, numba.int64))
def draw(limits: Limits, simulation: int, place: int) -> int:
    """Return 16 random bits for a simulation: first those for ties, then those for actions."""
    words = (DEPTHS + limits.rollout + 3) // 4
    bits: int = sixteen(limits.seed, simulation * words + place // 4, place % 4)
    return bits


@compiled(
    numba.types.UniTuple(numba.float64, 2)(
        numba.int64, LIMITS, numba.int64, numba.int64, numba.float64[::1], numba.float64[::1]
    )
)
def roll_out(
    model: int, limits: Limits, simulation: int, count: int, state: np.ndarray, action: np.ndarray
) -> tuple[float, float]:
    """Take random actions; return the discounted sum of rewards and the number of steps."""
    total, factor, steps = 0.0, 1.0, 0
    ended = state.shape[0] - 1
    for number in range(count):
        drawn = draw(limits, simulation, DEPTHS + number)
        action[0] = limits.lowest + (drawn * limits.actions >> 16)
        reward = advance(model, state.ctypes.data, action.ctypes.data)
        steps += 1
        if not -LARGEST < reward < LARGEST:
            return 0.0, float(ODD)
        total += factor * reward
        if state[ended]:
            break
        factor *= limits.discount
    return total, float(steps)


@compiled(numba.int64(numba.int64, NODES, LIMITS))
def grow(model: int, nodes: Nodes, limits: Limits) -> int:
    """Simulate until simulations or steps run out; return the steps taken."""
    taken, action, state = 0, np.zeros(1), np.zeros(nodes.states.shape[1])
    ended = state.shape[0] - 1
    for simulation in range(limits.simulations):
        if taken >= limits.steps:
            break
        node, depth, value, fresh = 0, 0, 0.0, False
        while depth < limits.horizon and not nodes.states[node, ended] and not fresh:
            number = draw(limits, simulation, depth % DEPTHS)
            index = highest(nodes, node, limits.exploration, number)
            nodes.path[depth] = node, index
            depth += 1
            fresh = nodes.children[node, index] < 0
            if fresh:
                action[0] = limits.lowest + index
                taken += 1
                if not expand(model, nodes, node, index, action):
                    return ODD
            node = nodes.children[node, index]
        count = min(limits.horizon - depth, limits.rollout)
        if fresh and count and not nodes.states[node, ended]:
            state[:] = nodes.states[node]
            value, steps = roll_out(model, limits, simulation, count, state, action)
            if steps < 0:
                return ODD
            taken += int(steps)
        back_up(nodes, depth, node, value, limits.discount)
    return taken
