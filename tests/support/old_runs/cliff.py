class Environment:
    """A state is position 0 to 3 and value 0 to 11.

    Induced from 597 transitions of 7 episodes. 2 terminal transitions were seen. Rewards seen:
    -1.0 (572 times) and -100.0 (25 times).

    It predicts 100 % of the 597 transitions that may be fitted to in every part; its accuracy
    on them is 1.000. All 2 terminal transitions have one cause, it seems (the same
    observation); other ways to end may exist. 148 of 192 (observation, action) pairs were
    recorded.
    """

    # change of position by action
    POSITION_STEP = {0: -1, 2: 1}
    # change of value by (action, position)
    VALUE_STEP = {
        (1, 0): 1, (1, 1): 1, (1, 2): 1, (2, 2): -10, (3, 0): -1, (3, 1): -1, (3, 2): -1
    }
    # by (new_position, new_value)
    VALUE_AFTER = {(3, 1): 11}

    def __init__(self):
        self.position = 0
        self.value = 0

    def set_state(self, observation):
        self.position, self.value = divmod(observation, 12)

    def observation(self):
        return self.position * 12 + self.value

    def step(self, action):
        position, value = self.position, self.value
        new_position = min(max(position + self.POSITION_STEP.get(action, 0), 0), 3)
        new_value = min(max(value + self.VALUE_STEP.get((action, position), 0), 0), 11)
        aimed_value = new_value
        new_value = self.VALUE_AFTER.get((new_position, new_value), new_value)
        reward = -1.0
        if aimed_value == 0 and action == 1:
            reward = -100.0
        elif new_position == 3 and new_value - value <= -1:
            reward = -100.0
        terminated = new_position == 3 and new_value == 11
        self.position, self.value = new_position, new_value
        return self.observation(), reward, terminated
