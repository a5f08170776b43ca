"""The text of a program that says what was found."""

import textwrap
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete.chances import Chances, chances_constant, outcomes_lines, step_lines
from cwm_induction.discrete.dynamics import Change, Effect, FactorDynamics
from cwm_induction.discrete.expressions import (
    WIDTH,
    Constants,
    Speaker,
    action_lines,
    assignments,
    broken,
    chain,
    either,
    listed,
    mentions,
    observation_expression,
    part_of_action,
    picked,
    state_lines,
)
from cwm_induction.discrete.features import FLAG, RUN_KINDS
from cwm_induction.discrete.moves import weighted
from cwm_induction.discrete.outcomes import Outcomes, RewardFormula, formula_lines
from cwm_induction.discrete.rules import DecisionTable, RuleColumn
from cwm_induction.discrete.slides import slide_lines
from cwm_induction.discrete.transitions import IntegerEncoding, Transitions


def factor_names(dynamics: FactorDynamics) -> list[str]:
    """Name every factor after what it does: a place that actions move, an item or a flag."""
    radices = dynamics.sizes.radices
    changed = {change.factor for change in dynamics.changes}
    places = [index for index, move in enumerate(dynamics.moves) if move.steps]
    words = _PLACES.get(len(places), tuple(f"place_{n}" for n in range(len(places))))
    names = dict(zip(places, words, strict=True))
    others = [index for index in range(len(radices)) if index not in names]
    for index in others:
        changes = index in changed or dynamics.moves[index].moves
        names[index] = _other_name(
            radices[index], moves=dynamics.moves[index].moves, changes=changes
        )
    landmarks = dynamics.sizes.landmarks
    if landmarks:
        names |= dict.fromkeys(landmarks.goals(radices), "target")
    if len(radices) == 1 and not places:
        return ["state"]
    counts = [list(names.values()).count(names[index]) for index in range(len(radices))]
    return [f"{names[i]}_{i}" if count > 1 else names[i] for i, count in enumerate(counts)]


def _other_name(radix: int, *, moves: bool, changes: bool) -> str:
    """Name a factor that is no place."""
    if not changes:
        return "setting"
    return "flag" if radix == FLAG else "value" if moves else "item"


_PLACES = {0: (), 1: ("position",), 2: ("row", "column"), 3: ("layer", "row", "column")}


class DiscreteModel(NamedTuple):
    """Everything that was found about an environment."""

    frame: IntegerEncoding
    dynamics: FactorDynamics
    outcomes: Outcomes
    rewards: tuple[float, ...]
    chances: Chances | None = None
    formula: RewardFormula | None = None


