# ruff: noqa
"""Remembered transitions by nested keys, `.get` with and without a default."""


class Environment:
    JUMP = {(0, 1): 3, (3, 0): 1, (5, 2): 0}
    PATCH = {((4,), 1): ((6,), -2.0, False), ((6,), 0): ((7,), 5.0, True)}
    STEP = {0: -1, 2: 1}

    def set_state(self, obs):
        self.n = int(obs)

    def step(self, action):
        known = self.PATCH.get(((self.n,), int(action)))
        if known is not None:
            self.set_state(known[0][0])
            return self.n, known[1], known[2]
        target = self.JUMP.get((self.n, action))
        if target is None:
            target = min(max(self.n + self.STEP.get(action, 0), 0), 7)
        key = (target, action)
        bonus = 0.5 if key in self.JUMP else 0.0
        self.n = target
        return self.n, bonus - 0.1, target == 7
