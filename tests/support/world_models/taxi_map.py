# ruff: noqa
import numpy as np


class Environment:
    def __init__(self):
        self.locs = [(0, 0), (0, 4), (4, 0), (4, 3)]  # R, G, Y, B
        self.MAP = [
            "+---------+",
            "|R: | : :G|",
            "| : | : : |",
            "| : : : : |",
            "| | : | : |",
            "|Y| : |B: |",
            "+---------+",
        ]
        self.num_rows = 5
        self.num_cols = 5
        self.state = 0

    def encode(self, taxi_row, taxi_col, pass_loc, dest_idx):
        i = taxi_row
        i *= 5
        i += taxi_col
        i *= 5
        i += pass_loc
        i *= 4
        i += dest_idx
        return i

    def decode(self, i):
        out = []
        out.append(i % 4)
        i = i // 4
        out.append(i % 5)
        i = i // 5
        out.append(i % 5)
        i = i // 5
        out.append(i)
        return out[3], out[2], out[1], out[0]

    def set_state(self, state):
        self.state = int(state)

    def step(self, action):
        row, col, pass_idx, dest_idx = self.decode(self.state)
        new_row, new_col, new_pass_idx = row, col, pass_idx
        reward = -1
        done = False
        taxi_loc = (row, col)
        if action == 0:  # south
            new_row = min(row + 1, self.num_rows - 1)
        elif action == 1:  # north
            new_row = max(row - 1, 0)
        elif action == 2 and self.MAP[1 + row][2 * col + 2] == ":":  # east
            new_col = min(col + 1, self.num_cols - 1)
        elif action == 3 and self.MAP[1 + row][2 * col] == ":":  # west
            new_col = max(col - 1, 0)
        elif action == 4:  # pickup
            if pass_idx < 4 and taxi_loc == self.locs[pass_idx]:
                new_pass_idx = 4
            else:
                reward = -10
        elif action == 5:  # dropoff
            if taxi_loc == self.locs[dest_idx] and pass_idx == 4:
                new_pass_idx = dest_idx
                done = True
                reward = 20
            elif taxi_loc in self.locs and pass_idx == 4:
                new_pass_idx = self.locs.index(taxi_loc)
            else:
                reward = -10
        self.state = self.encode(new_row, new_col, new_pass_idx, dest_idx)
        return self.state, reward, done