class Wording:
    """The names and constants of one program; `known` are the factors that have a next value."""

    def __init__(self, model: DiscreteModel) -> None:
        self.model, self.dynamics = model, model.dynamics
        self.names = factor_names(model.dynamics)
        self.constants = Constants()
        changed = {change.factor for change in self.dynamics.changes}
        moves = self.dynamics.moves
        self.changing = [i for i, move in enumerate(moves) if move.moves or i in changed]
        self.moving = [i for i, move in enumerate(moves) if move.moves]
        self.known = set(self.moving)
        self.rewards = tuple(repr(reward) for reward in model.rewards)
        self.speaker = Speaker(self.constants, self.spell, self.rewards)

    def spell(self, column: RuleColumn) -> str:
        """Name what a rule looks at."""
        paid = "bonus" if self.model.formula else "reward"
        plain = {"same": "unchanged", "done": "terminated", "reward": paid}
        if column.kind in ("at", "perhaps", "site"):
            return self._lies(column)
        if column.kind == "part":
            return part_of_action(self.dynamics.sizes.parts, column.other)
        if column.kind in ("pick", "meets", "change", "gap", *RUN_KINDS):
            return self._compared(column)
        if column.factor < 0:
            return plain.get(column.kind, column.kind)
        name = self.names[column.factor]
        new = f"new_{name}" if column.factor in self.known else name
        special = {"aimed": f"aimed_{name}", "edge": f"{name} + new_{name}", "new": new}
        return special.get(column.kind, name)

    def _compared(self, column: RuleColumn) -> str:
        """Name what a rule says about several factors, or about the change of one."""
        if column.kind == "pick":
            return picked([self.names[cell] for cell in column.cell], self.names[column.factor])
        if column.kind in RUN_KINDS:
            return _about_run(column, [self.spell(RuleColumn("new", f, 0)) for f in column.cell])
        name = self.spell(RuleColumn("new", column.factor, 0))
        if column.kind == "change":
            return f"{name} - {self.names[column.factor]}"
        other = self.spell(RuleColumn("new", column.other, 0))
        return f"{name} {'==' if column.kind == 'meets' else '-'} {other}"

    def after(self, factor: int) -> str:
        """Name the value of a factor after the step."""
        changes = factor in self.changing
        return f"new_{self.names[factor]}" if changes else self.names[factor]

    def unchanged(self) -> list[str]:
        """Write whether the state stays as it was."""
        names = [self.names[i] for i in self.changing]
        if len(names) == 1:
            return [f"unchanged = new_{names[0]} == {names[0]}"]
        return broken("unchanged = ", f"({listed(names, 'new_')}) == ({listed(names)})")

    def cell(self) -> str:
        """Write the present cell."""
        landmarks = self.dynamics.sizes.landmarks
        names = [self.names[place] for place in landmarks.places] if landmarks else []
        return names[0] if len(names) == 1 else f"({listed(names)})"

    def value_at(self) -> str:
        """Write the constant that says what stands for which cell."""
        landmarks = self.dynamics.sizes.landmarks
        if landmarks is None:
            return "{}"
        entries = [
            f"{cell[0] if len(cell) == 1 else cell}: {value}"
            for cell, value in landmarks.values.items()
        ]
        name = self.names[landmarks.item]
        comment = f"{name} that lies at {self.cell()}, or is to be brought there"
        return self.constants.add(f"{name.upper()}_AT", "{" + ", ".join(entries) + "}", comment)

    def _lies(self, column: RuleColumn) -> str:
        """Write what is said about the present cell and what a factor stands for."""
        landmarks, cell = self.dynamics.sizes.landmarks, self.cell()
        if landmarks is None or column.kind == "site":
            return f"{cell} in {self.value_at()}"
        name = self.names[column.factor]
        if column.kind == "at":
            return f"{self.value_at()}.get({cell}) == {name}"
        cells = {**landmarks.possible, **{value: (at,) for value, at in landmarks.sites.items()}}
        entries = [f"{value}: {{{str(cells[value])[1:-1].rstrip(',')}}}" for value in sorted(cells)]
        comment = f"cells that {name} may stand for: the one that was seen, or all not ruled out"
        display = "{" + ", ".join(entries) + "}"
        constant = self.constants.add(f"{name.upper()}_CELLS", display, comment)
        return f"{cell} in {constant}.get({name}, ())"


def _about_run(column: RuleColumn, names: list[str]) -> str:
    """Write what is said about several factors together."""
    values = f"[{listed(names)}]"
    if column.kind == "rising":
        return f"sorted({values}) == {values}"
    if column.kind == "alike":
        return f"len({{{listed(names)}}}) == 1"
    return f"sum({values})" if column.kind == "sum" else f"{values}.count({column.other})"


def change_lines(wording: Wording) -> tuple[list[str], list[str]]:
    """Write the nominal moves, and where nothing moves and what else changes."""
    slide, names = wording.dynamics.slide, [wording.names[i] for i in wording.moving]
    if slide:
        return slide_lines(wording.constants, slide, wording.names), _exceptions(wording, "")
    targets = [_target(wording, factor) for factor in wording.moving]
    block = wording.dynamics.block
    test = either(wording.speaker.conditions(block.rules, "BLOCKED")) if block else "False"
    cut = mentions(test, "outside")
    moves = []
    for factor, name, target in zip(wording.moving, names, targets, strict=True):
        moves += [f"target_{name} = {target}"] if cut else []
        bounded = _bounded(wording, factor, f"target_{name}" if cut else target)
        moves.append(f"new_{name} = {bounded}")
    if cut:
        sides = f"({listed(names, 'new_')}) != ({listed(names, 'target_')})"
        moves += broken("outside = ", sides)
    return moves, _exceptions(wording, test)


