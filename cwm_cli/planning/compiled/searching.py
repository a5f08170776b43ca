"""Tree search over arrays and a compiled model; importing this module compiles it.

The trees are those of `cwm_cli.planning.tree`, number for number.
"""

from math import log, sqrt

import numpy as np

from cwm_cli.planning.compiled.kernels import ODD, advance, compiled, numba, play
from cwm_cli.planning.compiled.nodes import Limits, Nodes
from cwm_cli.planning.model import LARGEST

SMALL = 1e-3

NODES = numba.typeof(Nodes.room(1, 1, 1))

LIMITS = numba.typeof(Limits(1, 1, 1, 1.0, 1.0))


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


@compiled(
    numba.int64(numba.int64, NODES, LIMITS, numba.uint8[:, ::1], numba.uint16[:, ::1]),
    numba.int64(numba.int64, NODES, LIMITS, numba.int64[:, ::1], numba.uint16[:, ::1]),
)
def grow(model: int, nodes: Nodes, limits: Limits, actions: np.ndarray, ties: np.ndarray) -> int:
    """Simulate once for every row of numbers, or until steps run out; return the steps taken.

    `actions` are those of rollouts, `ties` 16-bit numbers that break ties.
    """
    taken, action, state = 0, np.zeros(1), np.zeros(nodes.states.shape[1])
    ended = state.shape[0] - 1
    for row in range(actions.shape[0]):
        if taken >= limits.steps or nodes.used[0] == nodes.rewards.shape[0]:
            break
        node, depth, value, fresh = 0, 0, 0.0, False
        while depth < limits.horizon and not nodes.states[node, ended] and not fresh:
            index = highest(nodes, node, limits.exploration, ties[row, depth % ties.shape[1]])
            nodes.path[depth] = node, index
            depth += 1
            fresh = nodes.children[node, index] < 0
            if fresh:
                action[0] = limits.lowest + index
                taken += 1
                if not expand(model, nodes, node, index, action):
                    return ODD
            node = nodes.children[node, index]
        count = min(limits.horizon - depth, actions.shape[1])
        if fresh and count and not nodes.states[node, ended]:
            state[:] = nodes.states[node]
            value, steps = play(model, state, actions[row], count, limits.discount, action)
            if steps < 0:
                return ODD
            taken += int(steps)
        back_up(nodes, depth, node, value, limits.discount)
    return taken
