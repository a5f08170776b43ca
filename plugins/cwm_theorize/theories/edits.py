"""Random rules and random edits of rules, with the probability of each.

Initial rules have a few lines, each drawn from a transition of the evidence or from arbitrary
words. An edit changes rules in one place: it adds, removes or moves a line, or changes its
conditions or its conclusion. Most edits start from a transition that the rules do not predict.
Different edits may lead to the same rules; their probability is the sum over these edits.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from cwm_theorize.theories.drawing import Examples, Words, draw, normalise
from cwm_theorize.theories.language import Comparison, Conclusion, RuleLine, Ruleset

NEXT_LINE_PROBABILITY = 0.6
"""Probability of another line in initial rules, so that they have two or three lines and stay
readable."""

NO_DEFAULT_PROBABILITY = 0.25
"""Probability that an edit of the default conclusion removes it."""


@dataclass(frozen=True, eq=False)
class Draft:
    """Rules to edit, and the distributions of edits.

    Attributes:
        words: Draws from all expressions of the language.
        examples: Draws from recorded transitions; None without evidence.
        from_evidence: Probability of an edit that starts from an example.
        weights: Probability (examples,) of starting an edit from each example.
        deciding: Index (examples,) of the line that decides each example.
        settled: Whether the rules predict all examples exactly.
    """

    rules: Ruleset
    words: Words
    examples: Examples | None
    from_evidence: float
    weights: np.ndarray = field(init=False)
    deciding: np.ndarray = field(init=False)
    settled: bool = field(default=False, init=False)
    _selective: dict[int, dict[Comparison, float]] = field(
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
    def decided_weights(self) -> np.ndarray:
        """Probability (examples,) of editing the line that decides each example."""
        weights = self.weights * (self.deciding < len(self.rules.lines))
        total = weights.sum()
        return np.asarray(weights / total if total else weights)

    def example(self, rng: np.random.Generator, weights: np.ndarray) -> int | None:
        """Draw the example of an edit; None for an edit without an example."""
        if not weights.any() or rng.random() >= self.from_evidence:
            return None
        return int(rng.choice(len(weights), p=weights))

    def example_probability(self, weights: np.ndarray) -> float:
        """Return the probability that an edit starts from an example."""
        return self.from_evidence if weights.any() else 0.0

    def conclusion(self, rng: np.random.Generator) -> Conclusion:
        """Draw a conclusion, from an example or from arbitrary words."""
        row = self.example(rng, self.weights)
        if row is None or self.examples is None:
            return self.words.conclusion(rng)
        return self.examples.conclusion(row, rng)

    def conclusion_probability(self, conclusion: Conclusion) -> float:
        """Return the probability of drawing this conclusion."""
        share = self.example_probability(self.weights)
        probability = (1 - share) * self.words.conclusion_probability(conclusion)
        if share and self.examples is not None:
            probability += share * float(
                self.weights @ self.examples.conclusion_probabilities(conclusion)
            )
        return probability

    def line(self, rng: np.random.Generator) -> RuleLine:
        """Draw a line, from an example or from arbitrary words."""
        row = self.example(rng, self.weights)
        if row is None or self.examples is None:
            return self.words.line(rng)
        return self.examples.line(row, rng)

    def line_probability(self, line: RuleLine) -> float:
        """Return the probability of drawing this line."""
        share = self.example_probability(self.weights)
        probability = (1 - share) * self.words.line_probability(line)
        if share and self.examples is not None:
            probability += share * float(self.weights @ self.examples.line_probabilities(line))
        return probability

    def with_line(self, place: int, line: RuleLine) -> Ruleset:
        """Return the rules with one line replaced."""
        lines = self.rules.lines
        return self.rules._replace(lines=(*lines[:place], line, *lines[place + 1 :]))

    def selective_conditions(self, place: int) -> dict[Comparison, float]:
        """Return additional conditions for a line, with their probabilities.

        A condition is likelier if it holds in more of the examples that the line decides correctly,
        and in fewer of the examples that the line decides wrongly.
        """
        examples = self.examples
        if examples is None:
            return {}
        if place not in self._selective:
            rows = examples.rows[self.deciding == place]
            right = examples.table.precision(self.rules, rows)
            weights = {}
            # power of the selectivity of a condition: hundreds of conditions have a small
            # selectivity
            selectivity_power = 3
            for each, weight in _any_condition(self, place).items():
                holds = examples.table.holding(each, rows)
                kept = (right @ holds) / max(right.sum(), 1e-9)
                excluded = ((1 - right) @ ~holds) / max((1 - right).sum(), 1e-9)
                # Facts with many words have rare conditions; the selectivity must outweigh this.
                weights[each] = (
                    weight ** (1 / selectivity_power) * (kept * excluded) ** selectivity_power
                )
            self._selective[place] = normalise(weights) if any(weights.values()) else {}
        return self._selective[place]

    def changed_lines(self, to: Ruleset) -> list[int]:
        """Return the indices of lines whose change alone can turn the rules into `to`.

        If the rules are equal, these are all lines, because an edit may replace a line by itself.
        """
        lines, others = self.rules.lines, to.lines
        if len(lines) != len(others) or self.rules.otherwise != to.otherwise:
            return []
        places = [
            n for n, (one, other) in enumerate(zip(lines, others, strict=True)) if one != other
        ]
        return places if len(places) == 1 else [] if places else list(range(len(lines)))


class RuleEdit:
    """A random change of rules in one place, with a known probability.

    Attributes:
        weight: Relative frequency among the edits that apply.
        grows: Whether the edit adds text; such edits are rare if the rules predict everything.
    """

    weight = 1.0
    grows = False

    def applies(self, draft: Draft) -> bool:
        """Return whether this edit can change the rules."""
        return bool(draft.rules.lines)

    def draw(self, draft: Draft, rng: np.random.Generator) -> Ruleset:
        """Return edited rules, which may be equal to the current ones."""
        raise NotImplementedError

    def probability(self, draft: Draft, to: Ruleset) -> float:
        """Return the probability that this edit results in `to`."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class AddLine(RuleEdit):
    """Adds a line; if it comes from an example, at or before the line that decides the example."""

    most: int
    weight = 4.5
    grows = True

    def applies(self, draft: Draft) -> bool:
        """Return whether the rules have fewer than `most` lines."""
        return len(draft.rules.lines) < self.most

    def draw(self, draft: Draft, rng: np.random.Generator) -> Ruleset:
        """Draw a line, then its position."""
        row, last = draft.example(rng, draft.weights), len(draft.rules.lines)
        if row is None or draft.examples is None:
            line = draft.words.line(rng)
        else:
            line, last = draft.examples.line(row, rng), int(draft.deciding[row])
        place, lines = int(rng.integers(last + 1)), draft.rules.lines
        return draft.rules._replace(lines=(*lines[:place], line, *lines[place:]))

    def probability(self, draft: Draft, to: Ruleset) -> float:
        """Sum over the positions of the new line and over examples."""
        places = _removals(to, draft.rules)
        if not places:
            return 0.0
        line, share = to.lines[places[0]], draft.example_probability(draft.weights)
        anywhere = len(places) / len(to.lines)
        probability = (1 - share) * draft.words.line_probability(line) * anywhere
        if share and draft.examples is not None:
            before = (np.array(places)[:, None] <= draft.deciding).sum(axis=0)
            probabilities = draft.examples.line_probabilities(line) * before / (draft.deciding + 1)
            probability += share * float(draft.weights @ probabilities)
        return probability


