# ruff: noqa
class Environment:
    def __init__(self):
        self.rows = 4
        self.cols = 12
        self.start_state = 36
        self.goal_state = 47
        self.state = self.start_state

    def set_state(self, state):
        self.state = state

    def step(self, action):
        row = self.state // self.cols
        col = self.state % self.cols
        if action == 0:  # up
            row = max(row - 1, 0)
        elif action == 1:  # right
            col = min(col + 1, self.cols - 1)
        elif action == 2:  # down
            row = min(row + 1, self.rows - 1)
        elif action == 3:  # left
            col = max(col - 1, 0)
        else:
            raise ValueError("Invalid action")
        if row == 3 and 1 <= col <= 10:
            # fell off the cliff
            self.state = self.start_state
            return self.state, -100, False
        self.state = row * self.cols + col
        done = self.state == self.goal_state
        return self.state, -1, done