def _target(wording: Wording, factor: int) -> str:
    """Write where the move of a factor leads without bounds."""
    move, name = wording.dynamics.moves[factor], wording.names[factor]
    key = "action" if move.key is None else f"(action, {wording.names[move.key]})"
    entries = [
        f"{action if move.key is None else (action, column)}: {int(delta)}"
        for (action, column), delta in _cells(move.deltas)
        if delta
    ]
    base = name if move.weights is None else weighted(move.weights, factor, wording.names)
    if not entries:
        return base
    display, comment = "{" + ", ".join(entries) + "}", f"change of {name} by {key}"
    step = wording.constants.add(f"{name.upper()}_STEP", display, comment)
    return f"{base} + {step}.get({key}, 0)"


def _bounded(wording: Wording, factor: int, target: str) -> str:
    """Write where a move leads within the bounds."""
    move = wording.dynamics.moves[factor]
    if move.wraps:
        return f"({target}) % {move.radix}"
    return f"min(max({target}, 0), {move.radix - 1})"


def _exceptions(wording: Wording, blocked: str) -> list[str]:
    """Write where nothing moves and what else changes."""
    lines: list[str] = []
    names = [wording.names[i] for i in wording.moving]
    if blocked not in ("", "False"):
        lines += broken("if ", blocked, ":")
        lines.append(f"    {listed(names, 'new_')} = {listed(names)}")
    for change in wording.dynamics.changes:
        lines += _change(wording, change)
        wording.known.add(change.factor)
    return lines


def _change(wording: Wording, change: Change) -> list[str]:
    """Write the exceptions of one factor."""
    name, known = wording.names[change.factor], change.factor in wording.known
    values = {n: _effect(wording, e, change.factor) for n, e in enumerate(change.effects, 1)}
    layers, constant = change.rules.layers, f"{name.upper()}_AFTER"
    settled = all(effect.kind == "set" for effect in change.effects)
    if settled and len(layers) == 1 and isinstance(layers[0], DecisionTable):
        default = f"new_{name}" if known else name
        lookup = wording.speaker.lookup(layers[0], values, constant, default)
        return [f"new_{name} = {lookup}"]
    conditions = wording.speaker.conditions(change.rules, constant)
    return chain(conditions, f"new_{name}", values, default=None if known else name)


def _effect(wording: Wording, effect: Effect, factor: int) -> str:
    """Write the value that an effect gives a factor."""
    name, last = wording.names[factor], wording.dynamics.sizes.radices[factor] - 1
    if effect.kind == "set":
        return str(effect.value)
    if effect.kind == "add":
        return f"min(max({name} + {effect.value}, 0), {last})".replace("+ -", "- ")
    if effect.kind == "site":
        return f"{wording.value_at()}[{wording.cell()}]"
    return name if effect.kind == "keep" else wording.names[effect.value]


