import numpy as np


class Environment:
    """Connect Four: four of the own discs in a row win."""

    ROWS, COLUMNS = 6, 7

    def __init__(self):
        self.board = np.zeros((self.ROWS, self.COLUMNS, 2), dtype=np.int8)
        self.player = 0

    def set_state(self, observation):
        self.board = observation["board"].copy()
        self.player = int(observation["player"])

    def legal_actions(self):
        return [column for column in range(self.COLUMNS) if not self.board[0, column].any()]

    def step(self, action):
        mover = self.player
        row = max(r for r in range(self.ROWS) if not self.board[r, action].any())
        self.board[row, action, mover] = 1
        self.player = 1 - mover
        won = self._wins(row, action, mover)
        full = bool(self.board.any(axis=2).all())
        return self._observation(), float(won), won or full

    def _wins(self, row, column, mover):
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
            count = 1
            for sign in (1, -1):
                r, c = row + sign * down, column + sign * right
                while 0 <= r < self.ROWS and 0 <= c < self.COLUMNS and self.board[r, c, mover]:
                    count += 1
                    r, c = r + sign * down, c + sign * right
            if count >= 4:
                return True
        return False

    def _observation(self):
        return {"board": self.board.copy(), "player": self.player}
