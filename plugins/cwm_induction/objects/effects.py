"""Rules for the effects of actions on objects: an effect on the object in a role, if it applies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from cwm_induction.decision_list import Spend
from cwm_induction.objects.experience import (
    DecidingCases,
    DecidingCondition,
    Experience,
    Product,
    compiled,
)
from cwm_induction.objects.words import Language

PLACE = ("x", "y")

KEYS = (("front.kind",), ("here.kind",), ("held.kind",))
"""Properties that a rule tests first; objects of kinds without data stay unchanged."""

STEP_KEYS = {"front": (("front.kind", "beyond.kind"),)}
"""First properties for an object that moves one step: they include the kind at its target."""

JUMP_KEYS = (("here.kind", "there.kind"),)
"""First properties for an object that moves to the position of another object."""


class ObjectEffect(NamedTuple):
    """New values of fields of the object in a role; without fields, the object is removed."""

    role: str
    fields: tuple[str, ...]
    values: tuple[str, ...]


class ObjectRule(NamedTuple):
    """The effect of actions under a condition."""

    actions: tuple[int, ...]
    condition: DecidingCondition
    effect: ObjectEffect


class EffectGroup(NamedTuple):
    """Actions with common rules, and the transitions with these actions."""

    actions: tuple[int, ...]
    rows: list[int]
    scenes: list[dict[str, Any]]
    situations: DecidingCases


def fit_rules(seen: Experience, spend: Spend) -> list[ObjectRule]:
    """Fit rules for the changes of objects."""
    rules: list[ObjectRule] = []
    scenes = seen.scenes()
    moving = tuple(sorted(seen.moves))
    groups = [moving] if moving else []
    groups += [(action,) for action in sorted({row.action for row in seen.rows} - set(moving))]
    for actions in groups:
        rows = [n for n, row in enumerate(seen.rows) if row.action in actions]
        changes = _changes(seen, rows)
        if not any(changes):
            continue
        chosen = [scenes[n] for n in rows]
        situations = DecidingCases(seen.columns(seen.of_situations(), chosen), spend)
        group = EffectGroup(actions, rows, chosen, situations)
        group_rules: list[ObjectRule] = []
        # The agent comes last: its target depends on the objects that move out of its path.
        changing = _changing_roles(seen, group, changes)
        for role, mask in sorted(changing, key=lambda one: one[0] == "agent"):
            group_rules += _fit_role(seen, group, role, mask, group_rules)
        rules += group_rules
    return rules


def _changes(seen: Experience, rows: Sequence[int]) -> list[set[int]]:
    """Return the changed slots of each row, ignoring the position of a carried object."""
    changes = []
    for number in rows:
        row = seen.rows[number]
        pairs = enumerate(zip(row.before, row.after, strict=True))
        changes.append(
            {
                slot
                for slot, (one, two) in pairs
                if one is not two and differing(seen.language, one, two)
            }
        )
    return changes


def differing(language: Language, one: Any, two: Any) -> list[str]:
    """Return the fields of an object that a transition changes; ["gone"] if it is removed.

    The position of an object that is carried after the transition does not count.
    """
    free = language.schema.classes[0]
    if two.kind == free:
        return [] if one.kind == free else ["gone"]
    fields = [name for name in one._fields[1:] if getattr(one, name) != getattr(two, name)]
    if language.carries and two.held:
        fields = [name for name in fields if name not in PLACE]
    return fields


def _changing_roles(
    seen: Experience, group: EffectGroup, changes: list[set[int]]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the roles whose objects change, the most frequent first, with a mask of their rows.

    A row belongs to a role if the role's object exists and no earlier role has changed it.
    """
    left = [set(each) for each in changes]
    slots = {role: np.array([scene[role].slot for scene in group.scenes]) for role in seen.roles}
    roles = list(slots)
    taken = [set[int]() for _ in changes]
    while roles and any(left):
        counts = [
            sum(int(s) in each for s, each in zip(slots[r], left, strict=True)) for r in roles
        ]
        best = int(np.argmax(counts))
        if not counts[best]:
            return
        role = roles.pop(best)
        mask = np.array(
            [s >= 0 and int(s) not in t for s, t in zip(slots[role], taken, strict=True)]
        )
        yield role, mask
        for slot, each, done in zip(slots[role].tolist(), left, taken, strict=True):
            if slot in each:
                each.discard(slot)
                done.add(slot)