def _cells(deltas: np.ndarray) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield the cells of a table of moves."""
    for action, row in enumerate(deltas.tolist()):
        for column, delta in enumerate(row):
            yield (action, column), delta


def outcome_lines(wording: Wording) -> list[str]:
    """Write when the episode ends and what is rewarded, in the order that was found."""
    parts = [_end(wording), _reward(wording)]
    if wording.model.outcomes.reward_first:
        parts.reverse()
    lines = [line for part in parts for line in part]
    flags, text = wording.dynamics.sizes.flags, "\n".join(lines)
    if mentions(text, "total_before"):
        names = [wording.names[flag] for flag in flags]
        lines = [*broken("total_before = ", " + ".join(names)), *lines]
    if mentions(text, "total"):
        lines = [*broken("total = ", " + ".join(map(wording.after, flags))), *lines]
    return lines


def _end(wording: Wording) -> list[str]:
    """Write when the episode ends."""
    found = wording.model.outcomes
    ends = either(wording.speaker.conditions(found.done.rules, "TERMINAL"))
    if found.always:
        ends = "True" if ends == "False" else f"not ({ends})"
    return broken("terminated = ", ends)


def _reward(wording: Wording) -> list[str]:
    """Write what is rewarded: a rule, a sum, or a sum and a bonus by a rule."""
    formula, rewards = wording.model.formula, wording.rewards
    if formula is None:
        return _rewarded(wording, "reward")
    nothing = len(rewards) == 1 and not float(rewards[0])
    lines = [] if nothing else _rewarded(wording, "bonus")
    start = "bonus" if lines else ""
    return [*lines, *formula_lines(formula, start, wording.names.__getitem__, wording.after)]


def _rewarded(wording: Wording, target: str) -> list[str]:
    """Write the rule that gives a reward or bonus."""
    rules, values = wording.model.outcomes.reward.rules, dict(enumerate(wording.rewards))
    if len(rules.layers) == 1 and isinstance(rules.layers[0], DecisionTable):
        table = rules.layers[0]
        if len(table.labels) > 1 and len(set(table.labels.values())) > 1:
            found = wording.speaker.lookup(table, values, target.upper(), values[0])
            return [f"{target} = {found}"]
    conditions = wording.speaker.conditions(rules, "REWARDED")
    if len(conditions) == 1:
        expression, label = conditions[0]
        line = f"{target} = {values[label]} if {expression} else {values[0]}"
        if len(line) <= WIDTH:
            return [line]
    return chain(conditions, target, values, default=values[0])


MOST_LISTED = 8


def title(model: DiscreteModel) -> str:
    """Say in one line how the state is read."""
    names, radices = factor_names(model.dynamics), model.dynamics.sizes.radices
    parts = [f"{name} 0 to {radix - 1}" for name, radix in zip(names, radices, strict=True)]
    if len(parts) == 1:
        return f"A state is one number from 0 to {radices[0] - 1}."
    text = f"A state is {_listed(parts)}."
    return text if len(text) <= WIDTH else f"A state has {len(parts)} parts."


def findings(seen: Transitions, model: DiscreteModel, *more: str) -> list[str]:
    """Say what was seen and what was not, and whatever more there is to say."""
    sentences = [*_seen(seen)]
    if seen.contradicts:
        sentences.append("Equal situations had different outcomes: the likeliest is given.")
    names = factor_names(model.dynamics)
    first = seen.frame.action_lows[0] if seen.frame.action_space.kind == "discrete" else 0
    for action, factor in model.dynamics.assumed:
        sentences.append(
            f"Action {first + action} was only seen where it changes nothing; it is assumed to "
            f"be the opposite of the other move of the {names[factor]}."
        )
    landmarks = model.dynamics.sizes.landmarks
    if landmarks and landmarks.possible and landmarks.optimistic:
        values = _listed([str(value) for value in landmarks.possible])
        sentences.append(
            f"Which cell {names[landmarks.item]} {values} stands for was not seen: what is brought "
            "there is taken to arrive in every cell that nothing ruled out."
        )
    return textwrap.wrap(" ".join([*sentences, *more]), WIDTH)


def seen_findings(seen: Transitions) -> list[str]:
    """Say what was seen and what was not, in lines."""
    return textwrap.wrap(" ".join(_seen(seen)), WIDTH)


def _seen(seen: Transitions) -> list[str]:
    """Say what was seen and what was not."""
    return [
        f"Induced from {_count(int(seen.count.sum()), 'transition')} of "
        f"{_count(seen.episodes, 'episode')}.",
        _coverage(seen),
        _endings(seen),
        _rewards(seen),
    ]


def _coverage(seen: Transitions) -> str:
    """Say how many situations were seen."""
    pairs = len(np.unique(np.column_stack([seen.before, seen.action]), axis=0))
    if len(seen.frame.sizes) > 1:
        return f"{pairs} different (observation, action) pairs were observed."
    total = seen.frame.sizes[0] * seen.frame.actions
    return f"{pairs} of {total} (observation, action) pairs were observed."


def _endings(seen: Transitions) -> str:
    """Say how often an episode was seen to end."""
    ends = int(seen.count[seen.done == 1].sum())
    if not ends:
        return "No terminal transition was seen, so no episode ends here."
    return f"{_count(ends, 'terminal transition')} {'was' if ends == 1 else 'were'} seen."


def _rewards(seen: Transitions) -> str:
    """Say which rewards were seen and how often."""
    counts = np.bincount(seen.codes, weights=seen.count).astype(int).tolist()
    if len(counts) == 1:
        return f"The reward was always {seen.rewards[0]}."
    if len(counts) > MOST_LISTED:
        return f"{len(counts)} different rewards were seen."
    parts = [
        f"{reward} ({_times(count)})" for reward, count in zip(seen.rewards, counts, strict=True)
    ]
    return f"Rewards seen: {_listed(parts)}."


def _times(count: int) -> str:
    """Say how often."""
    return "once" if count == 1 else f"{count} times"


def _count(number: int, noun: str) -> str:
    """Write a number and its noun."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _listed(parts: list[str]) -> str:
    """Join parts with commas and a last `and`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def write_program(model: DiscreteModel, title: str, findings: list[str]) -> str:
    """Write the program; `title` and `findings` become the docstring of its class."""
    wording = Wording(model)
    layout, names = model.dynamics.layout, wording.names
    step = _by_chance(wording, model.chances) if model.chances else _step(wording)
    initial, setters = state_lines(model.frame, layout, names)
    answer = observation_expression(model.frame, layout, names)
    constants = wording.constants.lines
    body = [
        f'"""{title}',
        "",
        *findings,
        '"""',
        "",
        *constants,
        *([""] if constants else []),
        *_function("__init__(self)", initial),
        *_function("set_state(self, observation)", setters),
        *_function("observation(self)", _folded(f"return {answer}")),
        *step,
    ]
    indented = [f"    {line}" if line else "" for line in body]
    numpy = ["import numpy as np", "", ""] if "np." in answer else []
    return "\n".join([*numpy, "class Environment:", *indented, ""])


