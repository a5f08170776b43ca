"""The number of islands at each level of the water: too many levels to search the map each time."""

from random import Random

Map = list[list[int]]

DIFFICULTY = "competition"
FUNCTION = "islands"
STARTER = """\
def islands(heights, levels):
    \"\"\"Both are lists, the first of rows; return a list with a number for each level.\"\"\"
"""
QUESTION = """\
A map gives the height of every square of an archipelago. Squares that are higher than the level \
of the water are land, all others are under water. An island is a connected area of land. Squares \
are connected if they share a side, not if they only touch at a corner.

Write a function `islands(heights, levels)` that takes the map, as a list of rows, and a list of \
levels in any order. It returns a list with the number of islands at each level.

-----Example-----

islands([[3, 1, 2], [1, 1, 2], [4, 1, 1]], [1, 2, 0, 9]) returns [3, 2, 1, 0]

-----Constraints-----

The map has 1 to 150 rows and 1 to 150 columns; heights are between 0 and 9999, levels are between \
0 and 10000; there are 0 to 5000 levels.
"""
EXAMPLES = ([[[3, 1, 2], [1, 1, 2], [4, 1, 1]], [1, 2, 0, 9]], [[[5]], [4, 5]])


def tests(rng: Random) -> list[list[object]]:
    """Return the tests; unsorted levels, no levels and many levels are among the later ones."""
    few = [_test(rng, 3, 4, 9, ordered=True) for _ in range(6)]
    comb = [[9 if x % 2 == 0 or y == 3 else 1 for x in range(9)] for y in range(4)]
    edges: list[list[object]] = [
        [[[7, 0], [0, 7]], [0, 7, 3, 3]],
        [[[1, 2], [3, 4]], []],
        [comb, [8, 0, 1, 9]],
        [[[0, 0, 0]], [10000, 0]],
    ]
    more = [_test(rng, 20, 15, 50), _test(rng, 1, 60, 9)]
    return [*EXAMPLES, *few, *edges, *more, [_map(rng, 130, 130, 99), _levels(rng, 5000, 99)]]


def small(rng: Random) -> list[object]:
    """Return a small map."""
    return _test(rng, rng.randint(1, 4), rng.randint(1, 5), 6)


def _test(rng: Random, rows: int, columns: int, top: int, *, ordered: bool = False) -> list[object]:
    levels = _levels(rng, 6, top)
    return [_map(rng, rows, columns, top), sorted(levels) if ordered else levels]


def _map(rng: Random, rows: int, columns: int, top: int) -> Map:
    return [[rng.randint(0, top) for _ in range(columns)] for _ in range(rows)]


def _levels(rng: Random, count: int, top: int) -> list[int]:
    return [rng.randint(0, top) for _ in range(count)]


def reference(heights: Map, levels: list[int]) -> list[int]:
    """Count the islands at each different level by flood fill."""
    counts = {level: _count(heights, level) for level in set(levels)}
    return [counts[level] for level in levels]


def _count(heights: Map, level: int) -> int:
    land = {(y, x) for y, row in enumerate(heights) for x, h in enumerate(row) if h > level}
    count = 0
    while land:
        count += 1
        shore = [land.pop()]
        while shore:
            y, x = shore.pop()
            near = {(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)} & land
            land -= near
            shore += near
    return count


def brute(heights: Map, levels: list[int]) -> list[int]:
    """Give each square a number, and pass smaller numbers to neighbours until none changes."""
    found = []
    for level in levels:
        squares = [(y, x) for y, row in enumerate(heights) for x, h in enumerate(row) if h > level]
        names = {square: number for number, square in enumerate(squares)}
        for _ in squares:
            for y, x in squares:
                near = [(y, x), (y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)]
                names[y, x] = min(names[each] for each in near if each in names)
        found.append(len(set(names.values())))
    return found


