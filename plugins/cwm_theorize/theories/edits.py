"""Rules and edits of rules drawn by chance, and how likely each was to be drawn.

First rules are a few lines, each made from a transition of the evidence or from any words at all.
Given rules are edited in one place: a line more or less, elsewhere, with other conditions or
another conclusion. Most edits begin with a transition that the rules do not say. Several edits may
lead to the same rules; their chance is the sum over all.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from cwm_theorize.theories.drawing import Examples, Words, drawn, shares
from cwm_theorize.theories.language import Comparison, Conclusion, RuleLine, Ruleset

MORE = 0.6
"""Chance of another line in first rules, so that they have two or three and can be understood."""

SILENT = 0.25
"""Chance that an edit of what holds otherwise leaves it unsaid."""


IDLE = 5.0
"""How often a line that decides no example is left out, as against one that does."""


SHARP = 3
"""The power of how well a condition tells right from wrong that it is drawn by: there are hundreds
that tell a little."""

SATED = 0.2
"""How often edits that make rules longer are taken where these say all that was recorded, as
against else: what is left to do then is to say it in fewer words."""


@dataclass(frozen=True, eq=False)
class Draft:
    """Rules to edit, and what is drawn from.

    `weights` say how often each example is the reason of an edit, and `deciding` which line
    (examples,) decides it. Without examples both are empty. Rules are `settled` where they say all
    examples exactly.
    """

    rules: Ruleset
    words: Words
    examples: Examples | None
    from_evidence: float
    weights: np.ndarray = field(init=False)
    deciding: np.ndarray = field(init=False)
    settled: bool = field(default=False, init=False)
    _telling: dict[int, dict[Comparison, float]] = field(
        default_factory=dict, init=False, repr=False
    )

    def __post_init__(self) -> None:
        weights, deciding = np.empty(0), np.empty(0, dtype=np.int64)
        if self.examples is not None:
            weights = self.examples.weights(self.rules if self.rules != Ruleset() else None)
            deciding = self.examples.table.deciding(self.rules, self.examples.rows)
            precision = self.examples.table.precision(self.rules, self.examples.rows)
            object.__setattr__(self, "settled", bool((precision == 1).all()))
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "deciding", deciding)

    @property
    def decided(self) -> np.ndarray:
        """How often each example is the reason to edit the line that decides it."""
        weights = self.weights * (self.deciding < len(self.rules.lines))
        total = weights.sum()
        return np.asarray(weights / total if total else weights)

    def example(self, rng: np.random.Generator, weights: np.ndarray) -> int | None:
        """Draw the reason of an edit, None for an edit without one."""
        if not weights.any() or rng.random() >= self.from_evidence:
            return None
        return int(rng.choice(len(weights), p=weights))

    def reasoned(self, weights: np.ndarray) -> float:
        """Return the chance that an edit has a reason."""
        return self.from_evidence if weights.any() else 0.0

    def conclusion(self, rng: np.random.Generator) -> Conclusion:
        """Draw a conclusion."""
        row = self.example(rng, self.weights)
        if row is None or self.examples is None:
            return self.words.conclusion(rng)
        return self.examples.conclusion(row, rng)

    def conclusion_chance(self, conclusion: Conclusion) -> float:
        """Return how likely a conclusion was to be drawn."""
        share = self.reasoned(self.weights)
        chance = (1 - share) * self.words.conclusion_chance(conclusion)
        if share and self.examples is not None:
            chance += share * float(self.weights @ self.examples.conclusion_chances(conclusion))
        return chance

    def line(self, rng: np.random.Generator) -> RuleLine:
        """Draw a line."""
        row = self.example(rng, self.weights)
        if row is None or self.examples is None:
            return self.words.line(rng)
        return self.examples.line(row, rng)

    def line_chance(self, line: RuleLine) -> float:
        """Return how likely a line was to be drawn."""
        share = self.reasoned(self.weights)
        chance = (1 - share) * self.words.line_chance(line)
        if share and self.examples is not None:
            chance += share * float(self.weights @ self.examples.line_chances(line))
        return chance

    def with_line(self, place: int, line: RuleLine) -> Ruleset:
        """Return the rules with another line in a place."""
        lines = self.rules.lines
        return self.rules._replace(lines=(*lines[:place], line, *lines[place + 1 :]))

    def telling(self, place: int) -> dict[Comparison, float]:
        """Return conditions that a line might have besides its own, and the chances.

        They are the likelier the more of the examples it says they keep, and the fewer of those
        that it decides wrongly.
        """
        examples = self.examples
        if examples is None:
            return {}
        if place not in self._telling:
            rows = examples.rows[self.deciding == place]
            right = examples.table.precision(self.rules, rows)
            weights = {}
            for each, weight in _any_condition(self, place).items():
                holds = examples.table.holding(each, rows)
                kept = (right @ holds) / max(right.sum(), 1e-9)
                freed = ((1 - right) @ ~holds) / max((1 - right).sum(), 1e-9)
                # of facts with many words each is rare: what it tells has to outweigh that
                weights[each] = weight ** (1 / SHARP) * (kept * freed) ** SHARP
            self._telling[place] = shares(weights) if any(weights.values()) else {}
        return self._telling[place]

    def differing(self, to: Ruleset) -> list[int]:
        """Return the lines by which alone the rules may have become others."""
        lines, others = self.rules.lines, to.lines
        if len(lines) != len(others) or self.rules.otherwise != to.otherwise:
            return []
        places = [
            n for n, (one, other) in enumerate(zip(lines, others, strict=True)) if one != other
        ]
        return places if len(places) == 1 else [] if places else list(range(len(lines)))


class RuleEdit:
    """One way to change rules in one place: drawn by chance, with a chance that is known.

    `weight` is how often it is taken, as against the others that apply. What `grows` rules is
    seldom taken where they say everything.
    """

    weight = 1.0
    grows = False

    def applies(self, draft: Draft) -> bool:
        """Return whether there is anything to change."""
        return bool(draft.rules.lines)

    def draw(self, draft: Draft, rng: np.random.Generator) -> Ruleset:
        """Return changed rules, which may be the same."""
        raise NotImplementedError

    def chance(self, draft: Draft, to: Ruleset) -> float:
        """Return the chance that these rules are drawn."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class AddLine(RuleEdit):
    """Adds a line: one with a reason not after the line that decides that example."""

    most: int
    weight = 4.5
    grows = True

    def applies(self, draft: Draft) -> bool:
        """Not where there are as many lines as there may be."""
        return len(draft.rules.lines) < self.most

    def draw(self, draft: Draft, rng: np.random.Generator) -> Ruleset:
        """Draw the line, then its place."""
        row, last = draft.example(rng, draft.weights), len(draft.rules.lines)
        if row is None or draft.examples is None:
            line = draft.words.line(rng)
        else:
            line, last = draft.examples.line(row, rng), int(draft.deciding[row])
        place, lines = int(rng.integers(last + 1)), draft.rules.lines
        return draft.rules._replace(lines=(*lines[:place], line, *lines[place:]))

    def chance(self, draft: Draft, to: Ruleset) -> float:
        """Sum over the places of the line that is new, and over its reasons."""
        places = _removals(to, draft.rules)
        if not places:
            return 0.0
        line, share = to.lines[places[0]], draft.reasoned(draft.weights)
        anywhere = len(places) / len(to.lines)
        chance = (1 - share) * draft.words.line_chance(line) * anywhere
        if share and draft.examples is not None:
            before = (np.array(places)[:, None] <= draft.deciding).sum(axis=0)
            chances = draft.examples.line_chances(line) * before / (draft.deciding + 1)
            chance += share * float(draft.weights @ chances)
        return chance


