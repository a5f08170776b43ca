"""Proposals as good as those of one measurement, and nothing that is claimed of any language model.

One strong language model answered some sixty prompts by hand, on systems that nobody can recall.
What it scored stands here as counts, by how good the program was that it was shown. Scores are
relative to a floor of 0.33, which is what most programs scored that were guessed: the floors of the
systems were not kept. Systems of chance and documented ones do not count, nor do programs that
raised (one of some sixty), or were continued from their first lines (one, which raised).
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from cwm_cli.search.contracts import Problem
from cwm_simulated.original import Errors, Original

Grade = Literal["guess", "part", "nearly", "exact"]

BELOW_ONE = float(np.nextafter(1.0, 0.0))
"""The score of a program that is right but for what rounding hides."""

PART, NEARLY = 0.35, 0.85
"""Scores above the floor from which a program is right in part, and nearly right."""

SCORES: Mapping[Grade, tuple[float, ...]] = {
    "guess": (*[0.0] * 19, 0.25, 0.25, 0.33),
    "part": (0.63, 0.60, 0.76),
    "nearly": (0.94, 0.955, 0.94),
}
"""What programs of each grade scored, above the floor; less than the floor counts as the floor."""

BLIND: Mapping[Grade, int] = {"guess": 22, "part": 1}
"""First programs from a name and spaces alone: 23 completions on eleven systems."""

WITH_DATA: Mapping[Grade, int] = {"nearly": 2, "exact": 18}
"""First programs from a prompt with data: 20 systems, one completion each. As nothing is known of a
second completion on the same system, it is as good as the first."""

IMPROVED: Mapping[Grade, Mapping[Grade, int]] = {
    "guess": {"guess": 1, "part": 2, "nearly": 1, "exact": 6},
    "part": {"nearly": 1, "exact": 3},
    "nearly": {"nearly": 8, "exact": 1},
}
"""What came of improving programs of each grade: 23 completions."""

PROGRAMS = 150
"""Programs with errors that are judged for each problem, to draw some of a given score from."""

MOST_ERRORS = 12

ALIKE = 5
"""A program is drawn among this many whose scores are nearest to the one wanted."""


def grade(score: float) -> Grade:
    """Return the grade of a score above the floor."""
    if score >= 1:
        return "exact"
    return "nearly" if score >= NEARLY else "part" if score >= PART else "guess"


def drawn(counts: Mapping[Grade, int], rng: np.random.Generator) -> Grade:
    """Draw a grade as often as it was counted."""
    grades = list(counts)
    shares = np.array([counts[each] for each in grades]) / sum(counts.values())
    return grades[int(rng.choice(len(grades), p=shares))]


class Graded(NamedTuple):
    """The errors of some programs, and what these score above the floor, in ascending order."""

    errors: list[Errors]
    scores: np.ndarray

    @classmethod
    def of(cls, original: Original, problem: Problem) -> "Graded":
        """Judge programs with few errors and with many."""
        rng, found = np.random.default_rng(0), dict[Errors, float]()
        for number in range(PROGRAMS):
            errors: Errors = frozenset()
            for index in rng.permutation(len(original.edits))[: 1 + number % MOST_ERRORS]:
                edit = original.edits[index]
                if not any(map(edit.overlaps, errors)):
                    errors |= {edit}
            verdict = problem.judge(original.write(errors))
            if not (verdict.is_bug or verdict.solved):
                found[errors] = verdict.normalised
        order = sorted(found, key=lambda errors: (found[errors], sorted(errors)))
        return cls(order, np.array([found[errors] for errors in order]))

    def near(self, score: float, rng: np.random.Generator) -> Errors:
        """Draw a program of about this score."""
        if score >= 1 or not self.errors:
            return frozenset()
        nearest = np.argsort(np.abs(self.scores - score), kind="stable")[:ALIKE]
        return self.errors[int(rng.choice(nearest))]

    def wanted(self, one: Grade, rng: np.random.Generator) -> Errors:
        """Draw a program of a grade."""
        return self.near(1.0 if one == "exact" else float(rng.choice(SCORES[one])), rng)
