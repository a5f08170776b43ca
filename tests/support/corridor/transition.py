def ahead(state):
    agent = state[0]
    found = entities_by_position(state, agent.x + agent.direction[0], agent.y)
    return found[0] if found else None


def transition(state, action):
    agent, front = state[0], ahead(state)
    if action == "turn":
        agent.direction = (-agent.direction[0], 0)
    elif action == "forward":
        if front is None or front.name == "Goal" or front.state == "open":
            agent.x += agent.direction[0]
    elif action == "pick up" and front is not None and front.name == "Key":
        state.remove(front)
        agent.carrying = front
    elif action == "toggle" and front is not None and front.name == "Door" and agent.carrying:
        front.state = "open"
    return state
