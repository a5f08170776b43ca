"""An offline backend for the agent, which learns rules over classes of objects.

The backend uses only the content of the prompt. Each program contains the cases that it was learned
from, so that a fix adds cases and loses none. For a mission without a plan, the backend guesses
effects that its templates allow and that no case contradicts, and a reward for the objects that the
mission names.
"""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import log2
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Transition
from cwm_cli.data.objects import OBJECTS
from cwm_cli.search.contracts import Backend, Completion, Request
from cwm_learn.missions import StateView, class_name, words
from cwm_worldcoder import rules
from cwm_worldcoder.asking import ProgramQuestion

LIBRARY = "\n\n".join(
    inspect.getsource(function)
    for function in (rules.direction_of, rules.named_object, rules.general_action, rules.nearby,
                     rules.describe, rules.describe_step, rules.pairs_of, rules.matches,
                     rules.apply_effects)
).replace(": Any", "").replace(" -> Any", "")  # fmt: skip
"""The functions that each program contains."""

HINTS = {
    "take": ("pick", "take", "get", "grab"),
    "put": ("drop", "put"),
    "set": ("toggle", "open", "close", "use", "unlock", "switch"),
    "go": ("activate", "teleport", "enter", "use"),
    "join": ("go", "walk"),
}
"""Words in the name of an action that suggest an effect."""


class RuleCase(NamedTuple):
    """The result of an action for given features."""

    action: str
    features: dict[str, Any]
    result: Any


class RuleGuess(NamedTuple):
    """A possible result of an action for all features with a pattern."""

    action: str
    pattern: dict[str, Any]
    result: Any

    def contradicts(self, cases: Sequence[RuleCase]) -> bool:
        """Return whether a case with the pattern has another result."""
        return any(
            case.action == self.action
            and rules.matches(case.features, self.pattern)
            and case.result != self.result
            for case in cases
        )


class ProposedEntity:
    """An object with the attributes that it has in programs."""

    def __init__(self, name: str, slot: int, attributes: Mapping[str, Any]) -> None:
        self.name, self.slot, self.carrying = name, slot, None
        self.__dict__.update(attributes)