def _fit_role(
    seen: Experience,
    group: EffectGroup,
    role: str,
    mask: np.ndarray,
    others: Sequence[ObjectRule],
) -> list[ObjectRule]:
    """Return the rules for objects in a role; conditions of the `others` are tried first."""
    before = [scene[role] for scene in group.scenes]
    after = [
        seen.rows[number].after[thing.slot] if there else thing
        for number, thing, there in zip(group.rows, before, mask, strict=True)
    ]
    differs = [differing(seen.language, one, two) for one, two in zip(before, after, strict=True)]
    fields = sorted({name for each in differs for name in each})
    parts: list[tuple[str, ...]] = [(name,) for name in fields if name not in PLACE]
    parts += [PLACE] if set(fields) & set(PLACE) else []
    gone = np.array([each == ["gone"] for each in differs])
    rules: list[ObjectRule] = []
    for part in parts:
        wanted = np.array([bool(set(part) & set(each)) for each in differs]) & mask
        known = mask & (~gone if part != ("gone",) else mask)
        if part == PLACE and seen.language.carries:  # carried objects share the agent's position
            known &= ~np.array([bool(two.held) for two in after])
        effects = _effects(seen, role, part, after, wanted)
        explained = [_explains(seen, group, effect, after, known) for effect in effects]
        left = wanted.copy()
        while left.any() and effects:
            best = int(np.argmax([(each & left).sum() for each in explained]))
            if not (explained[best] & left).any():
                break
            effect, matches = effects.pop(best), explained.pop(best)
            must, never = matches & wanted & left, known & ~matches
            condition = _reused(group.situations, [*rules, *others], must, never)
            rest = must & ~group.situations.holds(condition, len(must))
            if rest.any():
                keys = _keys(effect, bool(never.any()))
                more = group.situations.condition(rest, never, keys)
                condition = DecidingCondition((*more.products, *condition.products))
            if condition.products:
                rules.append(ObjectRule(group.actions, condition, effect))
            left &= ~matches
    return rules


def _reused(
    situations: DecidingCases, rules: Sequence[ObjectRule], must: np.ndarray, never: np.ndarray
) -> DecidingCondition:
    """Return the conditions of other rules that fit this effect.

    Such rules often fire together: one object moves out of the path of another one.
    """
    products: list[Product] = []
    left = must.copy()
    for rule in rules:
        holds = situations.holds(rule.condition, len(must))
        if (holds & left).any() and not (holds & never).any():
            products += rule.condition.products
            left &= ~holds
    return DecidingCondition(tuple(dict.fromkeys(products)))


def _keys(effect: ObjectEffect, refused: bool) -> Sequence[tuple[str, ...]]:
    """Return the groups of properties that a rule tests first."""
    if any("dx" in value for value in effect.values):
        return STEP_KEYS.get(effect.role, KEYS[:1])
    if effect.fields == PLACE:
        return JUMP_KEYS
    if effect.role in ("front", "beyond", "here", "held", "other", "there"):
        return ((f"{effect.role}.kind",),)
    return KEYS if refused or effect.role != "agent" else ()


def _effects(
    seen: Experience, role: str, part: tuple[str, ...], after: list[Any], wanted: np.ndarray
) -> list[ObjectEffect]:
    """Return candidate effects on the fields in `part`, the most general first."""
    if part == ("gone",):
        return [ObjectEffect(role, (), ())]
    others = [name for name in seen.roles if name != role]
    rows = np.flatnonzero(wanted).tolist()
    candidates: list[tuple[str, ...]] = []
    if part == PLACE:
        for times in ("", "2 * "):
            candidates.append(tuple(f"{role}.{axis} + {times}d{axis}" for axis in PLACE))
        candidates += [tuple(f"{other}.{axis}" for axis in PLACE) for other in others]
        candidates += sorted({(repr(after[n].x), repr(after[n].y)) for n in rows})
    else:
        [name] = part
        values = sorted({getattr(after[n], name) for n in rows}, key=str)
        if name == "direction" and seen.language.faces:
            count = len(seen.language.schema.directions)
            candidates += [
                (f"turned({role}.direction, {k if k < count - 1 else -1})",)
                for k in range(1, count)
            ]
        elif values and not isinstance(values[0], str) and name != "held":
            candidates += [(f"{role}.{name} {sign} {k}",) for k in (1, 2, 3) for sign in "+-"]
        candidates += [(repr(value),) for value in values]
        candidates += [(f"{other}.{name}",) for other in others]
    return [ObjectEffect(role, part, values) for values in candidates]


def _explains(
    seen: Experience, group: EffectGroup, effect: ObjectEffect, after: list[Any], known: np.ndarray
) -> np.ndarray:
    """Return a mask of the known rows whose outcome equals the effect."""
    if not effect.fields:
        free = seen.language.schema.classes[0]
        gone: np.ndarray = np.array([two.kind == free for two in after]) & known
        return gone
    space = seen.language.space
    codes = [compiled(text) for text in effect.values]
    source = effect.values[0].split(".")[0] if "." in effect.values[0] else effect.role
    mask = np.zeros(len(after), np.bool_)
    for number in np.flatnonzero(known).tolist():
        scene = group.scenes[number]
        if getattr(scene.get(source), "slot", 0) < 0:
            continue
        values = [eval(code, space, scene) for code in codes]  # noqa: S307  # ours
        mask[number] = all(
            getattr(after[number], name) == value
            for name, value in zip(effect.fields, values, strict=True)
        )
    return mask