def _folded(line: str) -> list[str]:
    """Break a line that ends in a display where it is too long."""
    return textwrap.wrap(line, WIDTH, subsequent_indent="    ", break_long_words=False)


def _step(wording: Wording) -> list[str]:
    """Write `step`."""
    moves, rules = change_lines(wording)
    outcomes = outcome_lines(wording)
    text = "\n".join(rules + outcomes)
    aims = [wording.names[i] for i in wording.moving]
    aims = [name for name in aims if mentions(text, f"aimed_{name}")]
    same = wording.unchanged() if "unchanged" in text else []
    whole = "\n".join([*moves, text, *same])
    used = [name for name in wording.names if mentions(whole, name)]
    new = [wording.names[i] for i in wording.changing]
    body = [
        *action_lines(wording.model.frame),
        *assignments("", "self.", used),
        *moves,
        *assignments("aimed_", "new_", aims),
        *rules,
        *same,
        *outcomes,
        *assignments("self.", "new_", new),
        "return self.observation(), reward, terminated",
    ]
    return _function("step(self, action)", body)[:-1]


def _by_chance(wording: Wording, chances: Chances) -> list[str]:
    """Write what may follow and what is likeliest."""
    axes = np.flatnonzero(chances.drift.steps.any(axis=0)).tolist()
    wording.changing, wording.known = axes, set(axes)
    names = [wording.names[axis] for axis in axes]
    constant = chances_constant(wording.constants, chances.drift, names, axes)
    rules = outcome_lines(wording)
    rules = [*(wording.unchanged() if "unchanged" in "\n".join(rules) else []), *rules]
    text = "\n".join(rules)
    used = [name for name in wording.names if name in names or mentions(text, name)]
    read = [*action_lines(wording.model.frame), f"{listed(used)} = {listed(used, 'self.')}"]
    radices = [wording.dynamics.sizes.radices[axis] for axis in axes]
    worth = dict(zip(wording.rewards, chances.worth, strict=True))
    return [
        *outcomes_lines(constant, names, radices, rules, read),
        *step_lines(wording.constants, names, worth),
    ]


def _function(signature: str, body: list[str]) -> list[str]:
    """Write a method and a blank line."""
    return [f"def {signature}:", *[f"    {line}" for line in body], ""]