class RuleProposer(Backend):
    """Writes transition and reward programs as rules over classes of objects."""

    model: str = ""

    def complete(self, request: Request) -> Completion:
        """Answer a question of the agent; the answer is "" without a schema of objects."""
        question = request.problem
        if not isinstance(question, ProgramQuestion) or question.view.schema is None:
            return Completion("")
        if question.kind == "reach":
            rng = np.random.default_rng([request.seed, request.step])
            return Completion(self._reach(question, rng))
        if question.kind == "guess reward":
            return Completion(_fenced(self._guess(question)))
        write = self._reward if "reward" in question.kind else self._transition
        return Completion(_fenced(write(question)))

    def _transition(self, question: ProgramQuestion) -> str:
        cases, guesses = _read_program(question.transition)
        for row in _rows(question):
            cases.append(RuleCase(*effects_of(question.view, row)))
        return transition_code(question.view, _distinct(cases), guesses)

    def _reward(self, question: ProgramQuestion) -> str:
        cases, guesses = _read_program(question.reward)
        view, names = question.view, attributes(question.view)
        wanted = wanted_objects(view, question.mission)
        for row in _rows(question):
            before, after = entities(view, row.observation), entities(view, row.next_observation)
            features = rules.describe_step(before, view.action(row.action), after, names, wanted)
            cases.append(RuleCase("", features, [row.reward, row.terminated]))
        return reward_code(view, question.mission, _distinct(cases), guesses)

    def _guess(self, question: ProgramQuestion) -> str:
        """Replace words in the reward program of the most similar mission."""
        mission, code = next(iter((question.others or {}).items()))
        cases, guesses = _read_program(code)
        old, new = words(mission), words(question.mission)
        swap = {a: b for a, b in zip(old, new, strict=False) if a != b}
        swap |= {class_name(a): class_name(b) for a, b in swap.items()}

        def replaced(values: Mapping[str, Any]) -> dict[str, Any]:
            return {
                " ".join(swap.get(w, w) for w in n.split()): swap.get(v, v)
                if isinstance(v, str)
                else v
                for n, v in values.items()
            }

        rewarded = [RuleCase("", replaced(c.features), c.result) for c in cases if c.result[0] > 0]
        known = [case.features for case in rewarded]
        others = [
            case._replace(features=replaced(case.features))
            for case in cases
            if case.result[0] <= 0 and replaced(case.features) not in known
        ]
        guesses = [each._replace(pattern=replaced(each.pattern)) for each in guesses]
        cases = _distinct(others + rewarded)
        return reward_code(question.view, question.mission, cases, guesses)

    def _reach(self, question: ProgramQuestion, rng: np.random.Generator) -> str:
        """Guess effects, and one reward, that no case contradicts."""
        view, start = question.view, entities(question.view, question.start)
        moves, _ = _read_program(question.transition)
        rewards, _ = _read_program(question.reward)
        ends = [
            each for each in guess_ends(view, question.mission) if not each.contradicts(rewards)
        ]
        chosen = [ends[min(int(rng.geometric(0.5)), len(ends)) - 1]] if ends else []
        guesses = guess_effects(view, moves, start)
        known = {c.action for c in moves if c.result} | {g.action for g in guesses if g.result}
        actions = [rules.general_action(start, action) for action in view.actions]
        unknown = [action for action in dict.fromkeys(actions) if action not in known]
        for name, value in chosen[0].pattern.items() if chosen and unknown else ():
            if (attribute := name.split()[-1]) in attributes(view):
                effect = ["set", "held", attribute, value]
                guesses.append(RuleGuess(unknown[rng.integers(len(unknown))], {}, [effect]))
        transition = transition_code(view, moves, guesses)
        reward = reward_code(view, question.mission, rewards, chosen)
        return f"{_fenced(transition)}\n\n{_fenced(reward)}"


def entities(view: StateView, observation: Any) -> list[Any]:
    """Return the entities of an observation; the agent has the held one in `carrying`."""
    schema = view.schema
    held: ProposedEntity | None = None
    state: list[Any] = []
    if schema is None:
        return state
    for slot, row in enumerate(observation[OBJECTS]):
        if not row[0]:
            continue
        [thing] = schema.decode(row[None])
        values: dict[str, Any] = {
            name: None if value == "none" else value for name, value in thing.properties.items()
        }
        if "direction" in values and schema.directions:
            number = int(row[schema.column("direction")])
            values["direction"] = schema.directions[number - 1] if number else None
        entity = ProposedEntity(class_name(thing.kind), slot, values)
        if values.get("held"):
            held = entity
        else:
            state.append(entity)
    if state:
        state[0].carrying = held
    return state


def attributes(view: StateView) -> list[str]:
    """Return the attributes of objects in features; the state is the first one."""
    fields = [each.name for each in view.schema.fields] if view.schema else []
    names = [each for each in fields if each not in ("x", "y", "direction", "held")]
    return sorted(names, key=lambda each: each != "state")


def wanted_objects(view: StateView, mission: str) -> list[tuple[str, str]]:
    """Return the class and the preceding word of each object that the mission names."""
    text = words(mission)
    kinds = view.schema.classes[1:] if view.schema else ()
    found = sorted((text.index(words(k)[0]), k) for k in kinds if set(words(k)) <= set(text))
    return [(class_name(kind), text[place - 1] if place else "") for place, kind in found]


