"""When a hall can be cleaned: intervals, returned as a list of lists."""

from random import Random

DIFFICULTY = "interview"
FUNCTION = "slots"
STARTER = """\
class Solution:
    def slots(self, booked: List[List[int]], length: int) -> List[List[int]]:
        """
QUESTION = """\
A hall is open from minute 0 to minute 1440. Groups have booked it, and bookings may overlap. \
After each booking the hall is aired for 5 minutes. Cleaning takes `length` consecutive minutes \
without a booking and without airing.

Given the bookings as pairs [start, end], in any order, return all free intervals of at least \
`length` minutes as pairs [start, end], sorted by time. Intervals are as long as possible: none is \
part of a longer free interval. Return an empty list if there are none.

A booking includes its start but not its end. Cleaning may therefore end in the minute when a \
booking starts, and may start 5 minutes after the end of a booking.

-----Examples-----

slots([[60, 120], [100, 180], [200, 1440]], 15) returns [[0, 60], [185, 200]]
slots([[0, 1440]], 1) returns []
slots([[0, 700], [715, 1430]], 10) returns [[705, 715]]

-----Constraints-----

0 to 500 bookings with 0 <= start < end <= 1440; length is between 1 and 1440.
"""
EXAMPLES = (
    [[[60, 120], [100, 180], [200, 1440]], 15],
    [[[0, 1440]], 1],
    [[[0, 700], [715, 1430]], 10],
)


def tests(rng: Random) -> list[list[object]]:
    """Return the tests; nested bookings and inputs without bookings are among the later ones."""
    few = [_test(rng, rng.randint(1, 4), 150, nested=False) for _ in range(7)]
    edges: list[list[object]] = [
        [[[0, 1200], [100, 200]], 30],
        [[], 1440],
        [[], 7],
        [[[500, 505], [10, 20]], 60],
        [[[1439, 1440]], 1439],
    ]
    more = [_test(rng, n, length) for n, length in ((4, 900), (12, 60), (40, 30), (500, 2))]
    return [*EXAMPLES, *few, *edges, *more]


def small(rng: Random) -> list[object]:
    """Return a few bookings of any lengths."""
    return _test(rng, rng.randint(0, 5), 600)


def _test(rng: Random, count: int, longest: int, *, nested: bool = True) -> list[object]:
    booked: list[list[int]] = []
    while len(booked) < count:
        start = rng.randint(0, 1439)
        pair = [start, min(1440, start + rng.randint(1, longest))]
        if nested or not any(a <= pair[1] and pair[0] <= b for a, b in booked):
            booked.append(pair)
    return [booked if nested else sorted(booked), rng.randint(1, 40)]


def reference(booked: list[list[int]], length: int) -> list[list[int]]:
    """Process the bookings in the order of their starts."""
    found, free = [], 0
    for start, end in [*sorted(booked), [1440, 1440]]:
        if start - free >= length:
            found.append([free, start])
        free = max(free, end + 5)
    return found


def brute(booked: list[list[int]], length: int) -> list[list[int]]:
    """Mark every minute."""
    free = [all(not a <= minute < b + 5 for a, b in booked) for minute in range(1440)]
    found, start = [], None
    for minute, state in enumerate([*free, False]):
        if state and start is None:
            start = minute
        if not state and start is not None:
            found.append([start, minute])
            start = None
    return [pair for pair in found if pair[1] - pair[0] >= length]


RIGHT = (
    """\
from typing import List


class Solution:
    def slots(self, booked: List[List[int]], length: int) -> List[List[int]]:
        answer, free = [], 0
        for start, end in sorted(booked) + [[1440, 1440]]:
            if start - free >= length:
                answer.append([free, start])
            free = max(free, end + 5)
        return answer
""",
    """\
from itertools import groupby


def slots(booked, length):
    taken = bytearray(1440)
    for start, end in booked:
        end = min(1440, end + 5)
        taken[start:end] = b"\\1" * (end - start)
    answer = []
    for state, minutes in groupby(range(1440), key=lambda minute: taken[minute]):
        minutes = list(minutes)
        if not state and len(minutes) >= length:
            answer.append([minutes[0], minutes[-1] + 1])
    return answer
""",
)
WRONG = (
    # frees the hall too early after nested bookings
    """\
class Solution:
    def slots(self, booked, length):
        answer, free = [], 0
        for start, end in sorted(booked) + [[1440, 1440]]:
            if start - free >= length:
                answer.append([free, start])
            free = end + 5
        return answer
""",
    # fails without bookings
    """\
class Solution:
    def slots(self, booked, length):
        booked = sorted(booked)
        answer, free = [], 0
        if booked[0][0] >= length:
            answer.append([0, booked[0][0]])
        for start, end in booked:
            if start - free >= length and free:
                answer.append([free, start])
            free = max(free, end + 5)
        if 1440 - free >= length:
            answer.append([free, 1440])
        return answer
""",
    # returns texts instead of pairs
    """\
class Solution:
    def slots(self, booked, length):
        answer, free = [], 0
        for start, end in sorted(booked) + [[1440, 1440]]:
            if start - free >= length:
                answer.append("%d-%d" % (free, start))
            free = max(free, end + 5)
        return answer
""",
    # leaves out the airing
    """\
class Solution:
    def slots(self, booked, length):
        answer, free = [], 0
        for start, end in sorted(booked) + [[1440, 1440]]:
            if start - free >= length:
                answer.append([free, start])
            free = max(free, end)
        return answer
""",
)
