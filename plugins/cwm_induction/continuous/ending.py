"""Learn the rule for the end of an episode."""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from cwm_induction.continuous.samples import Samples
from cwm_induction.continuous.terms import Term, hypotenuses
from cwm_induction.continuous.variables import Variable
from cwm_induction.rules import Feature, ThresholdRule, learn_rule
from cwm_induction.writing.rounding import is_whole_degrees


class EndRule(NamedTuple):
    """The rule for the end, and the number of terminal rows."""

    rule: ThresholdRule
    seen: int

    @property
    def variables(self) -> set[str]:
        """Names that the rule reads."""
        return self.rule.names


def ending(samples: Samples, variables: Sequence[Variable], terms: Sequence[Term] = ()) -> EndRule:
    """Learn the rule from all rows, because every row narrows the gaps around thresholds.

    The rule may also compare the `terms` of the reward.
    """
    candidates = [*features(samples, variables), *(Feature(t.text, t.values, 0.7) for t in terms)]
    return EndRule(learn_rule(candidates, samples.terminated), int(samples.terminated.sum()))


def features(samples: Samples, variables: Sequence[Variable]) -> list[Feature]:
    """Return the quantities that the rule may compare, computed from the next state."""
    candidates: list[Feature] = []
    for variable in variables:
        degrees = is_whole_degrees(variable.high)
        label = f"{variable.name.upper()}_LIMIT"
        extra = 1.2 if variable.is_angle else 0.0  # prefer cosines and sines of angles
        if np.ptp(variable.then) > 1e-9:
            candidates.append(Feature(variable.next, variable.then, 1.0 + extra, degrees, label))
        if variable.then.min() < 0 < variable.then.max():
            symmetric = 0.8 if variable.low == -variable.high else 0.9
            size = np.abs(variable.then)
            candidates.append(
                Feature(f"abs({variable.next})", size, symmetric + extra, degrees, label)
            )
    turned = sums_of_angles(variables)
    moving = [v.next_column for v in variables if not v.is_angle and not v.still]
    lengths = list(hypotenuses(moving)) if len(moving) <= 8 else []
    candidates += _tip_height(variables)
    return candidates + [Feature(t.text, t.values, t.cost + 1) for t in [*turned, *lengths]]


def _tip_height(variables: Sequence[Variable]) -> list[Feature]:
    """Return the height of the tip of a chain of equal links with relative angles."""
    angles = [variable for variable in variables if variable.is_angle]
    if len(angles) < 2:
        return []
    names = [" + ".join(v.next for v in angles[:size]) for size in range(1, len(angles) + 1)]
    turned = np.cumsum([variable.then for variable in angles], axis=0)
    return [Feature(" + ".join(f"np.cos({name})" for name in names), np.cos(turned).sum(0), 1.0)]


def sums_of_angles(variables: Sequence[Variable]) -> list[Term]:
    """Return cosines and sines of angles, and of sums of angles, after the step."""
    angles = [variable for variable in variables if variable.is_angle]
    terms = []
    for size in range(1, len(angles) + 1):
        for group in combinations(angles, size):
            text = " + ".join(variable.next for variable in group)
            total = np.sum([variable.then for variable in group], axis=0)
            terms.append(Term(f"np.cos({text})", np.cos(total), 1.0 + 0.3 * size))
            terms.append(Term(f"np.sin({text})", np.sin(total), 1.0 + 0.3 * size))
    return terms