def effects_of(view: StateView, row: Transition) -> tuple[str, dict[str, Any], list[Any]]:
    """Return the general action and the features of a row, and the effects of its action."""
    action = view.action(row.action)
    before, after = entities(view, row.observation), entities(view, row.next_observation)
    objects, direction = rules.nearby(before, action), rules.direction_of(before, action)
    agent, carried = after[0], after[0].carrying
    later: dict[int, Any] = {each.slot: each for each in after}
    effects: list[Any] = []
    seen = set[int]()
    for where, old in objects.items():
        if old is None or old.slot in seen:
            continue
        seen.add(old.slot)
        new = later.get(old.slot)
        if where == "held":
            if carried is None:
                is_here = new is None or (new.x, new.y) == (agent.x, agent.y)
                effects.append(["put", "held", 1 - is_here] if new else ["remove", "held"])
            else:
                effects += _changes(view, where, old, carried, (0, 0))
        elif new is None:
            taken = carried is not None and carried.slot == old.slot
            effects.append(["take" if taken else "remove", where])
        else:
            effects += _changes(view, where, old, new, direction)
    here, named = objects["here"], objects["named"]
    has_twin = any(here and each.name == here.name and each is not here for each in before)
    moved = (agent.x, agent.y) != (before[0].x, before[0].y)
    if moved and named is not None and (agent.x, agent.y) == (named.x, named.y):
        effects.append(["join", "named"])
    elif moved and has_twin and not any(each[:2] == ["move", "actor"] for each in effects):
        effects.append(["go", "here"])
    order = ("remove", "put", "take", "set", "move", "turn", "go", "join")
    effects.sort(key=lambda each: (order.index(each[0]), each[1] == "actor"))
    general = rules.general_action(before, action)
    return general, rules.describe(before, action, attributes(view)), effects


def _changes(
    view: StateView, where: str, old: Any, new: Any, direction: tuple[int, int]
) -> Iterator[list[Any]]:
    """Yield the effects on one object."""
    moved = (new.x - old.x, new.y - old.y)
    if moved != (0, 0) and direction != (0, 0):
        for distance in (1, 2, -1):
            if moved == (distance * direction[0], distance * direction[1]):
                yield ["move", where, distance]
    directions = view.schema.directions if view.schema else ()
    for name in (each.name for each in view.schema.fields) if view.schema else ():
        before, after = getattr(old, name), getattr(new, name)
        if name in ("x", "y", "held") or before == after:
            continue
        if name != "direction":
            yield ["set", where, name, after]
        elif before in directions and after in directions:
            turn = (directions.index(after) - directions.index(before)) % len(directions)
            yield ["turn", where, turn]


def guess_effects(
    view: StateView, cases: Sequence[RuleCase], start: Sequence[Any]
) -> list[RuleGuess]:
    """Return possible effects of actions, general ones before special ones."""
    kinds = list(dict.fromkeys(each.name for each in start[1:]))
    states = [each for each in _values(view, "state") if each not in ("none", "hidden")]
    step = ["move", "actor", 1]
    actions = dict.fromkeys(rules.general_action(start, action) for action in view.actions)
    walks = [a for a in actions if any(c.action == a and step in c.result for c in cases)]
    directions = {"forward", *rules.DIRECTION_WORDS}
    walks = walks or [action for action in actions if directions & set(action.split())]
    guesses: list[RuleGuess] = []
    kinds_of_all = {
        word for kind in (view.schema.classes if view.schema else ()) for word in words(kind)
    }
    for action in actions:
        if kinds_of_all & set(action.split()):  # names an object that is not in the state
            continue
        hinted = [each for each, hints in HINTS.items() if set(hints) & set(action.split())]
        is_known = action in walks or any(c.result for c in cases if c.action == action)
        possible = hinted or ([] if is_known else list(HINTS))
        found: list[tuple[dict[str, Any], list[Any]]] = []
        is_named = "*" in action.split()
        if is_named and "take" in possible:
            found.append(({"held": None}, [["take", "named"]]))
        if is_named and "join" in possible:
            found.append(({}, [["join", "named"]]))
        for kind in kinds if not is_named else ():
            front = {"front": kind}
            if action in walks:
                found += [({**front, "front state": state}, [step]) for state in (None, *states)]
                found.append(({**front, "beyond": None}, [["move", "front", 1], step]))
            if "take" in possible:
                found.append(({**front, "held": None}, [["take", "front"]]))
            for state in states if "set" in possible else ():
                effects = [["set", "front", "state", state]]
                found.append((front, effects))
                for held in kinds:
                    found.append(({**front, "held": held}, effects))
                    found.append(({**front, "held": held, "front color as held": True}, effects))
            if "go" in possible and sum(each.name == kind for each in start) > 1:
                found.append(({"here": kind}, [["go", "here"]]))
        if "put" in possible:
            distance = int(getattr(start[0], "direction", None) is not None)
            found.append(({"front": None}, [["put", "held", distance]]))
        guesses += [RuleGuess(action, *each) for each in found if each[0].get("front") != "Wall"]
    return guesses


