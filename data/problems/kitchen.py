"""The price of a dish that consists of dishes: deep recursion, shared parts and cycles."""

from random import Random

Recipes = dict[str, list[list[object]]]

DIFFICULTY = "interview"
FUNCTION = "dish_price"
STARTER = "def dish_price(prices, recipes, dish):\n    "
QUESTION = """\
A kitchen buys some ingredients, and makes other dishes from recipes. A recipe lists parts with \
their amounts. Each part is an ingredient or another dish. No name is both an ingredient and a \
dish.

Write a function `dish_price(prices, recipes, dish)` that returns the price of a dish.

- `prices` maps the names of ingredients to integers.
- `recipes` maps the names of dishes to lists of pairs [part, amount].
- `dish` is a name of a dish or an ingredient.

Return -1 if the dish is impossible: it needs a part that is neither an ingredient nor a dish, or \
it needs itself, directly or through other dishes. The price of a recipe without parts is 0. \
Recipes that the dish does not need have no effect.

-----Examples-----

dish_price({"egg": 3, "flour": 2}, {"dough": [["egg", 2], ["flour", 5]], "pie": [["dough", 1], \
["egg", 1]]}, "pie") returns 19

dish_price({"egg": 3}, {"omelette": [["egg", 3], ["butter", 1]]}, "omelette") returns -1

dish_price({"tea": 4}, {}, "tea") returns 4

-----Constraints-----

At most 5000 names. Recipes may be nested as deeply as there are names. Amounts are 1 to 9; prices \
of ingredients are 0 to 1000. Prices of dishes may be huge.
"""
EXAMPLES = (
    [
        {"egg": 3, "flour": 2},
        {"dough": [["egg", 2], ["flour", 5]], "pie": [["dough", 1], ["egg", 1]]},
        "pie",
    ],
    [{"egg": 3}, {"omelette": [["egg", 3], ["butter", 1]]}, "omelette"],
    [{"tea": 4}, {}, "tea"],
)


def tests(rng: Random) -> list[list[object]]:
    """Return the tests; cycles are among the first, deep and shared recipes among the last."""
    few = [small(rng) for _ in range(9)]
    deep: Recipes = {f"d{i}": [[f"d{i + 1}", 1], ["salt", 1]] for i in range(2500)}
    deep["d2500"] = [["salt", 7]]
    shared: Recipes = {f"s{i}": [[f"s{i + 1}", 1], [f"s{i + 1}", 2]] for i in range(60)}
    shared["s60"] = [["rice", 1]]
    ring: Recipes = {"a": [["b", 1]], "b": [["c", 1]], "c": [["a", 1]], "x": [["oil", 1]]}
    edges: list[list[object]] = [
        [{"oil": 5}, ring, "x"],
        [{"oil": 5}, ring, "b"],
        [{}, {"air": []}, "air"],
        [{}, {}, "nothing"],
        [{"ice": 0}, {"cold": [["ice", 9]]}, "cold"],
    ]
    large: list[list[object]] = [[{"salt": 1}, deep, "d0"], [{"rice": 1}, shared, "s0"]]
    return [*EXAMPLES, *few, *edges, *large]


def small(rng: Random) -> list[object]:
    """Return a kitchen of seven names, sometimes with a cycle or an unknown part."""
    prices = {name: rng.randint(0, 9) for name in "abc"}
    known = "abc" + rng.choice(["", "", "z"])
    recipes: Recipes = {}
    for name in "defg":
        parts = known + "".join(recipes) + rng.choice(["", "", "", "g"])
        recipes[name] = [[rng.choice(parts), rng.randint(1, 4)] for _ in range(rng.randint(0, 3))]
    return [prices, recipes, rng.choice("fgg")]


def reference(prices: dict[str, int], recipes: Recipes, dish: str) -> int:
    """Compute the prices of parts before the prices of their dishes, with an explicit stack."""
    known = dict(prices)
    waiting, open_names = [dish], set()
    while waiting:
        name = waiting[-1]
        if name in known:
            waiting.pop()
            continue
        missing = [part for part, _ in recipes.get(name, [["", 0]]) if part not in known]
        if any(part not in recipes or part in open_names or part == name for part in missing):
            return -1
        if not missing:
            known[name] = sum(known[part] * amount for part, amount in recipes[name])
            open_names.discard(name)
        else:
            open_names.add(name)
            waiting.append(missing[0])
    return known[dish]


def brute(prices: dict[str, int], recipes: Recipes, dish: str) -> int:
    """Compute prices of dishes with known parts until no further price follows."""
    known = dict(prices)
    for _ in range(len(recipes) + 1):
        for name, parts in recipes.items():
            if all(part in known for part, _ in parts):
                known[name] = sum(known[part] * amount for part, amount in parts)
    return known.get(dish, -1)


RIGHT = (
    """\
import sys

sys.setrecursionlimit(20000)


def dish_price(prices, recipes, dish):
    known = dict(prices)

    def price(name):
        if name not in known:
            known[name] = -1
            if name in recipes:
                total = 0
                for part, amount in recipes[name]:
                    cost = price(part)
                    if cost < 0:
                        return -1
                    total += cost * amount
                known[name] = total
        return known[name]

    return price(dish)
""",
    """\
from collections import defaultdict, deque


class Solution:
    def dish_price(self, prices, recipes, dish):
        users, missing = defaultdict(list), {}
        known = dict(prices)
        for name, parts in recipes.items():
            missing[name] = len(parts)
            for part, _ in parts:
                users[part].append(name)
        ready = deque(known)
        for name, count in missing.items():
            if not count:
                known[name] = 0
                ready.append(name)
        while ready:
            for user in users[ready.popleft()]:
                missing[user] -= 1
                if not missing[user]:
                    known[user] = sum(known[part] * n for part, n in recipes[user])
                    ready.append(user)
        return known.get(dish, -1)
""",
)
WRONG = (
    # exceeds the default recursion limit of Python
    """\
def dish_price(prices, recipes, dish):
    known = dict(prices)

    def price(name):
        if name not in known:
            known[name] = -1
            if name in recipes:
                costs = [(price(part), amount) for part, amount in recipes[name]]
                if all(cost >= 0 for cost, _ in costs):
                    known[name] = sum(cost * amount for cost, amount in costs)
        return known[name]

    return price(dish)
""",
    # computes the prices of shared parts again for each use
    """\
import sys

sys.setrecursionlimit(20000)


def dish_price(prices, recipes, dish, above=frozenset()):
    if dish in prices:
        return prices[dish]
    if dish in above or dish not in recipes:
        return -1
    total = 0
    for part, amount in recipes[dish]:
        cost = dish_price(prices, recipes, part, above | {dish})
        if cost < 0:
            return -1
        total += cost * amount
    return total
""",
    # treats unknown parts as free
    """\
import sys

sys.setrecursionlimit(20000)


def dish_price(prices, recipes, dish):
    known = dict(prices)

    def price(name):
        if name not in known:
            known[name] = 0
            known[name] = sum(price(part) * n for part, n in recipes.get(name, []))
        return known[name]

    return price(dish)
""",
    # returns the number as a text
    """\
def dish_price(prices, recipes, dish):
    known = dict(prices)
    for _ in recipes:
        for name, parts in recipes.items():
            if name not in known and all(part in known for part, _ in parts):
                known[name] = sum(known[part] * amount for part, amount in parts)
    return str(known.get(dish, -1))
""",
)