class DropLine(RuleEdit):
    """Removes a line; lines that decide no example are removed more often."""

    weight = 3.0

    def applies(self, draft: Draft) -> bool:
        """Return whether rules remain after the removal."""
        return bool(draft.rules.lines) and draft.rules != Ruleset(draft.rules.lines[:1])

    def draw(self, draft: Draft, rng: np.random.Generator) -> Ruleset:
        """Draw the line to remove."""
        lines, probabilities = draft.rules.lines, self._removal_probabilities(draft)
        place = int(rng.choice(len(lines), p=probabilities))
        return draft.rules._replace(lines=(*lines[:place], *lines[place + 1 :]))

    def probability(self, draft: Draft, to: Ruleset) -> float:
        """Sum over the lines whose removal results in `to`."""
        return float(self._removal_probabilities(draft)[_removals(draft.rules, to)].sum())

    def _removal_probabilities(self, draft: Draft) -> np.ndarray:
        """Return the probability of removing each line (lines,)."""
        count = len(draft.rules.lines)
        deciding = np.bincount(draft.deciding, minlength=count)[:count]
        # weight for removing a line that decides no example, relative to a line that decides some
        unused_line_weight = 5.0
        weights = np.where(deciding > 0, 1.0, unused_line_weight)
        return np.asarray(weights / weights.sum())


