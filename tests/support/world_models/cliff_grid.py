# ruff: noqa
import numpy as np


class Environment:
    def __init__(self):
        self.shape = (4, 12)
        self.start = (3, 0)
        self.goal = (3, 11)
        self.cliff = np.zeros(self.shape, dtype=bool)
        self.cliff[3, 1:-1] = True
        self.moves = {0: (-1, 0), 1: (0, 1), 2: (1, 0), 3: (0, -1)}
        self.position = self.start

    def set_state(self, state):
        self.position = np.unravel_index(int(state), self.shape)

    def step(self, action):
        move = self.moves[int(action)]
        row = min(max(self.position[0] + move[0], 0), self.shape[0] - 1)
        col = min(max(self.position[1] + move[1], 0), self.shape[1] - 1)
        reward = -1
        done = False
        if self.cliff[row, col]:
            row, col = self.start
            reward = -100
        elif (row, col) == self.goal:
            done = True
        self.position = (row, col)
        return int(np.ravel_multi_index(self.position, self.shape)), reward, done