def guess_ends(view: StateView, mission: str) -> list[RuleGuess]:
    """Return possible conditions for the reward: to be at, hold or open a named object."""
    if view.schema is None:
        return []
    text, patterns = words(mission), list[dict[str, Any]]()
    states = sorted(_values(view, "state"), key=lambda each: each not in text)
    wanted = wanted_objects(view, mission)
    for kind, _ in reversed(wanted):
        patterns += [{f"{kind} here": True}, {f"{kind} held": True}]
        patterns += [
            {f"{kind} state": state}
            for state in states
            if state not in ("none", "hidden", "locked", "closed")
        ]
    if len(wanted) > 1:
        (kind, word), (place, _) = wanted[:2]
        own = {f"{kind} {n}": word for n in attributes(view)
               if n != "color" and word in _values(view, n)}  # fmt: skip
        patterns.append({f"{kind} held": False, f"{place} with first": True, **own})
    patterns.append({"all met": True})
    verbs = {"pick": "held", "fetch": "held", "open": "state", "go": "here", "get": "here",
             "put": "with first"}  # fmt: skip
    verb = next((verbs[word] for word in text if word in verbs), "")
    patterns.sort(key=lambda each: not any(name.endswith(verb) for name in each))
    return [RuleGuess("", pattern, [1.0, True]) for pattern in patterns]


def _values(view: StateView, name: str) -> Sequence[Any]:
    """Return the possible values of an attribute."""
    fields = view.schema.fields if view.schema else ()
    return next((each.values for each in fields if each.name == name), ())


def transition_code(
    view: StateView, cases: Sequence[RuleCase], guesses: Sequence[RuleGuess]
) -> str:
    """Return a transition program that predicts every case."""
    directions = view.schema.directions if view.schema else ()
    return (
        f"DIRECTIONS = {tuple(directions)!r}\n"
        f"ATTRIBUTES = {attributes(view)!r}\n"
        f"{_program('TRANSITION', 'predict_effects', cases, guesses, '[]')}\n\n"
        "def transition(state, action):\n"
        "    features = describe(state, action, ATTRIBUTES)\n"
        "    effects = predict_effects(general_action(state, action), features)\n"
        "    return apply_effects(state, action, effects, DIRECTIONS)\n"
    )


def reward_code(
    view: StateView, mission: str, cases: Sequence[RuleCase], guesses: Sequence[RuleGuess]
) -> str:
    """Return a reward program that predicts every case."""
    return (
        f"ATTRIBUTES = {attributes(view)!r}\n"
        f"WANTED = {wanted_objects(view, mission)!r}\n"
        f"{_program('REWARD', 'predict_reward', cases, guesses, '[0.0, False]')}\n\n"
        "def reward_func(state, action, next_state):\n"
        "    features = describe_step(state, action, next_state, ATTRIBUTES, WANTED)\n"
        "    reward, done = predict_reward('', features)\n"
        "    return reward, done\n"
    )


