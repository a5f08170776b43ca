"""A stack of battery cells, no two of a kind together: the obvious greedy choice is wrong."""

from random import Random

DIFFICULTY = "interview"
FUNCTION = "fewestCells"
STARTER = """\
class Solution:
    def fewestCells(self, kinds: List[int], volts: int) -> int:
        """
QUESTION = """\
A battery pack is a stack of cells whose voltages add up. There are several kinds of cells, of \
different voltages, and any number of cells of each kind. Two neighbouring cells in the stack must \
not be of the same kind, because they would stick together.

Given the voltages of the kinds, and the voltage that the pack must have exactly, return the \
smallest number of cells in such a stack, or -1 if there is none. A pack of 0 volts has no cells.

-----Examples-----

fewestCells([1, 5, 8], 10) returns 3
The stack is 1, 8, 1. Two cells of 5 volts would stick together.

fewestCells([7], 14) returns -1

fewestCells([2, 3], 5) returns 2

-----Constraints-----

1 to 12 kinds, all different, each of 1 to 1000 volts; the pack has 0 to 3000 volts.
"""
EXAMPLES = ([[1, 5, 8], 10], [[7], 14], [[2, 3], 5])


def tests(rng: Random) -> list[list[object]]:
    """Return the tests; large packs and a pack of 0 volts are among the later ones."""
    few = [small(rng) for _ in range(8)]
    large = [
        [sorted(rng.sample(range(1, most), count)), volts]
        for count, most, volts in ((4, 30, 400), (12, 60, 2999), (12, 1000, 3000), (5, 9, 2500))
    ]
    edges = [[[3, 10, 14], 0], [[6], 6], [[4, 6], 2999], [[1, 1000], 3000]]
    return [*EXAMPLES, *few, *edges, *large]


def small(rng: Random) -> list[object]:
    """Return few kinds and a small pack."""
    kinds = rng.sample(range(1, 10), rng.randint(2, 3))
    return [kinds, rng.randint(4, 16)]


def reference(kinds: list[int], volts: int) -> int:
    """Find the smallest number of cells for each voltage and kind of the top cell."""
    never = volts + 1
    fewest = [[never] * len(kinds) for _ in range(volts + 1)]
    for total in range(1, volts + 1):
        for top, kind in enumerate(kinds):
            if kind == total:
                fewest[total][top] = 1
            elif kind < total:
                below = (n for i, n in enumerate(fewest[total - kind]) if i != top)
                fewest[total][top] = min(below, default=never) + 1
    found = min(fewest[volts]) if volts else 0
    return found if found < never else -1


def brute(kinds: list[int], volts: int) -> int:
    """Build all stacks, layer by layer."""
    stacks = [(0, 0)]
    for count in range(volts + 1):
        if any(total == volts for total, _ in stacks):
            return count
        taller = ((total + kind, kind) for total, top in stacks for kind in kinds if kind != top)
        stacks = [stack for stack in taller if stack[0] <= volts]
    return -1


RIGHT = (
    """\
from typing import List


class Solution:
    def fewestCells(self, kinds: List[int], volts: int) -> int:
        # for each voltage, only the two best kinds of the top cell matter
        best = [[] for _ in range(volts + 1)]
        best[0] = [(0, -1)]
        for total in range(1, volts + 1):
            found = []
            for kind in kinds:
                if kind <= total:
                    counts = [n for n, top in best[total - kind] if top != kind]
                    if counts:
                        found.append((min(counts) + 1, kind))
            best[total] = sorted(found)[:2]
        return best[volts][0][0] if best[volts] else -1
""",
    """\
from collections import deque


def fewestCells(kinds, volts):
    seen = {(0, 0)}
    queue = deque([(0, 0, 0)])
    while queue:
        total, top, count = queue.popleft()
        if total == volts:
            return count
        for kind in kinds:
            state = (total + kind, kind)
            if kind != top and state[0] <= volts and state not in seen:
                seen.add(state)
                queue.append((*state, count + 1))
    return -1
""",
)
WRONG = (
    # always adds the largest allowed cell
    """\
class Solution:
    def fewestCells(self, kinds, volts):
        count, top = 0, 0
        while volts:
            fitting = [kind for kind in kinds if kind <= volts and kind != top]
            if not fitting:
                return -1
            top = max(fitting)
            volts -= top
            count += 1
        return count
""",
    # allows neighbouring cells of the same kind
    """\
class Solution:
    def fewestCells(self, kinds, volts):
        best = [0] + [10 ** 9] * volts
        for total in range(1, volts + 1):
            for kind in kinds:
                if kind <= total:
                    best[total] = min(best[total], best[total - kind] + 1)
        return best[volts] if best[volts] < 10 ** 9 else -1
""",
    # tries all stacks
    """\
class Solution:
    def fewestCells(self, kinds, volts):
        def fewest(left, top):
            if left == 0:
                return 0
            tried = [fewest(left - kind, kind) for kind in kinds if kind <= left and kind != top]
            return 1 + min(tried, default=10 ** 9)

        found = fewest(volts, 0)
        return found if found < 10 ** 9 else -1
""",
    # returns None instead of -1, and no pack of 0 volts
    """\
class Solution:
    def fewestCells(self, kinds, volts):
        layer, count = {(kind, kind) for kind in kinds}, 1
        while layer:
            if any(total == volts for total, _ in layer):
                return count
            layer = {
                (total + kind, kind)
                for total, top in layer
                for kind in kinds
                if kind != top and total + kind <= volts
            }
            count += 1
""",
)