class DropLine(RuleEdit):
    """Leaves a line out, so that lines that decide nothing leave as easily as they came."""

    weight = 3.0

    def applies(self, draft: Draft) -> bool:
        """Not where nothing would be left."""
        return bool(draft.rules.lines) and draft.rules != Ruleset(draft.rules.lines[:1])

    def draw(self, draft: Draft, rng: np.random.Generator) -> Ruleset:
        """Draw the line."""
        lines, chances = draft.rules.lines, self._chances(draft)
        place = int(rng.choice(len(lines), p=chances))
        return draft.rules._replace(lines=(*lines[:place], *lines[place + 1 :]))

    def chance(self, draft: Draft, to: Ruleset) -> float:
        """Sum over the lines without which the rules are these."""
        return float(self._chances(draft)[_removals(draft.rules, to)].sum())

    def _chances(self, draft: Draft) -> np.ndarray:
        """Return how likely each line is left out."""
        count = len(draft.rules.lines)
        deciding = np.bincount(draft.deciding, minlength=count)[:count]
        weights = np.where(deciding > 0, 1.0, IDLE)
        return np.asarray(weights / weights.sum())


class MoveLine(RuleEdit):
    """Puts a line elsewhere: the first that applies decides."""

    weight = 0.5

    def applies(self, draft: Draft) -> bool:
        """Not where there is one line."""
        return len(draft.rules.lines) > 1

    def draw(self, draft: Draft, rng: np.random.Generator) -> Ruleset:
        """Draw the line, then another place."""
        first, second = map(int, rng.choice(len(draft.rules.lines), size=2, replace=False))
        return draft.rules._replace(lines=_moved(draft.rules.lines, first, second))

    def chance(self, draft: Draft, to: Ruleset) -> float:
        """Count the moves that lead there."""
        lines, count = draft.rules.lines, len(draft.rules.lines)
        if to.otherwise != draft.rules.otherwise or Counter(to.lines) != Counter(lines):
            return 0.0
        moves = [(n, m) for n in range(count) for m in range(count) if n != m]
        return sum(_moved(lines, *move) == to.lines for move in moves) / len(moves)


