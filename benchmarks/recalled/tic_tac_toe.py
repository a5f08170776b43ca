import numpy as np


class Environment:
    LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]

    def __init__(self):
        self.cells, self.player = [None] * 9, 0

    def set_state(self, observation):
        board = observation["board"].reshape(9, 2)
        self.cells = [0 if a else 1 if b else None for a, b in board.tolist()]
        self.player = int(observation["player"])

    def legal_actions(self):
        return [cell for cell, owner in enumerate(self.cells) if owner is None]

    def step(self, action):
        mover = self.player
        self.cells[action] = mover
        self.player = 1 - mover
        won = any(all(self.cells[cell] == mover for cell in line) for line in self.LINES)
        board = np.zeros((9, 2), np.int8)
        for cell, owner in enumerate(self.cells):
            if owner is not None:
                board[cell, owner] = 1
        observation = {"board": board.reshape(3, 3, 2), "player": self.player}
        return observation, float(won), won or None not in self.cells
