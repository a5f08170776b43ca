"""Moves of a search that cost no completion: what it begins with, and what betters its candidates.

A search that a language model answers begins with what the data alone tell, since the two know
different things: laws and numbers the one, causes and rare rules the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cwm_cli.data.reading import UnreadableError, read_text
from cwm_cli.errors import CwmError, UnknownNameError
from cwm_cli.evaluation.support import gaps, survey
from cwm_cli.problems.feedback import documented_names
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.registry import Owner, default, find, names
from cwm_cli.runs.places import placed
from cwm_cli.runs.programs import program_run
from cwm_cli.search.contracts import (
    GENERATE,
    Backend,
    Completion,
    Move,
    Refinement,
    Refiner,
    Request,
    unheard,
)
from cwm_cli.search.models import ModelChoice
from cwm_cli.worlds import ProgramModel

AUTO, NONE, ALL = "auto", "none", "all"

FOLLOWED = 1000
"""Rows at which the ways of a start are followed: enough to tell which lines few go through."""

MAX_SECONDS = 20.0
"""Time limit of a backend that needs no language model: shorter than two completions take."""

Begin = Callable[[WorldModelProblem, Callable[[str], None]], Refinement | None]
"""Comes to a candidate for a problem, and tells what it is doing."""


@dataclass(frozen=True)
class SearchOptions(ModelChoice):
    """How a search chooses among models, and what it does without completions."""

    start: str = AUTO
    """Start of the search, as for `--start`: a backend that needs only data (such as induction), a
    program file, a run folder, or none. auto: the first such backend if a language model writes
    programs, else none."""
    refine: str = AUTO
    """Refiners that improve the programs of the search: all, none, or names separated by commas.
    auto: all if a language model writes programs, else none."""


class ChosenStart(NamedTuple):
    """What a search begins with: its name in the identity of the run, and how it is come by."""

    identity: str
    begin: Begin


def chosen_start(name: str, backend: Backend, seed: int) -> ChosenStart | None:
    """Return what is to be begun with, None for nothing; a file is read at once."""
    if name == AUTO:
        name = default("backend") if backend.takes_help else NONE
    if name == NONE:
        return None
    if backend.recorded():
        raise CwmError("a replayed run keeps its start: leave out --start")
    if name in names("backend") and find("backend", name).from_data:
        return ChosenStart(name, lambda problem, tell: _from_data(name, problem, seed, tell))
    text = _program(placed(name))
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    words = "It is the program that the search was given to begin with."
    return ChosenStart(f"sha256:{digest}", lambda problem, tell: Refinement(text, words))


def chosen_refiners(
    words: str, backend: Backend, options: Mapping[str, Mapping[str, Any]]
) -> dict[str, Refiner]:
    """Make the refiners that are chosen, with their options by name, in the order to try them."""
    if words == AUTO:
        words = ALL if backend.takes_help else NONE
    known = names("refiner")
    wanted = {ALL: known, NONE: []}.get(words, [name.strip() for name in words.split(",")])
    if wanted and backend.recorded():
        raise CwmError("a replayed run keeps its refiners: leave out -o refine=")
    for name in wanted:
        if name not in known:
            raise UnknownNameError("refiner", name, [ALL, NONE, *known])
    return {name: find("refiner", name)(**options.get(name, {})) for name in wanted}


def make_data_backend(name: str, **options: Any) -> Backend:
    """Make a backend that needs no language model.

    Args:
        name: Name of the backend.
        options: Values of its options. Those that this backend lacks are ignored.

    Raises:
        CwmError: If the backend asks a language model.
    """
    owner = Owner("backend", find("backend", name))
    if not owner.factory.from_data:
        raise CwmError(f"the backend {name!r} needs a language model: choose another")
    known = {name: value for name, value in options.items() if name in owner.options}
    backend: Backend = owner.factory(model="", **known)
    return backend


def ask_data_backend(
    problem: WorldModelProblem,
    name: str,
    seed: int = 0,
    tell: Callable[[str], None] = unheard,
) -> Completion:
    """Ask a backend that needs no language model for a program, within 20 s if it has a limit.

    Args:
        problem: The problem to solve.
        name: Name of the backend.
        seed: Random seed of the request.
        tell: Receives progress messages.
    """
    tell(f"{name} from data alone")
    request = Request(
        (), seed, Move(GENERATE), problem, tell=lambda words: tell(f"{name}: {words}")
    )
    return make_data_backend(name, seconds=MAX_SECONDS).complete(request)


def _program(place: Path) -> str:
    """Read the program of a file or a run."""
    if place.is_dir():
        return program_run(place).best_program()
    try:
        return read_text(place)
    except UnreadableError as error:
        hint = "choose induction, a program file, a run folder, or none"
        raise UnreadableError(place, error.reason, hint, is_missing=error.is_missing) from error


def _from_data(
    name: str, problem: WorldModelProblem, seed: int, tell: Callable[[str], None]
) -> Refinement:
    """Have a program written from data alone; one that is no better than nothing is left."""
    completion = ask_data_backend(problem, name, seed, tell)
    program = problem.read(completion.text, Move(GENERATE))
    verdict = problem.judge(program)
    if verdict.is_bug or verdict.normalised <= 0:
        return Refinement("", f"{name} found no useful starting program in the data")
    found = completion.text.partition("```")[0]
    return Refinement(program, " ".join([f"{WRITTEN} {found.strip()}", *_doubts(problem, program)]))


WRITTEN = (
    "It was written from the data alone, without the description: what it names is guessed, and "
    "its formulas fit the rows, whether or not they are the law."
)


def _doubts(problem: WorldModelProblem, program: str) -> list[str]:
    """Say what the rows that may be shown leave open, and on how few of them its rules rest."""
    rows = problem.dataset[problem.dataset.fitted]
    chosen = np.linspace(0, len(rows) - 1, min(len(rows), FOLLOWED)).astype(int)
    found = survey(ProgramModel(program, problem.sandbox), rows[np.unique(chosen)], cells=False)
    called = documented_names(problem.description, rows.observation_space)
    every = gaps(rows, called, found=found, program=program)
    return [gap for gap in every if gap not in " ".join(program.split())]