class MoveLine(RuleEdit):
    """Moves a line; the order matters because the first line that applies decides."""

    weight = 0.5

    def applies(self, draft: Draft) -> bool:
        """Return whether there are at least two lines."""
        return len(draft.rules.lines) > 1

    def draw(self, draft: Draft, rng: np.random.Generator) -> Ruleset:
        """Draw a line, then its new position."""
        first, second = map(int, rng.choice(len(draft.rules.lines), size=2, replace=False))
        return draft.rules._replace(lines=_moved(draft.rules.lines, first, second))

    def probability(self, draft: Draft, to: Ruleset) -> float:
        """Return the fraction of moves that result in `to`."""
        lines, count = draft.rules.lines, len(draft.rules.lines)
        if to.otherwise != draft.rules.otherwise or Counter(to.lines) != Counter(lines):
            return 0.0
        moves = [(n, m) for n in range(count) for m in range(count) if n != m]
        return sum(_moved(lines, *move) == to.lines for move in moves) / len(moves)


class SetOtherwise(RuleEdit):
    """Sets or removes the default conclusion."""

    def applies(self, draft: Draft) -> bool:
        """Return True, because rules without a default conclusion can get one."""
        return True

    def draw(self, draft: Draft, rng: np.random.Generator) -> Ruleset:
        """Remove the default conclusion, or draw one; rules are never left empty."""
        if draft.rules.lines and rng.random() < NO_DEFAULT_PROBABILITY:
            return draft.rules._replace(otherwise=None)
        return draft.rules._replace(otherwise=draft.conclusion(rng))

    def probability(self, draft: Draft, to: Ruleset) -> float:
        """Return the probability of the new default conclusion."""
        if to.lines != draft.rules.lines:
            return 0.0
        no_default = NO_DEFAULT_PROBABILITY if draft.rules.lines else 0.0
        if to.otherwise is None:
            return no_default
        return (1 - no_default) * draft.conclusion_probability(to.otherwise)


class SetConclusion(RuleEdit):
    """Changes the conclusion of a line, preferably to the recorded change of a wrong prediction."""

    weight = 2.5

    def draw(self, draft: Draft, rng: np.random.Generator) -> Ruleset:
        """Draw an example or a line, then the conclusion."""
        row = draft.example(rng, draft.decided_weights)
        if row is None or draft.examples is None:
            place = int(rng.integers(len(draft.rules.lines)))
            conclusion = draft.words.conclusion(rng)
        else:
            place = int(draft.deciding[row])
            conclusion = draft.examples.conclusion(row, rng)
        line = draft.rules.lines[place]._replace(conclusion=conclusion)
        return draft.with_line(place, line)

    def probability(self, draft: Draft, to: Ruleset) -> float:
        """Sum over lines that differ only in their conclusion, and over examples."""
        decided, probability = draft.decided_weights, 0.0
        share = draft.example_probability(decided)
        for place in draft.changed_lines(to):
            if to.lines[place].conditions != draft.rules.lines[place].conditions:
                continue
            conclusion = to.lines[place].conclusion
            anything = draft.words.conclusion_probability(conclusion) / len(to.lines)
            probability += (1 - share) * anything
            if share and draft.examples is not None:
                weights = decided * (draft.deciding == place)
                probabilities = draft.examples.conclusion_probabilities(conclusion)
                probability += share * float(weights @ probabilities)
        return probability


