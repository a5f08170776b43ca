"""Functions of programs with offline rules; their source is part of each program.

States are lists of entities, and the first entity is the agent. Features describe the objects here
(at the agent's position), in front of the agent, beyond (behind the object in front), held by the
agent, and named in the action. An effect moves, turns, takes, puts, removes or changes an object.
"""

from typing import Any

DIRECTION_WORDS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


def direction_of(state: Any, action: Any) -> Any:
    """Return the direction of the agent, or else the direction in the name of the action."""
    if getattr(state[0], "direction", None) is not None:
        return state[0].direction
    words = str(action).split()
    return next((DIRECTION_WORDS[word] for word in words if word in DIRECTION_WORDS), (0, 0))


def named_object(state: Any, action: Any) -> Any:
    """Return the first object whose class is named in the action, None without one."""
    words = str(action).split()
    return next((each for each in state[1:] if each.name.lower() in words), None)


def general_action(state: Any, action: Any) -> Any:
    """Return the action with * for the class of the named object."""
    named = named_object(state, action)
    words = str(action).split()
    return " ".join("*" if named and word == named.name.lower() else word for word in words)


def nearby(state: Any, action: Any) -> Any:
    """Return the agent and the objects by position, None without an object."""
    agent, (dx, dy) = state[0], direction_of(state, action)
    found = {"named": named_object(state, action)}
    for where, distance in {"here": 0, "front": 1, "beyond": 2}.items():
        position = (agent.x + distance * dx, agent.y + distance * dy)
        objects = [each for each in state[1:] if (each.x, each.y) == position]
        visible = objects and (where == "here" or (dx, dy) != (0, 0))
        found[where] = objects[-1] if visible else None
    return {**found, "held": agent.carrying, "actor": agent}


def describe(state: Any, action: Any, attributes: Any) -> Any:
    """Return the features of a state: classes and attributes of the nearby objects."""
    objects: Any = nearby(state, action)
    features: Any = {}
    for where in ("front", "held", "beyond", "here", "named"):
        found = objects[where]
        features[where] = found.name if found else None
        for name in attributes:
            features[where + " " + name] = getattr(found, name, None) if found else None
    held, named = features.get("held color"), objects["named"]
    features["front color as held"] = held is not None and features["front color"] == held
    features["named here"] = bool(named) and (named.x, named.y) == (state[0].x, state[0].y)
    return features


def describe_step(state: Any, action: Any, next_state: Any, attributes: Any, wanted: Any) -> Any:
    """Return the features of the objects that the mission names, and of the next state.

    `wanted` has the class and the preceding word of each named object. The last features are the
    pairs of objects that met or parted.
    """
    features: Any = {}
    first, agent = None, next_state[0]
    for kind, word in wanted:
        own = [each for each in [*next_state[1:], agent.carrying] if each and each.name == kind]
        own.sort(key=lambda each: word not in [getattr(each, name, None) for name in attributes])
        found = own[0] if own else None
        is_held = found is not None and found is agent.carrying
        place = None if found is None or is_held else (found.x, found.y)
        features[kind + " here"] = place == (agent.x, agent.y)
        features[kind + " held"] = is_held
        features[kind + " with first"] = place is not None and place == first
        first = place if kind == wanted[0][0] else first
        for name in attributes:
            features[kind + " " + name] = getattr(found, name, None)
    features.update(describe(next_state, action, attributes))
    before, after = pairs_of(state), pairs_of(next_state)
    features["met"] = next(iter(sorted(after - before)), None)
    features["parted"] = next(iter(sorted(before - after)), None)
    met = features["met"].split() if features["met"] else []
    count = sum(each.name == met[0] for each in next_state) if met else 0
    paired = sum(each.startswith(met[0] + " ") for each in after) if met else 0
    features["all met"] = count > 0 and paired == count
    return features


def pairs_of(state: Any) -> Any:
    """Return the pairs of objects of different classes at the same position, without the agent."""
    names: dict[Any, Any] = {}
    for each in state[1:]:
        names.setdefault((each.x, each.y), []).append(each.name)
    return {
        f"{one} {other} {x} {y}"
        for (x, y), here in names.items()
        for one in here
        for other in here
        if one != other
    }


def matches(features: Any, pattern: Any) -> bool:
    """Return whether features have all values of a pattern."""
    return all(features.get(name) == value for name, value in pattern.items())


def apply_effects(state: Any, action: Any, effects: Any, directions: Any) -> Any:
    """Return the state after some effects."""
    objects, (dx, dy) = nearby(state, action), direction_of(state, action)
    for kind, where, *values in effects:
        found = objects[where]
        if found is None:
            continue
        if kind == "move":
            found.x, found.y = found.x + values[0] * dx, found.y + values[0] * dy
        elif kind == "turn":
            index = list(directions).index(tuple(found.direction))
            found.direction = directions[(index + values[0]) % len(directions)]
        elif kind == "set":
            setattr(found, values[0], values[1])
        elif kind == "take":
            state.remove(found)
            objects["actor"].carrying = found
        elif kind == "put":
            objects["actor"].carrying = None
            found.x, found.y = state[0].x + values[0] * dx, state[0].y + values[0] * dy
            state.append(found)
        elif kind == "remove":
            state.remove(found)
        elif kind == "go":
            others = (each for each in state if each.name == found.name and each is not found)
            target = next(others, found)
            state[0].x, state[0].y = target.x, target.y
        elif kind == "join":
            state[0].x, state[0].y = found.x, found.y
    return state