RIGHT = (
    """\
def islands(heights, levels):
    rows, columns = len(heights), len(heights[0])
    flat = [h for row in heights for h in row]
    parent = list(range(len(flat)))

    def find(i):
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    order = sorted(range(len(flat)), key=flat.__getitem__)
    above, count = [False] * len(flat), 0
    counts = {}
    for level in sorted(set(levels), reverse=True):
        while order and flat[order[-1]] > level:
            i = order.pop()
            above[i] = True
            count += 1
            y, x = divmod(i, columns)
            for j, inside in (
                (i - 1, x > 0), (i + 1, x < columns - 1),
                (i - columns, y > 0), (i + columns, y < rows - 1),
            ):
                if inside and above[j]:
                    a, b = find(i), find(j)
                    if a != b:
                        parent[a] = b
                        count -= 1
        counts[level] = count
    return [counts[level] for level in levels]
""",
    """\
class Solution:
    def islands(self, heights, levels):
        # an island exists from its highest square down to the level where it joins a higher island
        ends = [0] * 10002
        root, peak = {}, {}

        def find(p):
            path = []
            while root[p] != p:
                path.append(p)
                p = root[p]
            for q in path:
                root[q] = p
            return p

        squares = ((h, y, x) for y, row in enumerate(heights) for x, h in enumerate(row))
        for h, y, x in sorted(squares, reverse=True):
            p = (y, x)
            root[p], peak[p] = p, h
            for q in ((y, x + 1), (y, x - 1), (y + 1, x), (y - 1, x)):
                if q in root:
                    a, b = find(p), find(q)
                    if a != b:
                        if peak[a] > peak[b]:
                            a, b = b, a
                        root[a] = b
                        ends[h] += 1
                        ends[peak[a]] -= 1
        top = max(peak.values())
        ends[top] -= 1
        # `ends[h]` is the number of islands that end just below level h
        counts, count = [0] * 10001, 0
        for level in range(10000, -1, -1):
            count -= ends[level + 1]
            counts[level] = count
        return [counts[level] for level in levels]
""",
)
WRONG = (
    # fills the map again for every level
    """\
def islands(heights, levels):
    def count(level):
        land = {(y, x) for y, row in enumerate(heights) for x, h in enumerate(row) if h > level}
        found = 0
        while land:
            found += 1
            todo = [land.pop()]
            while todo:
                y, x = todo.pop()
                for p in ((y, x + 1), (y, x - 1), (y + 1, x), (y - 1, x)):
                    if p in land:
                        land.remove(p)
                        todo.append(p)
        return found

    return [count(level) for level in levels]
""",
    # treats squares at the level of the water as land
    """\
def islands(heights, levels):
    def count(level):
        land = {(y, x) for y, row in enumerate(heights) for x, h in enumerate(row) if h >= level}
        found = 0
        while land:
            found += 1
            todo = [land.pop()]
            while todo:
                y, x = todo.pop()
                for p in ((y, x + 1), (y, x - 1), (y + 1, x), (y - 1, x)):
                    if p in land:
                        land.remove(p)
                        todo.append(p)
        return found

    counts = {level: count(level) for level in set(levels)}
    return [counts[level] for level in levels]
""",
    # returns the numbers in the order of sorted levels
    """\
def islands(heights, levels):
    def count(level):
        land = {(y, x) for y, row in enumerate(heights) for x, h in enumerate(row) if h > level}
        found = 0
        while land:
            found += 1
            todo = [land.pop()]
            while todo:
                y, x = todo.pop()
                for p in ((y, x + 1), (y, x - 1), (y + 1, x), (y - 1, x)):
                    if p in land:
                        land.remove(p)
                        todo.append(p)
        return found

    counts = {level: count(level) for level in set(levels)}
    return [counts[level] for level in sorted(levels)]
""",
    # assumes a square map
    """\
def islands(heights, levels):
    size = len(heights)

    def fill(y, x, level, seen):
        todo = [(y, x)]
        while todo:
            y, x = todo.pop()
            if 0 <= y < size and 0 <= x < size and heights[y][x] > level and not seen[y][x]:
                seen[y][x] = True
                todo += [(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)]

    answers = []
    for level in levels:
        seen, found = [[False] * size for _ in range(size)], 0
        for y in range(size):
            for x in range(size):
                if heights[y][x] > level and not seen[y][x]:
                    found += 1
                    fill(y, x, level, seen)
        answers.append(found)
    return answers
""",
)
