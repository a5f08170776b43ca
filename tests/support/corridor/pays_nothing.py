def reward_func(state, action, next_state):
    return 0.0, False