class SetOtherwise(RuleEdit):
    """Says what follows where no line applies, or leaves it unsaid."""

    def applies(self, draft: Draft) -> bool:
        """Anything may be said where nothing is."""
        return True

    def draw(self, draft: Draft, rng: np.random.Generator) -> Ruleset:
        """Draw the conclusion; rules are never left empty."""
        if draft.rules.lines and rng.random() < SILENT:
            return draft.rules._replace(otherwise=None)
        return draft.rules._replace(otherwise=draft.conclusion(rng))

    def chance(self, draft: Draft, to: Ruleset) -> float:
        """Look at what is said."""
        if to.lines != draft.rules.lines:
            return 0.0
        silent = SILENT if draft.rules.lines else 0.0
        if to.otherwise is None:
            return silent
        return (1 - silent) * draft.conclusion_chance(to.otherwise)


class SetConclusion(RuleEdit):
    """Gives a line another conclusion: what followed where it decided wrongly, or any."""

    weight = 2.5

    def draw(self, draft: Draft, rng: np.random.Generator) -> Ruleset:
        """Draw the reason or the line, then the conclusion."""
        row = draft.example(rng, draft.decided)
        if row is None or draft.examples is None:
            place = int(rng.integers(len(draft.rules.lines)))
            conclusion = draft.words.conclusion(rng)
        else:
            place = int(draft.deciding[row])
            conclusion = draft.examples.conclusion(row, rng)
        line = draft.rules.lines[place]._replace(conclusion=conclusion)
        return draft.with_line(place, line)

    def chance(self, draft: Draft, to: Ruleset) -> float:
        """Sum over the lines that differ in their conclusions alone, and over the reasons."""
        decided, chance = draft.decided, 0.0
        share = draft.reasoned(decided)
        for place in draft.differing(to):
            if to.lines[place].conditions != draft.rules.lines[place].conditions:
                continue
            conclusion = to.lines[place].conclusion
            anything = draft.words.conclusion_chance(conclusion) / len(to.lines)
            chance += (1 - share) * anything
            if share and draft.examples is not None:
                weights = decided * (draft.deciding == place)
                chances = draft.examples.conclusion_chances(conclusion)
                chance += share * float(weights @ chances)
        return chance


