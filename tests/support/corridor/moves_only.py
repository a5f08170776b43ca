def transition(state, action):
    agent = state[0]
    if action == "turn":
        agent.direction = (-agent.direction[0], 0)
    elif action == "forward":
        x = agent.x + agent.direction[0]
        if not entities_by_position(state, x, agent.y):
            agent.x = x
    return state
