# ruff: noqa
"""A map of characters, tuples, a dict of moves, and a ternary chain."""

MAP = ["SFFF", "FHFH", "FFFH", "HFFG"]
MOVES = {0: (0, -1), 1: (1, 0), 2: (0, 1), 3: (-1, 0)}


class Environment:
    SIZE = len(MAP)

    def set_state(self, observation):
        self.pos = divmod(int(observation), Environment.SIZE)

    @staticmethod
    def clamp(v, lo=0, hi=3):
        return lo if v < lo else hi if v > hi else v

    def step(self, action):
        dr, dc = MOVES[action]
        tile = MAP[self.pos[0]][self.pos[1]]
        if tile in "GH":
            return self.pos[0] * self.SIZE + self.pos[1], 0.0, True
        row, col = self.pos
        row = self.clamp(row + dr)
        col = self.clamp(col + dc)
        self.pos = (row, col)
        tile = MAP[row][col]
        reward = 1.0 if tile == "G" else 0.0
        return row * self.SIZE + col, reward, tile in "GH"
