"""What the programs of offline rules are made of; its functions are written into each of them.

A situation is what the thing that acts has before it, behind that, under it and in its hands. An
effect moves, turns, takes, puts or changes one of these. States are lists of entities, the acting
one first.
"""

from typing import Any

WAYS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


def points(state: Any, action: Any) -> Any:
    """Return where an action points: where the actor looks, or what the action says."""
    if getattr(state[0], "direction", None) is not None:
        return state[0].direction
    return next((WAYS[word] for word in str(action).split() if word in WAYS), (0, 0))


def found(state: Any, action: Any) -> Any:
    """Return the things that matter, by where they are; None where there is none."""
    actor, (dx, dy) = state[0], points(state, action)
    places = {"here": 0, "front": 1, "beyond": 2}
    lying = {
        where: next(
            (
                thing
                for thing in reversed(state[1:])
                if (thing.x, thing.y) == (actor.x + far * dx, actor.y + far * dy)
                and (where == "here" or (dx, dy) != (0, 0))
            ),
            None,
        )
        for where, far in places.items()
    }
    return {**lying, "held": actor.carrying, "actor": actor}


def situation(state: Any, action: Any) -> Any:
    """Return the same in names and values."""
    things, said = found(state, action), {}
    for where in ("front", "held", "beyond", "here"):
        thing = things[where]
        said[where] = thing.name if thing else None
        for name in ("state", "color"):
            said[where + " " + name] = getattr(thing, name, None) if thing else None
    held = said["held color"]
    said["front color as held"] = held is not None and said["front color"] == held
    return said


def outcome(state: Any, action: Any, next_state: Any) -> Any:
    """Return what there is after a step, and what met or parted by it."""
    said, pairs = situation(next_state, action), [joined(state), joined(next_state)]
    said["met"] = next(iter(sorted(pairs[1] - pairs[0])), None)
    said["parted"] = next(iter(sorted(pairs[0] - pairs[1])), None)
    met = said["met"].split() if said["met"] else []
    free = sum(thing.name == met[0] for thing in next_state) if met else 0
    said["all met"] = free > 0 and sum(each.startswith(met[0] + " ") for each in pairs[1]) == free
    return said


def joined(state: Any) -> Any:
    """Return which things of different classes lie at the same place, the actor aside."""
    lying: dict[Any, Any] = {}
    for thing in state[1:]:
        lying.setdefault((thing.x, thing.y), []).append(thing.name)
    return {
        f"{one} {other} {x} {y}"
        for (x, y), names in lying.items()
        if len(names) > 1
        for one in names
        for other in names
        if one != other
    }


def fits(said: Any, pattern: Any) -> bool:
    """Tell whether a situation has all values of a pattern."""
    return all(said.get(name) == value for name, value in pattern.items())


def apply(state: Any, action: Any, effects: Any, directions: Any) -> Any:
    """Return the state after some effects."""
    things, (dx, dy) = found(state, action), points(state, action)
    for kind, where, *more in effects:
        thing = things[where]
        if thing is None:
            continue
        if kind == "move":
            thing.x, thing.y = thing.x + more[0] * dx, thing.y + more[0] * dy
        elif kind == "turn":
            place = list(directions).index(tuple(thing.direction))
            thing.direction = directions[(place + more[0]) % len(directions)]
        elif kind == "set":
            setattr(thing, more[0], more[1])
        elif kind == "take":
            state.remove(thing)
            things["actor"].carrying = thing
        elif kind == "put":
            things["actor"].carrying = None
            thing.x, thing.y = state[0].x + dx, state[0].y + dy
            state.append(thing)
        elif kind == "remove":
            state.remove(thing)
        elif kind == "go":
            others = (t for t in state if t.name == thing.name and t is not thing)
            other = next(others, thing)
            state[0].x, state[0].y = other.x, other.y
    return state
