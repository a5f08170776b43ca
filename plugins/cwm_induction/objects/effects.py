"""What actions do to objects: an effect on a thing that plays a part, under a condition."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from cwm_induction.objects.deciding import DecidingCases, DecidingCondition, Product
from cwm_induction.objects.experience import Experience, compiled
from cwm_induction.objects.words import Language

PLACE = ("x", "y")

KEYS = (("front.kind",), ("here.kind",), ("held.kind",))
"""What a rule may speak of first: of other kinds it says nothing, and so nothing happens."""

GOING = {"front": (("front.kind", "beyond.kind"),)}
"""The same for things that go a step: what is where they go counts."""

JUMPING = (("here.kind", "there.kind"),)
"""The same for things that go to where another one is."""


class ObjectEffect(NamedTuple):
    """Fields of the thing in a role, and the expressions they become; none: it vanishes."""

    role: str
    fields: tuple[str, ...]
    values: tuple[str, ...]


class ObjectRule(NamedTuple):
    """What some actions do under a condition."""

    actions: tuple[int, ...]
    condition: DecidingCondition
    effect: ObjectEffect


class EffectGroup(NamedTuple):
    """Actions with rules in common, and the transitions that they were seen in."""

    actions: tuple[int, ...]
    rows: list[int]
    scenes: list[dict[str, Any]]
    situations: DecidingCases


def fit_rules(seen: Experience, *, careful: bool = True, rank: int = 0) -> list[ObjectRule]:
    """Return rules that say what changes; `careful` ones say nothing of what was never seen.

    Of conditions that fit alike the cheapest is taken, or one further behind by `rank`.
    """
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
        mine = [scenes[n] for n in rows]
        situations = DecidingCases(seen.columns(seen.of_situations(), mine), rank)
        group = EffectGroup(actions, rows, mine, situations)
        pushed: list[ObjectRule] = []  # the agent last: where it goes depends on what gives way
        for role, mask in sorted(_played(seen, group, changes), key=lambda one: one[0] == "agent"):
            pushed += _fit_role(seen, group, role, mask, told=pushed, careful=careful)
        rules += pushed
    return rules


def _changes(seen: Experience, rows: Sequence[int]) -> list[set[int]]:
    """Return the slots that changed in each row, but for what follows from being carried."""
    found = []
    for number in rows:
        row = seen.rows[number]
        pairs = enumerate(zip(row.before, row.after, strict=True))
        found.append(
            {
                slot
                for slot, (one, two) in pairs
                if one is not two and differing(seen.language, one, two)
            }
        )
    return found


def differing(language: Language, one: Any, two: Any) -> list[str]:
    """Return the fields in which a thing differs afterwards; what is carried has no place."""
    free = language.schema.classes[0]
    if two.kind == free:
        return [] if one.kind == free else ["gone"]
    fields = [name for name in one._fields[1:] if getattr(one, name) != getattr(two, name)]
    if language.carries and two.held:
        fields = [name for name in fields if name not in PLACE]
    return fields


def _played(
    seen: Experience, group: EffectGroup, changes: list[set[int]]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the roles whose things change, the most often changing first, with their rows.

    A row counts for a role if its thing is there and no earlier role has changed it.
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
    *,
    told: Sequence[ObjectRule],
    careful: bool,
) -> list[ObjectRule]:
    """Return the rules for the things in a role; conditions of other rules are tried first."""
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
        if part == PLACE and seen.language.carries:  # what is carried is where the agent is
            known &= ~np.array([bool(two.held) for two in after])
        effects = _effects(seen, role, part, after, wanted)
        explained = [_explains(seen, group, effect, after, known) for effect in effects]
        left = wanted.copy()
        while left.any() and effects:
            best = int(np.argmax([(each & left).sum() for each in explained]))
            if not (explained[best] & left).any():
                break
            effect, mine = effects.pop(best), explained.pop(best)
            must, never = mine & wanted & left, known & ~mine
            condition = _told(group.situations, [*rules, *told], must, never)
            rest = must & ~group.situations.holds(condition, len(must))
            if rest.any():
                keys = _keys(effect, bool(never.any())) if careful else ()
                more = group.situations.condition(rest, never, keys)[0]
                condition = DecidingCondition((*more.products, *condition.products))
            if condition.products:
                rules.append(ObjectRule(group.actions, condition, effect))
            left &= ~mine
    return rules


def _told(
    situations: DecidingCases, rules: Sequence[ObjectRule], must: np.ndarray, never: np.ndarray
) -> DecidingCondition:
    """Return what conditions of other rules say of this effect: one thing gives way to another."""
    products: list[Product] = []
    left = must.copy()
    for rule in rules:
        holds = situations.holds(rule.condition, len(must))
        if (holds & left).any() and not (holds & never).any():
            products += rule.condition.products
            left &= ~holds
    return DecidingCondition(tuple(dict.fromkeys(products)))


def _keys(effect: ObjectEffect, refused: bool) -> Sequence[tuple[str, ...]]:
    """Return what a careful rule speaks of first."""
    if any("dx" in value for value in effect.values):
        return GOING.get(effect.role, KEYS[:1])
    if effect.fields == PLACE:
        return JUMPING
    if effect.role in ("front", "beyond", "here", "held", "other", "there"):
        return ((f"{effect.role}.kind",),)
    return KEYS if refused or effect.role != "agent" else ()


def _effects(
    seen: Experience, role: str, part: tuple[str, ...], after: list[Any], wanted: np.ndarray
) -> list[ObjectEffect]:
    """Return what may have happened to some fields, what generalises best first."""
    if part == ("gone",):
        return [ObjectEffect(role, (), ())]
    others = [name for name in seen.roles if name != role]
    rows = np.flatnonzero(wanted).tolist()
    found: list[tuple[str, ...]] = []
    if part == PLACE:
        for times in ("", "2 * "):
            found.append(tuple(f"{role}.{axis} + {times}d{axis}" for axis in PLACE))
        found += [tuple(f"{other}.{axis}" for axis in PLACE) for other in others]
        found += sorted({(repr(after[n].x), repr(after[n].y)) for n in rows})
    else:
        [name] = part
        values = sorted({getattr(after[n], name) for n in rows}, key=str)
        if name == "direction" and seen.language.faces:
            count = len(seen.language.schema.directions)
            found += [
                (f"turned({role}.direction, {k if k < count - 1 else -1})",)
                for k in range(1, count)
            ]
        elif values and not isinstance(values[0], str) and name != "held":
            found += [(f"{role}.{name} {sign} {k}",) for k in (1, 2, 3) for sign in "+-"]
        found += [(repr(value),) for value in values]
        found += [(f"{other}.{name}",) for other in others]
    return [ObjectEffect(role, part, values) for values in found]


def _explains(
    seen: Experience, group: EffectGroup, effect: ObjectEffect, after: list[Any], known: np.ndarray
) -> np.ndarray:
    """Return the mask of the rows in which an effect gives what came about."""
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
        asked = "action in MOVES" if is_moves else f"action == {actions[0]}"
        lines.append(f"    {'el' * bool(number)}if {asked}:")
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
    """Return the roles that a text speaks of, and those that these need, in order."""
    wanted: set[str] = set()
    for name in reversed(roles):
        told = " ".join([text, *(roles[each] for each in wanted)])
        if re.search(rf"(?<![\w'\".]){name}(?![\w'\"(]|=[^=])", told):
            wanted.add(name)
    return {name: roles[name] for name in roles if name in wanted}
