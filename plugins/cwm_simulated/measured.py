"""Scores of one measurement, for simulated completions. They make no claim about language models.

One strong language model answered some sixty prompts, given manually, on systems that it cannot
know from elsewhere. Its scores are stored as counts, by the grade of the program in the prompt.
Scores are relative to a floor of 0.33, the score of most guessed programs, because the floors of
the systems were not recorded. Stochastic and documented systems do not count, nor do programs that
raised an exception (one of some sixty) or that continued given first lines (one, which raised an
exception).
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from cwm_cli.search.contracts import Problem
from cwm_simulated.original import Errors, Original

Grade = Literal["guess", "part", "nearly", "exact"]

BELOW_ONE = float(np.nextafter(1.0, 0.0))
"""The score of a program that is right except for differences that rounding hides."""

PART, NEARLY = 0.35, 0.85
"""Minimum scores above the floor of partly right and of almost right programs."""

SCORES: Mapping[Grade, tuple[float, ...]] = {
    "guess": (*[0.0] * 19, 0.25, 0.25, 0.33),
    "part": (0.63, 0.60, 0.76),
    "nearly": (0.94, 0.955, 0.94),
}
"""Scores above the floor of the programs of each grade; lower scores count as the floor."""

BLIND: Mapping[Grade, int] = {"guess": 22, "part": 1}
"""Grades of first programs from a name and spaces only: 23 completions on eleven systems."""

WITH_DATA: Mapping[Grade, int] = {"nearly": 2, "exact": 18}
"""Grades of first programs from a prompt with data: 20 systems, one completion each. A second
completion on the same system was not measured; it gets the grade of the first."""

IMPROVED: Mapping[Grade, Mapping[Grade, int]] = {
    "guess": {"guess": 1, "part": 2, "nearly": 1, "exact": 6},
    "part": {"nearly": 1, "exact": 3},
    "nearly": {"nearly": 8, "exact": 1},
}
"""Grades after improvements of programs of each grade: 23 completions."""

MAX_ERRORS = 12

NEAREST = 5
"""A program is drawn from this number of programs with the nearest scores."""


def grade(score: float) -> Grade:
    """Return the grade of a score above the floor."""
    if score >= 1:
        return "exact"
    return "nearly" if score >= NEARLY else "part" if score >= PART else "guess"


def draw_grade(counts: Mapping[Grade, int], rng: np.random.Generator) -> Grade:
    """Draw a grade with the frequency of its count."""
    grades = list(counts)
    shares = np.array([counts[each] for each in grades]) / sum(counts.values())
    return grades[int(rng.choice(len(grades), p=shares))]


class Graded(NamedTuple):
    """The errors of some programs and their scores above the floor, in ascending order."""

    errors: list[Errors]
    scores: np.ndarray

    @classmethod
    def of(cls, original: Original, problem: Problem) -> "Graded":
        """Judge programs with few and with many errors."""
        rng, found = np.random.default_rng(0), dict[Errors, float]()
        # number of programs with errors that are judged for each problem, to draw by score
        programs = 150
        for number in range(programs):
            errors: Errors = frozenset()
            for index in rng.permutation(len(original.edits))[: 1 + number % MAX_ERRORS]:
                edit = original.edits[index]
                if not any(map(edit.overlaps, errors)):
                    errors |= {edit}
            verdict = problem.judge(original.write(errors))
            if not (verdict.is_bug or verdict.solved):
                found[errors] = verdict.normalised
        order = sorted(found, key=lambda errors: (found[errors], sorted(errors)))
        return cls(order, np.array([found[errors] for errors in order]))

    def draw_near(self, score: float, rng: np.random.Generator) -> Errors:
        """Draw the errors of a program with about this score."""
        if score >= 1 or not self.errors:
            return frozenset()
        nearest = np.argsort(np.abs(self.scores - score), kind="stable")[:NEAREST]
        return self.errors[int(rng.choice(nearest))]

    def draw_of_grade(self, one: Grade, rng: np.random.Generator) -> Errors:
        """Draw the errors of a program of a grade."""
        return self.draw_near(1.0 if one == "exact" else float(rng.choice(SCORES[one])), rng)
