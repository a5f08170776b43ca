def reward_func(state, action, next_state):
    agent = next_state[0]
    here = entities_by_position(next_state, agent.x, agent.y)
    done = any(entity.name == "Goal" for entity in here)
    return (1.0 if done else 0.0), done