def _program(
    prefix: str,
    function: str,
    cases: Sequence[RuleCase],
    guesses: Sequence[RuleGuess],
    default: str,
) -> str:
    """Return the cases, the guesses, the library and a function that applies both as rules.

    Programs of transitions and rewards may be merged, so their names have different prefixes.
    """
    guesses = [each for each in guesses if not each.contradicts(cases)]
    lines = [f"DIRECTION_WORDS = {rules.DIRECTION_WORDS!r}"]
    for name, items in ((f"{prefix}_CASES", cases), (f"{prefix}_GUESSES", guesses)):
        lines += [f"{name} = [", *(f"    {tuple(each)!r}," for each in items), "]"]
    lines += [
        "",
        f"{LIBRARY}\n",
        f"def {function}(action, features):",
        f"    for guessed_action, pattern, result in {prefix}_GUESSES:",
        "        if guessed_action == action and matches(features, pattern):",
        "            return result",
    ]
    for action in dict.fromkeys(case.action for case in cases):
        own = [case for case in cases if case.action == action]
        lines += [f"    if action == {action!r}:", *_branches(own, "        ")]
    return "\n".join([*lines, f"    return {default}"])


def _branches(cases: Sequence[RuleCase], indent: str) -> list[str]:
    """Write cases as a decision tree; each test has the highest information gain."""
    results = Counter(repr(case.result) for case in cases)
    leaf = [f"{indent}return {max(results, key=lambda each: results[each])}"]
    if len(results) == 1:
        return leaf
    tests: dict[tuple[str, str], Any] = {
        (name, repr(value)): value for case in cases for name, value in case.features.items()
    }
    names = dict.fromkeys(name for case in cases for name in case.features)
    order = {name: place for place, name in enumerate(names)}  # cases of other missions have others
    gain, _, name, value = max(
        (
            (_information_gain(cases, name, value), -order[name], name, value)
            for (name, _), value in tests.items()
        ),
        key=lambda each: each[:2],
    )
    if gain <= 0:
        return leaf
    yes = [case for case in cases if case.features.get(name) == value]
    no = [case for case in cases if case.features.get(name) != value]
    return [
        f"{indent}if features.get({name!r}) == {value!r}:",
        *_branches(yes, indent + "    "),
        *_branches(no, indent),
    ]


def _information_gain(cases: Sequence[RuleCase], name: str, value: Any) -> float:
    """Return the information gain of a test on the results, in bits."""
    parts = [
        [case for case in cases if (case.features.get(name) == value) is answer]
        for answer in (True, False)
    ]
    if not all(parts):
        return 0.0
    rest = sum(len(part) / len(cases) * _entropy(part) for part in parts)
    return round(_entropy(cases) - rest, 9)


def _entropy(cases: Sequence[RuleCase]) -> float:
    counts = Counter(repr(case.result) for case in cases).values()
    return -sum(n / len(cases) * log2(n / len(cases)) for n in counts)


def _read_program(code: str) -> tuple[list[RuleCase], list[RuleGuess]]:
    """Return the cases and guesses in a program; none if this backend did not write it."""
    cases: list[RuleCase] = []
    guesses: list[RuleGuess] = []
    for node in ast.parse(code).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.List() as value):
                if name.endswith("_CASES"):
                    cases = [RuleCase(*each) for each in ast.literal_eval(value)]
                elif name.endswith("_GUESSES"):
                    guesses = [RuleGuess(*each) for each in ast.literal_eval(value)]
    return cases, guesses


def _rows(question: ProgramQuestion) -> list[Transition]:
    wrong = (question.wrong,) if question.wrong else ()
    return [each.row for each in (*question.right, *wrong)]


def _distinct(cases: Sequence[RuleCase]) -> list[RuleCase]:
    """Return the distinct cases in a fixed order, so that equal cases make equal programs."""
    return [case for _, case in sorted({repr(case): case for case in cases}.items())]


def _fenced(code: str) -> str:
    return f"```python\n{code}\n```"