def write_transition(seen: Experience, rules: Sequence[ObjectRule]) -> str:
    """Write the rules as a function of a state and an action."""
    lines: list[str] = []
    by_actions: dict[tuple[int, ...], dict[str, list[str]]] = {}
    changes: dict[tuple[tuple[int, ...], str, str], dict[str, str]] = {}
    for rule in rules:
        key = rule.actions, str(rule.condition), rule.effect.role
        changes.setdefault(key, {}).update(zip(rule.effect.fields, rule.effect.values, strict=True))
    for (actions, condition, role), fields in changes.items():
        given = "".join(f", {name}={value}" for name, value in fields.items())
        text = f"change(after, {role}{given})" if fields else f"remove(after, {role})"
        by_actions.setdefault(actions, {}).setdefault(condition, []).append(text)
    for number, (actions, conditions) in enumerate(by_actions.items()):
        is_moves = bool(seen.moves) and set(actions) == set(seen.moves)
        test = "action in MOVES" if is_moves else f"action == {actions[0]}"
        lines.append(f"    {'el' * bool(number)}if {test}:")
        for condition, texts in conditions.items():
            indent = " " * 8
            if condition:
                lines.append(f"{indent}if {condition}:")
                indent += " " * 4
            lines += [indent + text for text in texts]
    if seen.language.carries:
        lines.append("    held_after = carried(after)")
        lines.append("    change(after, held_after, x=after[0].x, y=after[0].y)")
    roles = needed(seen.roles, "\n".join(lines))
    way = (
        "DIRECTIONS.get(agent.direction, (0, 0))"
        if seen.language.faces
        else "MOVES.get(action, (0, 0))"
    )
    head = ["def transition(state, action):", '    """Return the objects after an action."""']
    head += ["    after = list(state)", "    agent = state[0]"]
    text = "\n".join([*(roles[name] for name in roles), *lines])
    if "dx" in text:
        head.append(f"    dx, dy = {way}")
    head += [f"    {name} = {roles[name]}" for name in roles if name != "agent"]
    return "\n".join([*head, *lines, "    return tuple(after)", ""])


def needed(roles: dict[str, str], text: str) -> dict[str, str]:
    """Return the roles that a text mentions, with the roles that they depend on, in order."""
    wanted: set[str] = set()
    for name in reversed(roles):
        code = " ".join([text, *(roles[each] for each in wanted)])
        if re.search(rf"(?<![\w'\".]){name}(?![\w'\"(]|=[^=])", code):
            wanted.add(name)
    return {name: roles[name] for name in roles if name in wanted}


class RewardAndEnd(NamedTuple):
    """The reward of a step, and whether it ends the episode."""

    reward: float
    done: bool


class RewardRules(NamedTuple):
    """Outcomes with their conditions, and the outcome if no condition holds."""

    rules: list[tuple[DecidingCondition, RewardAndEnd]]
    otherwise: RewardAndEnd


def fit_outcomes(seen: Experience, spend: Spend) -> RewardRules:
    """Return rules for rewards and ends, the rarest outcomes first.

    The rules test the state after a step and the objects that the mission names, so that they
    also hold for other missions.
    """
    outcomes = [RewardAndEnd(row.reward, row.done) for row in seen.rows]
    [(otherwise, _), *others] = Counter(outcomes).most_common() or [(RewardAndEnd(0.0, False), 0)]
    if not others:
        return RewardRules([], otherwise)
    situations = DecidingCases(seen.columns(seen.of_outcomes(), seen.scenes(after=True)), spend)
    rules = []
    for outcome, _ in reversed(others):
        wanted = np.array([each == outcome for each in outcomes])
        condition = situations.condition(wanted, ~wanted)
        if condition.products:
            rules.append((condition, outcome))
    return RewardRules(rules, otherwise)


def write_reward(seen: Experience, outcomes: RewardRules) -> str:
    """Write the rules as a function of a mission, two states and the action between them."""
    lines = []
    for condition, outcome in outcomes.rules:
        lines += [f"    if {condition}:", f"        return {outcome.reward!r}, {outcome.done!r}"]
    roles = needed(seen.roles, "\n".join(lines))
    head = [
        "def reward(mission, state, action, after):",
        '    """Return the reward of a step, and whether it ends the episode."""',
    ]
    if roles:
        head.append("    agent = after[0]")
    if any("dx" in text for text in roles.values()):
        faces = seen.language.faces
        way = "DIRECTIONS.get(agent.direction" if faces else "MOVES.get(action"
        head.append(f"    dx, dy = {way}, (0, 0))")
    head += [
        f"    {name} = {text.replace('state', 'after')}"
        for name, text in roles.items()
        if name != "agent"
    ]
    last = f"    return {outcomes.otherwise.reward!r}, {outcomes.otherwise.done!r}"
    return "\n".join([*head, *lines, last, ""])
