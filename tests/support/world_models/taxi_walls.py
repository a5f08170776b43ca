# ruff: noqa
import numpy as np


class Environment:
    def __init__(self):
        self.grid_size = 5
        # walls between (row, col) and (row, col + 1)
        self.walls = {(0, 1), (1, 1), (3, 0), (4, 0), (3, 2), (4, 2)}
        self.landmarks = {0: (0, 0), 1: (0, 4), 2: (4, 0), 3: (4, 3)}
        self.taxi_row = 0
        self.taxi_col = 0
        self.passenger = 0
        self.destination = 0

    def set_state(self, s):
        s = int(s)
        self.destination = s % 4
        s //= 4
        self.passenger = s % 5
        s //= 5
        self.taxi_col = s % 5
        self.taxi_row = s // 5

    def _encode(self):
        return ((self.taxi_row * 5 + self.taxi_col) * 5 + self.passenger) * 4 + self.destination

    def step(self, action):
        reward = -1
        done = False
        r, c = self.taxi_row, self.taxi_col
        if action == 0:
            self.taxi_row = min(r + 1, self.grid_size - 1)
        elif action == 1:
            self.taxi_row = max(r - 1, 0)
        elif action == 2:
            if c < self.grid_size - 1 and (r, c) not in self.walls:
                self.taxi_col = c + 1
        elif action == 3:
            if c > 0 and (r, c - 1) not in self.walls:
                self.taxi_col = c - 1
        elif action == 4:
            if self.passenger != 4 and self.landmarks[self.passenger] == (r, c):
                self.passenger = 4
            else:
                reward = -10
        elif action == 5:
            if self.passenger == 4:
                if self.landmarks[self.destination] == (r, c):
                    self.passenger = self.destination
                    reward = 20
                    done = True
                else:
                    found = False
                    for idx, loc in self.landmarks.items():
                        if loc == (r, c):
                            self.passenger = idx
                            found = True
                            break
                    if not found:
                        reward = -10
            else:
                reward = -10
        return self._encode(), reward, done