class AddCondition(RuleEdit):
    """Restricts a line that decided wrongly by what tells these examples from others, or any line.

    The condition is of a fact that the line does not speak of yet.
    """

    weight = 1.5
    grows = True

    def draw(self, draft: Draft, rng: np.random.Generator) -> Ruleset:
        """Draw the line, then the condition."""
        row = draft.example(rng, draft.decided)
        if row is None:
            place = int(rng.integers(len(draft.rules.lines)))
        else:
            place = int(draft.deciding[row])
        chances = _any_condition(draft, place) if row is None else draft.telling(place)
        if not chances:
            return draft.rules
        line = draft.rules.lines[place]
        conditions = draft.words.language.ordered([*line.conditions, drawn(chances, rng)])
        return draft.with_line(place, line._replace(conditions=conditions))

    def chance(self, draft: Draft, to: Ruleset) -> float:
        """Sum over the lines that may have got the condition, with a reason and without."""
        decided, chance = draft.decided, 0.0
        share = draft.reasoned(decided)
        for place in draft.differing(to):
            before, after = draft.rules.lines[place], to.lines[place]
            kept, had = {*before.conditions}, {*after.conditions}
            if before.conclusion != after.conclusion or not kept <= had or len(had - kept) > 1:
                continue
            reasons = share * float(decided[draft.deciding == place].sum())
            ways = [((1 - share) / len(to.lines), _any_condition(draft, place))]
            if reasons:
                ways.append((reasons, draft.telling(place)))
            for weight, chances in ways:
                if had == kept:  # where there was nothing to say
                    chance += weight * (not chances)
                else:
                    chance += sum(weight * chances.get(each, 0.0) for each in had - kept)
        return chance


class DropCondition(RuleEdit):
    """Makes a line apply more often."""

    weight = 2.0

    def applies(self, draft: Draft) -> bool:
        """Not where each line has one, which it keeps."""
        return bool(_conditions(draft, least=2))

    def draw(self, draft: Draft, rng: np.random.Generator) -> Ruleset:
        """Draw the condition."""
        found = _conditions(draft, least=2)
        place, condition = found[int(rng.integers(len(found)))]
        return draft.with_line(place, _without(draft.rules.lines[place], condition))

    def chance(self, draft: Draft, to: Ruleset) -> float:
        """Count the conditions without which the rules are these."""
        found, differing = _conditions(draft, least=2), draft.differing(to)
        leading = [
            _without(draft.rules.lines[place], condition) == to.lines[place]
            for place, condition in found
            if place in differing
        ]
        return sum(leading) / len(found)


class ChangeCondition(RuleEdit):
    """Says something else of the fact of a condition, the contrary as often as anything."""

    weight = 1.5

    def applies(self, draft: Draft) -> bool:
        """Where there is a condition."""
        return bool(_conditions(draft))

    def draw(self, draft: Draft, rng: np.random.Generator) -> Ruleset:
        """Draw the condition, then what becomes of it."""
        found = _conditions(draft)
        place, condition = found[int(rng.integers(len(found)))]
        line = _without(draft.rules.lines[place], condition)
        contrary = rng.random() < 0.5
        other = draft.words.comparisons[condition.fact]
        new = _negated(condition) if contrary else drawn(other, rng)
        conditions = draft.words.language.ordered([*line.conditions, new])
        return draft.with_line(place, line._replace(conditions=conditions))

    def chance(self, draft: Draft, to: Ruleset) -> float:
        """Sum over the conditions that may have changed, and over what may become of them."""
        found, differing, chance = _conditions(draft), draft.differing(to), 0.0
        for place, condition in found:
            if place not in differing:
                continue
            rest, after = _without(draft.rules.lines[place], condition), to.lines[place]
            kept, had = {*rest.conditions}, {*after.conditions}
            if rest.conclusion != after.conclusion or not kept <= had or len(had - kept) > 1:
                continue
            others = draft.words.comparisons[condition.fact]
            for new in had - kept or kept:
                chance += 0.5 * others.get(new, 0.0) + 0.5 * (new == _negated(condition))
        return chance / len(found)