class AddCondition(RuleEdit):
    """Adds a condition to a line, on a fact without a condition in this line.

    If the line decides an example wrongly, conditions that separate wrong from right examples are
    preferred.
    """

    weight = 1.5
    grows = True

    def draw(self, draft: Draft, rng: np.random.Generator) -> Ruleset:
        """Draw the line, then the condition."""
        row = draft.example(rng, draft.decided_weights)
        if row is None:
            place = int(rng.integers(len(draft.rules.lines)))
        else:
            place = int(draft.deciding[row])
        probabilities = (
            _any_condition(draft, place) if row is None else draft.selective_conditions(place)
        )
        if not probabilities:
            return draft.rules
        line = draft.rules.lines[place]
        conditions = draft.words.language.ordered([*line.conditions, draw(probabilities, rng)])
        return draft.with_line(place, line._replace(conditions=conditions))

    def probability(self, draft: Draft, to: Ruleset) -> float:
        """Sum over lines that may have received the condition, with and without an example."""
        decided, probability = draft.decided_weights, 0.0
        share = draft.example_probability(decided)
        for place in draft.changed_lines(to):
            before, after = draft.rules.lines[place], to.lines[place]
            kept, had = {*before.conditions}, {*after.conditions}
            if before.conclusion != after.conclusion or not kept <= had or len(had - kept) > 1:
                continue
            from_example = share * float(decided[draft.deciding == place].sum())
            sources = [((1 - share) / len(to.lines), _any_condition(draft, place))]
            if from_example:
                sources.append((from_example, draft.selective_conditions(place)))
            for weight, probabilities in sources:
                if had == kept:  # no condition was possible
                    probability += weight * (not probabilities)
                else:
                    probability += sum(weight * probabilities.get(each, 0.0) for each in had - kept)
        return probability


class DropCondition(RuleEdit):
    """Removes a condition from a line."""

    weight = 2.0

    def applies(self, draft: Draft) -> bool:
        """Return whether a line has at least two conditions."""
        return bool(_conditions(draft, least=2))

    def draw(self, draft: Draft, rng: np.random.Generator) -> Ruleset:
        """Draw the condition to remove."""
        found = _conditions(draft, least=2)
        place, condition = found[int(rng.integers(len(found)))]
        return draft.with_line(place, _without(draft.rules.lines[place], condition))

    def probability(self, draft: Draft, to: Ruleset) -> float:
        """Return the fraction of conditions whose removal results in `to`."""
        found, changed = _conditions(draft, least=2), draft.changed_lines(to)
        leading = [
            _without(draft.rules.lines[place], condition) == to.lines[place]
            for place, condition in found
            if place in changed
        ]
        return sum(leading) / len(found)


class ChangeCondition(RuleEdit):
    """Replaces a condition: half of the time by its negation, else by any condition on its fact."""

    weight = 1.5

    def applies(self, draft: Draft) -> bool:
        """Return whether there is a condition."""
        return bool(_conditions(draft))

    def draw(self, draft: Draft, rng: np.random.Generator) -> Ruleset:
        """Draw the condition, then its replacement."""
        found = _conditions(draft)
        place, condition = found[int(rng.integers(len(found)))]
        line = _without(draft.rules.lines[place], condition)
        negate = rng.random() < 0.5
        other = draft.words.comparisons[condition.fact]
        new = _negated(condition) if negate else draw(other, rng)
        conditions = draft.words.language.ordered([*line.conditions, new])
        return draft.with_line(place, line._replace(conditions=conditions))

    def probability(self, draft: Draft, to: Ruleset) -> float:
        """Sum over conditions that may have changed, and over their replacements."""
        found, changed, probability = _conditions(draft), draft.changed_lines(to), 0.0
        for place, condition in found:
            if place not in changed:
                continue
            rest, after = _without(draft.rules.lines[place], condition), to.lines[place]
            kept, had = {*rest.conditions}, {*after.conditions}
            if rest.conclusion != after.conclusion or not kept <= had or len(had - kept) > 1:
                continue
            others = draft.words.comparisons[condition.fact]
            for new in had - kept or kept:
                probability += 0.5 * others.get(new, 0.0) + 0.5 * (new == _negated(condition))
        return probability / len(found)


