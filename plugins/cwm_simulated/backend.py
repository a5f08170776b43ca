"""The backend `simulated`: a random proposer with known properties instead of a language model."""

from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field

from cwm_cli.data.reading import UnreadableError, read_text
from cwm_cli.errors import CwmError
from cwm_cli.search.contracts import (
    FIX,
    GENERATE,
    Backend,
    Completion,
    Move,
    Problem,
    Request,
    Usage,
)
from cwm_cli.search.reading import extract_program, fenced
from cwm_simulated.measured import BELOW_ONE, BLIND, IMPROVED, WITH_DATA, Graded, draw_grade, grade
from cwm_simulated.original import CRASHES, Edit, Errors, Original

Chance = Annotated[float, Field(ge=0, le=1)]


class Proposal(NamedTuple):
    """The errors of a program to propose, and a sentence about it."""

    errors: Errors
    sentence: str


@dataclass
class Simulated(Backend):
    """A simulation: proposes a correct program with errors, to compare search strategies.

    A generated program keeps given first lines with their errors, and has proportionally fewer new
    errors then. Errors that raise an exception are misspelt names and syntax errors; other errors
    change the computed values. A fix repairs the cause of an exception, an improvement any error.
    The errors of a given program are found by comparison with the correct program, so no state is
    kept between requests. Prompts are not read, tokens are estimated from the length of texts, and
    the cost is 0.

    With `chances=measured` the scores of programs follow the scores that one strong language model
    reached in some sixty prompts; with `measured-blind`, its scores without data in the first
    prompt. Errors are drawn until the score is close. This is a fit to one small measurement.
    """

    starts_from = "program"
    caveat = (
        "These are simulated proposals, not a language model's: the backend `simulated` makes "
        "errors in a program that was induced from data, and repairs some."
    )
    remedy = "make fewer errors with -o errors=2"

    model: str = ""
    program: str = ""
    """File with the correct program."""
    chances: Literal["errors", "measured", "measured-blind"] = "errors"
    """Quality of the programs. errors: by the probabilities below; measured and measured-blind: by
    measured results."""
    errors: Annotated[float, Field(ge=0, le=1000)] = 8.0
    """Mean number of errors in a generated program (Poisson)."""
    crashes: Chance = 0.1
    """Fraction of the errors that make a program raise an exception."""
    fixes: Chance = 0.6
    """Probability that a fix removes the cause of an exception."""
    improves: Chance = 0.4
    """Probability that an improvement removes an error."""
    breaks: Chance = 0.2
    """Probability that a fix or an improvement adds a new error."""
    system: int = 0
    """Number of the simulated system: with `chances=measured` two of twenty are hard."""
    original: Original = field(init=False, repr=False, compare=False)
    """The correct program, which errors are made in."""
    _graded: dict[int, tuple[object, Graded]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _grading: Lock = field(default_factory=Lock, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Read the correct program."""
        if self.model:
            raise CwmError("the simulated backend uses no model: leave out --model")
        self.original = _read(self.program)

    def of_system(self, number: int) -> Self:
        """Return the same proposer for another system. Judged programs are shared."""
        other = copy(self)
        other.system = number
        return other

    def complete(self, request: Request) -> Completion:
        """Propose a program. Equal requests of a search get equal answers."""
        rng = np.random.default_rng([request.seed, request.step])
        move = request.move
        if self.chances != "errors" and move.action != FIX:
            errors, sentence = self._measured(request, rng)
        else:
            propose = self._generate if move.action == GENERATE else self._revise
            errors, sentence = propose(move, rng)
        text = f"{sentence}\n\n{fenced(self.original.write(errors))}"
        asked = sum(len(message.content) for message in request.messages)
        return Completion(
            text, Usage(prompt_tokens=_tokens(asked), completion_tokens=_tokens(len(text)))
        )

    def worst_cost(self, request: Request) -> float:
        """Return 0."""
        return 0.0

    def _generate(self, move: Move, rng: np.random.Generator) -> Proposal:
        """Keep the given lines with their errors, and add new errors below them."""
        given = move.prefix.removesuffix("\n").split("\n") if move.prefix else []
        errors = _known(self.original.read(given), self.program)
        length = len(self.original.lines)
        for _ in range(rng.poisson(self.errors * (length - len(given)) / length)):
            errors |= self._new_error(errors, rng, first=len(given))
        return Proposal(errors, "This is a simulated proposal.")

    def _measured(self, request: Request, rng: np.random.Generator) -> Proposal:
        """Propose a program with a measured score, with the given lines and their errors."""
        if not isinstance(request.problem, Problem):
            raise CwmError("chances=measured needs a problem with recorded transitions")
        request.tell("judging programs to draw from")
        move, graded = request.move, self._grades(request.problem)
        if move.action != GENERATE:
            score = move.verdict.normalised if move.verdict else 0.0
            before = grade(min(score, BELOW_ONE))
            after = draw_grade(IMPROVED[before], rng)
            errors = (
                graded.draw_near(score, rng)
                if before == after
                else graded.draw_of_grade(after, rng)
            )
            return Proposal(errors, "This is a simulated revision.")
        chances, of_system = BLIND, rng
        if self.chances == "measured":
            chances, of_system = WITH_DATA, np.random.default_rng([self.system])
        errors = graded.draw_of_grade(draw_grade(chances, of_system), rng)
        given = move.prefix.removesuffix("\n").split("\n") if move.prefix else []
        kept = _known(self.original.read(given), self.program)
        below = {edit for edit in errors if edit.line >= len(given)}
        return Proposal(kept | below, "This is a simulated proposal.")

    def _grades(self, problem: Problem) -> Graded:
        """Return programs with errors by score, judged once per dataset."""
        data = getattr(problem, "dataset", problem)
        with self._grading:
            if id(data) not in self._graded:
                self._graded[id(data)] = data, Graded.of(self.original, problem)
            return self._graded[id(data)][1]

    def _revise(self, move: Move, rng: np.random.Generator) -> Proposal:
        """Repair an error, add a new one, do both or neither."""
        errors = _known(self.original.read_all(move.program), self.program)
        fixing = move.action == FIX
        repairs, breaks = rng.random(2) < (self.fixes if fixing else self.improves, self.breaks)
        suspects = _raised(errors, move) if fixing else sorted(errors)
        repaired = {suspects[rng.integers(len(suspects))]} if repairs and suspects else set()
        made = self._new_error(errors, rng) if breaks else frozenset()
        return Proposal(errors - repaired | made, "This is a simulated revision.")

    def _new_error(self, errors: Errors, rng: np.random.Generator, *, first: int = 0) -> Errors:
        """Return a new error in a free place: draw whether it crashes, its kind and its place."""
        free = [
            edit
            for edit in self.original.edits
            if edit.line >= first and not any(map(edit.overlaps, errors))
        ]
        crashes = rng.random() < self.crashes
        meant = [edit for edit in free if (edit.kind in CRASHES) == crashes] or free
        if not meant:
            return frozenset()
        kinds = sorted({edit.kind for edit in meant})
        kind = kinds[rng.integers(len(kinds))]
        places = [edit for edit in meant if edit.kind == kind]
        return frozenset((places[rng.integers(len(places))],))


def _raised(errors: Errors, move: Move) -> list[Edit]:
    """Return the errors that may have raised the exception.

    Syntax errors have priority, then misspelt names in the line of the exception, then other errors
    in this line, then all other errors except misspelt names.
    """
    failure = move.verdict.failure if move.verdict else None
    there = [edit for edit in errors if failure and failure.line == edit.line + 1]
    for suspects in (
        [edit for edit in errors if edit.kind == "syntax"],
        [edit for edit in there if edit.kind == "name"],
        there,
        [edit for edit in errors if edit.kind != "name"],
    ):
        if suspects:
            return sorted(suspects)
    return sorted(errors)


def _read(file: str) -> Original:
    if not file:
        raise CwmError(
            "the simulated backend needs a correct program: give -o backend.program=FILE"
        )
    try:
        original = Original(extract_program(fenced(read_text(Path(file)))))
    except UnreadableError as error:
        hint = "give -o backend.program=FILE"
        raise UnreadableError(
            error.file, error.reason, hint, is_missing=error.is_missing
        ) from error
    except (SyntaxError, ValueError, RecursionError) as error:
        raise CwmError(f"{file} is not a program ({error}): give a correct one") from error
    if not original.edits:
        raise CwmError(f"{file} has no parts to change: give a program of a world model")
    return original


def _known(errors: Errors | None, file: str) -> Errors:
    """Return errors, or raise if the program is not derived from the file."""
    if errors is None:
        raise CwmError(
            f"the current program was not made from {file}: start a separate run with --new"
        )
    return errors


def _tokens(characters: int) -> int:
    """Estimate the number of tokens in a text."""
    # for estimates of tokens: English and Python have about four characters per token
    characters_per_token = 4
    return -(-characters // characters_per_token)
