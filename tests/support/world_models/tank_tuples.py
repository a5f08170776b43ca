# ruff: noqa
"""State as a dict of numbers, for with break and else, chained comparisons, loop variable after."""


class Environment:
    LEVELS = (0.2, 0.5, 0.9, 1.4)
    PAY = [0.0, 1.0, 3.0, -2.0, -10.0]

    def __init__(self):
        self.s = {"level": 0.0, "flow": 0.0, "age": 0}

    def set_state(self, o):
        self.s = {"level": o[0], "flow": o[1], "age": 0}

    def band(self, level):
        for i, bound in enumerate(self.LEVELS):
            if level < bound:
                break
        else:
            i = len(self.LEVELS)
        return i

    def step(self, action):
        valve = [0.0, 0.5, 1.0][action]
        total = 0
        for k in range(5):
            if self.s["level"] <= 0 and valve == 0:
                continue
            self.s["flow"] = 0.9 * self.s["flow"] + 0.1 * valve
            self.s["level"] = max(
                0.0, self.s["level"] + 0.1 * self.s["flow"] - 0.02 * self.s["level"]
            )
            total += k
        self.s["age"] += 1
        i = self.band(self.s["level"])
        reward = self.PAY[i]
        if 0.5 <= self.s["level"] < 0.9 and self.s["age"] % 3 == 0:
            reward += 0.25
        done = i == 4 or self.s["age"] >= 20
        return [self.s["level"], self.s["flow"]], reward + 0.001 * total, done