@dataclass(frozen=True, eq=False)
class StartOver(RuleEdit):
    """Draws new initial rules."""

    first: FirstRules
    weight = 0.25

    def applies(self, draft: Draft) -> bool:
        """Return True, so that all rules can be reached from any rules."""
        return True

    def draw(self, draft: Draft, rng: np.random.Generator) -> Ruleset:
        """Draw initial rules."""
        return self.first.draw(rng)

    def probability(self, draft: Draft, to: Ruleset) -> float:
        """Return the probability of `to` as initial rules."""
        return self.first.probability(to)


@dataclass(frozen=True)
class FirstRules:
    """Draws initial rules: a truncated geometric number of lines, and a default conclusion."""

    draft: Draft
    most: int

    def draw(self, rng: np.random.Generator) -> Ruleset:
        """Draw rules that are not empty."""
        count = 0
        while count < self.most and rng.random() < NEXT_LINE_PROBABILITY:
            count += 1
        lines = tuple(self.draft.line(rng) for _ in range(count))
        no_default = bool(lines) and rng.random() < NO_DEFAULT_PROBABILITY
        return Ruleset(lines, None if no_default else self.draft.conclusion(rng))

    def probability(self, rules: Ruleset) -> float:
        """Return the probability of drawing these rules."""
        count = len(rules.lines)
        if count > self.most or rules == Ruleset():
            return 0.0
        probability = NEXT_LINE_PROBABILITY**count * (
            1 - NEXT_LINE_PROBABILITY if count < self.most else 1
        )
        for line in rules.lines:
            probability *= self.draft.line_probability(line)
        no_default = NO_DEFAULT_PROBABILITY if count else 0.0
        if rules.otherwise is None:
            return probability * no_default
        return probability * (1 - no_default) * self.draft.conclusion_probability(rules.otherwise)


@dataclass(frozen=True, eq=False)
class EditedRules:
    """Draws one of the edits that apply."""

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
            StartOver(self.first),
        )
        # factor on the weight of edits that add text, if the rules predict all recorded
        # transitions; then, only shorter rules are better
        settled_growth_factor = 0.2
        weights = {
            each: each.weight * (settled_growth_factor if each.grows and self.draft.settled else 1)
            for each in edits
            if each.applies(self.draft)
        }
        object.__setattr__(self, "edits", normalise(weights))

    def draw(self, rng: np.random.Generator) -> Ruleset:
        """Draw an edit, and apply it."""
        return draw(self.edits, rng).draw(self.draft, rng)

    def probability(self, rules: Ruleset) -> float:
        """Return the probability of drawing these rules, summed over all edits."""
        return sum(
            share * each.probability(self.draft, rules) for each, share in self.edits.items()
        )


def _negated(condition: Comparison) -> Comparison:
    return condition._replace(holds=not condition.holds)


def _removals(longer: Ruleset, shorter: Ruleset) -> list[int]:
    """Return the indices of lines whose removal turns the longer rules into the shorter."""
    lines = longer.lines
    if longer.otherwise != shorter.otherwise or len(lines) != len(shorter.lines) + 1:
        return []
    return [n for n in range(len(lines)) if lines[:n] + lines[n + 1 :] == shorter.lines]


def _moved(lines: tuple[RuleLine, ...], old: int, new: int) -> tuple[RuleLine, ...]:
    """Return lines with the line at `old` moved to index `new`."""
    others = lines[:old] + lines[old + 1 :]
    return (*others[:new], lines[old], *others[new:])


def _conditions(draft: Draft, least: int = 1) -> list[tuple[int, Comparison]]:
    """Return (line index, condition) pairs of lines with at least `least` conditions."""
    return [
        (place, condition)
        for place, line in enumerate(draft.rules.lines)
        if len(line.conditions) >= least
        for condition in line.conditions
    ]


def _without(line: RuleLine, condition: Comparison) -> RuleLine:
    return line._replace(conditions=tuple(each for each in line.conditions if each != condition))


def _any_condition(draft: Draft, place: int) -> dict[Comparison, float]:
    """Return conditions on facts that a line does not mention, with their probabilities."""
    said = {condition.fact for condition in draft.rules.lines[place].conditions}
    comparisons = draft.words.comparisons.items()
    return normalise(
        {each: share for fact, of in comparisons if fact not in said for each, share in of.items()}
    )
