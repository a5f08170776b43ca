"""The options `search.start` and `search.refine`: programs that cost no completion.

A search with a language model starts from a program that induction writes from the data alone. The
two complement each other: induction finds equations and numbers, a language model finds causes and
rules that few rows show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from cwm_cli.data.reading import UnreadableError, read_text
from cwm_cli.errors import CwmError, UnknownNameError
from cwm_cli.evaluation.missing_data import find_gaps
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

MakeStart = Callable[[WorldModelProblem, Callable[[str], None]], Refinement | None]
"""Returns the first candidate for a problem, and reports its progress to the second argument."""


@dataclass(frozen=True)
class SearchOptions(ModelChoice):
    """The choice of a model for each completion, and the programs that cost no completion."""

    start: str = AUTO
    """Start of the search, as for `--start`: a backend that needs only data (such as induction), a
    program file, a run folder, or none. auto: the first such backend if a language model writes
    programs, else none."""
    refine: str = AUTO
    """Refiners that improve the programs of the search: all, none, or names separated by commas.
    auto: all if a language model writes programs, else none."""


class ChosenStart(NamedTuple):
    """The start of a search: its name in the configuration of the run, and its function."""

    identity: str
    make: MakeStart


def choose_start(name: str, backend: Backend, seed: int) -> ChosenStart | None:
    """Return the start that `search.start` names, or None; a program file is read immediately."""
    if name == AUTO:
        name = default("backend") if backend.takes_help else NONE
    if name == NONE:
        return None
    if backend.recorded():
        raise CwmError("a replayed run keeps its start: leave out --start")
    if name in names("backend") and find("backend", name).from_data:
        return ChosenStart(name, lambda problem, report: _start_from(name, problem, seed, report))
    text = _read_program(placed(name))
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    words = "It is the program that the search was given to begin with."
    return ChosenStart(f"sha256:{digest}", lambda problem, report: Refinement(text, words))


def choose_refiners(
    words: str, backend: Backend, options: Mapping[str, Mapping[str, Any]]
) -> dict[str, Refiner]:
    """Create the refiners that `search.refine` names, in the order of their use.

    Args:
        words: The value of `search.refine`.
        backend: The backend of the search.
        options: The options of each refiner, by its name.
    """
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
    """Create a backend that needs no language model.

    Args:
        name: Name of the backend.
        options: Values of its options. Options that this backend lacks are ignored.

    Raises:
        CwmError: If the backend needs a language model.
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
    report: Callable[[str], None] = unheard,
) -> Completion:
    """Request a program from a backend that needs no language model, within 20 s.

    Backends without an option `seconds` have no time limit.

    Args:
        problem: The problem to solve.
        name: Name of the backend.
        seed: Random seed of the request.
        report: Receives progress messages.
    """
    report(f"{name} from data alone")
    request = Request(
        (), seed, Move(GENERATE), problem, tell=lambda words: report(f"{name}: {words}")
    )
    # Two completions of a language model take longer, so the delay of the search is small.
    return make_data_backend(name, seconds=20.0).complete(request)


def _read_program(place: Path) -> str:
    """Read a program file, or the best program of a run."""
    if place.is_dir():
        return program_run(place).best_program()
    try:
        return read_text(place)
    except UnreadableError as error:
        hint = "choose induction, a program file, a run folder, or none"
        raise UnreadableError(place, error.reason, hint, is_missing=error.is_missing) from error


def _start_from(
    name: str, problem: WorldModelProblem, seed: int, report: Callable[[str], None]
) -> Refinement:
    """Return a program of a data backend, or no program if its score is no better than 0."""
    completion = ask_data_backend(problem, name, seed, report)
    program = problem.read(completion.text, Move(GENERATE))
    verdict = problem.judge(program)
    if verdict.is_bug or verdict.normalised <= 0:
        return Refinement("", f"{name} found no useful starting program in the data")
    # Prompts also describe limits of the data, unless a comment of the program already does.
    rows = problem.dataset[problem.dataset.fitted]
    called = documented_names(problem.description, rows.observation_space)
    model = ProgramModel(program, problem.sandbox)
    every = find_gaps(rows, called, model=model, max_rows=1000)
    doubts = [gap for gap in every if gap not in " ".join(program.split())]
    found = completion.text.partition("```")[0]
    return Refinement(program, " ".join([f"{WRITTEN} {found.strip()}", *doubts]))


WRITTEN = (
    "It was written from the data alone, without the description: what it names is guessed, and "
    "its formulas fit the rows, whether or not they are the law."
)
"""The part of a prompt that introduces a program of a data backend."""