@dataclass(frozen=True, eq=False)
class Afresh(RuleEdit):
    """Begins again, so that no rules are out of reach."""

    first: FirstRules
    weight = 0.25

    def applies(self, draft: Draft) -> bool:
        """Not to be left out: all rules can be reached by it."""
        return True

    def draw(self, draft: Draft, rng: np.random.Generator) -> Ruleset:
        """Draw first rules."""
        return self.first.draw(rng)

    def chance(self, draft: Draft, to: Ruleset) -> float:
        """Return their chance."""
        return self.first.chance(to)


@dataclass(frozen=True)
class FirstRules:
    """Draws rules from nothing: lines, each with another after it by chance, and what is else."""

    draft: Draft
    most: int

    def draw(self, rng: np.random.Generator) -> Ruleset:
        """Draw rules, of which there is at least one."""
        count = 0
        while count < self.most and rng.random() < MORE:
            count += 1
        lines = tuple(self.draft.line(rng) for _ in range(count))
        silent = bool(lines) and rng.random() < SILENT
        return Ruleset(lines, None if silent else self.draft.conclusion(rng))

    def chance(self, rules: Ruleset) -> float:
        """Return the chance of rules."""
        count = len(rules.lines)
        if count > self.most or rules == Ruleset():
            return 0.0
        chance = MORE**count * (1 - MORE if count < self.most else 1)
        for line in rules.lines:
            chance *= self.draft.line_chance(line)
        silent = SILENT if count else 0.0
        if rules.otherwise is None:
            return chance * silent
        return chance * (1 - silent) * self.draft.conclusion_chance(rules.otherwise)


@dataclass(frozen=True, eq=False)
class EditedRules:
    """Draws an edit of rules, of those that apply."""

    draft: Draft
    first: FirstRules
    edits: dict[RuleEdit, float] = field(init=False)

    def __post_init__(self) -> None:
        edits = (
            AddLine(self.first.most),
            DropLine(),
            MoveLine(),
            SetOtherwise(),
            SetConclusion(),
            AddCondition(),
            DropCondition(),
            ChangeCondition(),
            Afresh(self.first),
        )
        weights = {
            each: each.weight * (SATED if each.grows and self.draft.settled else 1)
            for each in edits
            if each.applies(self.draft)
        }
        object.__setattr__(self, "edits", shares(weights))

    def draw(self, rng: np.random.Generator) -> Ruleset:
        """Draw an edit, and what it makes of the rules."""
        return drawn(self.edits, rng).draw(self.draft, rng)

    def chance(self, rules: Ruleset) -> float:
        """Return the chance that the rules become these, by whatever edit."""
        return sum(share * each.chance(self.draft, rules) for each, share in self.edits.items())


def _negated(condition: Comparison) -> Comparison:
    return condition._replace(holds=not condition.holds)


def _removals(longer: Ruleset, shorter: Ruleset) -> list[int]:
    """Return the lines without which the longer rules are the shorter ones."""
    lines = longer.lines
    if longer.otherwise != shorter.otherwise or len(lines) != len(shorter.lines) + 1:
        return []
    return [n for n in range(len(lines)) if lines[:n] + lines[n + 1 :] == shorter.lines]


def _moved(lines: tuple[RuleLine, ...], old: int, new: int) -> tuple[RuleLine, ...]:
    """Return lines with one taken out and put back so that it is the `new` one."""
    others = lines[:old] + lines[old + 1 :]
    return (*others[:new], lines[old], *others[new:])


def _conditions(draft: Draft, least: int = 1) -> list[tuple[int, Comparison]]:
    """Return the conditions, each with its line, of lines that have at least so many."""
    return [
        (place, condition)
        for place, line in enumerate(draft.rules.lines)
        if len(line.conditions) >= least
        for condition in line.conditions
    ]


def _without(line: RuleLine, condition: Comparison) -> RuleLine:
    return line._replace(conditions=tuple(each for each in line.conditions if each != condition))


def _any_condition(draft: Draft, place: int) -> dict[Comparison, float]:
    """Return what a line might say of facts that it does not speak of, and the chances."""
    said = {condition.fact for condition in draft.rules.lines[place].conditions}
    comparisons = draft.words.comparisons.items()
    return shares(
        {each: share for fact, of in comparisons if fact not in said for each, share in of.items()}
    )
