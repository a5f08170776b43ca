"""A ferry with a timetable: times are too large for a simulation minute by minute."""

from random import Random

DIFFICULTY = "interview"
FUNCTION = ""
STARTER = ""
QUESTION = """\
Ferries leave a pier at minute s, and then every p minutes. Each carries at most c cars. Cars \
queue at the pier in the order of their arrival; cars that arrive in the same minute queue in any \
order. A car that arrives in the minute of a departure still boards this ferry if there is room. A \
ferry leaves on time even if it is empty.

Find the number of ferries with at least one car, and the longest waiting time of a car in minutes.

-----Input-----

The first line has four integers n, s, p and c.
The second line has n integers: the minutes of arrival of the cars, in no particular order.

-----Output-----

Print two integers: the number of ferries with cars, and the longest waiting time.

-----Constraints-----

1 <= n <= 2000, 0 <= s <= 10^12, 1 <= p <= 10^9, 1 <= c <= 2000, arrivals are between 0 and 10^12.

-----Example-----

Input
4 10 15 2
3 10 10 26

Output
3 15

The ferry of minute 10 takes the car of minute 3 and one of the two cars of minute 10. The other \
car takes the ferry of minute 25, after 15 minutes. The last car takes the ferry of minute 40.
"""
EXAMPLES = ("4 10 15 2\n3 10 10 26\n", "1 0 5 1\n0\n", "3 4 6 3\n5 6 10\n")


def tests(rng: Random) -> list[str]:
    """Return the tests; unsorted arrivals and large times are among the later ones."""
    few = [_test(rng, rng.randint(2, 6), 60, ordered=True) for _ in range(7)]
    more = [_test(rng, count, last) for count, last in ((8, 90), (60, 400), (2000, 10**5))]
    large = [
        _test(rng, 2000, 10**12),
        "2 1000000000000 1000000000 1\n0 0\n",
        "1 7 3 4\n1000000000\n",
    ]
    return [*EXAMPLES, *few, "3 5 5 1\n9 2 2\n", *more, *large]


def small(rng: Random) -> str:
    """Return a few cars in any order."""
    return _test(rng, rng.randint(1, 7), 40)


def _test(rng: Random, count: int, last: int, *, ordered: bool = False) -> str:
    arrivals = [rng.randint(0, last) for _ in range(count)]
    if ordered:
        arrivals.sort()
    start, period = rng.randint(0, last // 3), min(10**9, rng.randint(1, max(2, last // 5)))
    line = " ".join(map(str, arrivals))
    return f"{count} {start} {period} {rng.randint(1, 3)}\n{line}\n"


def reference(text: str) -> str:
    """Simulate only the ferries with cars."""
    _, start, period, room, *arrivals = map(int, text.split())
    arrivals.sort()
    ferries = longest = done = 0
    leaves = start
    while done < len(arrivals):
        leaves = max(leaves, start + -(-(arrivals[done] - start) // period) * period)
        ferries += 1
        longest = max(longest, leaves - arrivals[done])
        first = done
        while done < min(len(arrivals), first + room) and arrivals[done] <= leaves:
            done += 1
        leaves += period
    return f"{ferries} {longest}\n"


def brute(text: str) -> str:
    """Simulate every minute."""
    _, start, period, room, *arrivals = map(int, text.split())
    queue: list[int] = []
    ferries = longest = minute = 0
    while queue or minute <= max(arrivals):
        queue += [minute] * arrivals.count(minute)
        if queue and minute >= start and (minute - start) % period == 0:
            longest = max(longest, minute - queue[0])
            ferries += 1
            queue = queue[room:]
        minute += 1
    return f"{ferries} {longest}\n"


RIGHT = (
    """\
n, s, p, c = map(int, input().split())
ferries = longest = 0
last, room = -1, 0  # the number of the last ferry with cars, and its room
for arrival in sorted(map(int, input().split())):
    number = max(0, -((s - arrival) // p))
    if number > last or not room:
        last, room = max(number, last + 1), c
        ferries += 1
    room -= 1
    longest = max(longest, s + last * p - arrival)
print(ferries, longest)
""",
    """\
import sys


def next_ferry(time, s, p):
    return s if time <= s else s + (time - s + p - 1) // p * p


def main():
    data = list(map(int, sys.stdin.buffer.read().split()))
    n, s, p, c = data[:4]
    cars = sorted(data[4:], reverse=True)
    time = ferries = longest = 0
    while cars:
        time = next_ferry(max(time, cars[-1]), s, p)
        ferries += 1
        for _ in range(c):
            if not cars or cars[-1] > time:
                break
            longest = max(longest, time - cars.pop())
        time += 1
    sys.stdout.write(f"{ferries} {longest}\\n")


main()
""",
)
WRONG = (
    # simulates every minute
    """\
n, s, p, c = map(int, input().split())
arrivals = sorted(map(int, input().split()))
minute = ferries = longest = 0
while arrivals:
    if minute >= s and (minute - s) % p == 0 and arrivals[0] <= minute:
        ferries += 1
        longest = max(longest, minute - arrivals[0])
        boarding = [a for a in arrivals[:c] if a <= minute]
        arrivals = arrivals[len(boarding):]
    minute += 1
print(ferries, longest)
""",
    # assumes sorted arrivals
    """\
n, s, p, c = map(int, input().split())
ferries = longest = 0
last, room = -1, 0
for arrival in map(int, input().split()):
    number = max(0, -((s - arrival) // p))
    if number > last or not room:
        last, room = max(number, last + 1), c
        ferries += 1
    room -= 1
    longest = max(longest, s + last * p - arrival)
print(ferries, longest)
""",
    # a car that arrives in the minute of the departure does not board
    """\
n, s, p, c = map(int, input().split())
ferries = longest = 0
last, room = -1, 0
for arrival in sorted(map(int, input().split())):
    number = max(0, (arrival - s) // p + 1)
    if number > last or not room:
        last, room = max(number, last + 1), c
        ferries += 1
    room -= 1
    longest = max(longest, s + last * p - arrival)
print(ferries, longest)
""",
    # prints only the number of ferries
    """\
n, s, p, c = map(int, input().split())
ferries, last, room = 0, -1, 0
for arrival in sorted(map(int, input().split())):
    number = max(0, -((s - arrival) // p))
    if number > last or not room:
        last, room = max(number, last + 1), c
        ferries += 1
    room -= 1
print(ferries)
""",
)
