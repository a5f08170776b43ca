"""The choices of the user for a search: backend, models and options, and the parts they create.

`choose_backend` selects the backend that writes programs, `check_choices` reports invalid choices
before any work is done, and `make_parts` creates the parts of the search.

The options `search.start` and `search.refine` name programs that cost no completion. A search with
a language model starts from a program that induction writes from the data alone. The two
complement each other: induction finds equations and numbers, a language model finds causes and
rules that few rows show.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from pydantic import Field

from cwm_cli.data.reading import UnreadableError, read_text
from cwm_cli.errors import CwmError, UnknownNameError
from cwm_cli.evaluation.finding import USUAL_METRICS, ContractName, usual_metric
from cwm_cli.evaluation.missing_data import find_gaps
from cwm_cli.problems.feedback import documented_names
from cwm_cli.problems.world_model import WorldModelProblem
from cwm_cli.registry import Owner, default, find, names, read_options, with_presets
from cwm_cli.runs.programs import program_run
from cwm_cli.runs.storage import placed
from cwm_cli.sandbox import Limits
from cwm_cli.sandbox.protection import check_access
from cwm_cli.search.answers import AnswerCache
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
from cwm_cli.search.models import (
    ModelChoice,
    ModelPool,
    innermost,
    make_backend,
    models_text,
    read_models,
)
from cwm_cli.worlds import ProgramModel

AUTO, NONE, ALL = "auto", "none", "all"
"""Values of `contract`, `search.start` and `search.refine`; auto chooses by data or backend."""

MODEL_VARIABLE = "CWM_MODEL"
"""Environment variable with the language model to use if the user names none."""


class Choices(NamedTuple):
    """The choices of the user for a search (see `synthesize`).

    `flags` are options of the backend that have command-line flags, and `accepted` names gaps in
    the protection of this machine that the user accepts.
    """

    strategy: str
    backend: str
    model: str
    options: Sequence[str] | Mapping[str, Any]
    flags: Mapping[str, Any]
    metric: str | None
    seed: int
    parallel: int
    max_cost: float | None
    budget: int
    tools: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()
    contract: str = AUTO
    cache: bool = False
    description: str = ""

    def with_defaults(self, contract: ContractName, *, is_noisy: bool = False) -> Self:
        """Return the choices with this contract and its usual metric if the user chose none."""
        named = next((each for each in USUAL_METRICS if each == self.contract), contract)
        metric = self.metric or usual_metric(named, is_noisy=is_noisy)
        return self._replace(contract=named, metric=metric)


class ChosenBackend(NamedTuple):
    """A backend and its models.

    Attributes:
        backend: Name of the backend.
        models: The named models; a text may name several, separated by commas. `("",)` without.
        note: Message to show if the user named neither a backend nor a model.
    """

    backend: str
    models: tuple[str, ...]
    note: str = ""

    @property
    def model(self) -> str:
        """All models as one text, for a search that uses every model."""
        return models_text(read_models(self.models)) if self.models[0] else ""


def named_models(model: Sequence[str] | str | None) -> tuple[str, ...]:
    """Return the models that a caller named in one text or in several."""
    return (model,) if isinstance(model, str) else tuple(model or ())


def choose_backend(backend: str | None, models: Sequence[str] = ()) -> ChosenBackend:
    """Choose the backend: the named one, else one for the named models, else the offline one.

    Args:
        backend: Name of a backend, or None.
        models: The named models. Without any, `$CWM_MODEL` is used. BACKEND/MODEL, such as
            `transformers/FOLDER`, names both.

    Raises:
        CwmError: The backend needs a model.
    """
    named = _normalise_models(models)
    needs_model = find("backend", backend).needs_model if backend else True
    if needs_model and not named and (backend is None or backend == default("model")):
        named = _normalise_models([os.environ.get(MODEL_VARIABLE, "")])
    if backend == default("model") and not named:
        raise CwmError(f"the backend {backend!r} needs a model: add --model PROVIDER/NAME")
    if backend is None and len(named) == 1:
        head, _, rest = named[0].partition("/")
        if rest and head in names("backend") and find("backend", head).needs_model:
            return ChosenBackend(head, (rest,))
    chosen = backend or (default("model") if named else default("backend"))
    note = f"no --model: {chosen} writes the program from the data alone"
    return ChosenBackend(chosen, named or ("",), "" if backend or named else note)


def _normalise_models(texts: Iterable[str]) -> tuple[str, ...]:
    """Return texts of models in their standard form, without duplicates."""
    return tuple(dict.fromkeys(",".join(map(str, read_models([text]))) for text in texts if text))


def backend_of(choices: Choices) -> Backend:
    """Return the backend of a search with these choices."""
    backend: Backend = make_parts(choices).backend
    return backend


def check_choices(choices: Choices) -> Settings:
    """Raise the errors of invalid choices before any work is done; return the settings."""
    check_names(choices)
    parts = make_parts(choices)
    parts.backend.ready(choices.max_cost)
    return parts.settings


def check_names(choices: Choices) -> None:
    """Raise an error for unknown names, and for flags that the backend does not have."""
    owners_of(choices.strategy, choices.backend)
    if choices.metric is not None:
        find("metric", choices.metric)
    if choices.contract not in (AUTO, *USUAL_METRICS):
        raise UnknownNameError("contract", choices.contract, [AUTO, *USUAL_METRICS])
    check_flags(choices.backend, choices.flags)
    check_access(choices.tools, choices.accepted)


def uncached(backend: str) -> str:
    """Return a message if the cache has no effect with a backend, else an empty text."""
    if find("backend", backend).is_language_model:
        return ""
    return f"--cache has no effect: the backend {backend!r} is not a language model"


Settings = dict[str, dict[str, Any]]
"""All options of strategy, backend, problem and sandbox, by owner."""


class SearchParts(NamedTuple):
    """The parts of a search, and all options."""

    strategy: Any
    backend: Any
    refiners: Mapping[str, Refiner]
    start: ChosenStart | None
    settings: Settings
    simplify: int = 0


def owners_of(strategy: str, backend: str) -> list[Owner]:
    """Return the parts of a search that have options."""
    return [
        Owner("strategy", find("strategy", strategy)),
        Owner("backend", find("backend", backend)),
        Owner("problem", WorldModelProblem),
        Owner("sandbox", Limits),
        Owner("search", SearchOptions),
        *(Owner(name, find("refiner", name)) for name in names("refiner")),
    ]


def check_flags(backend: str, flags: Iterable[str]) -> None:
    """Raise an error for flags that the backend does not have."""
    options = Owner("backend", find("backend", backend)).options
    for name in flags:
        if name not in options:
            flag = name.replace("_", "-")
            raise CwmError(f"the backend {backend!r} has no option --{flag}: leave it out")


def make_parts(choices: Choices) -> SearchParts:
    """Create strategy, backend, refiners and start with the options of the user."""
    owners = owners_of(choices.strategy, choices.backend)
    options = read_options(choices.options, owners)
    # flags of the command line take precedence over -o
    options["backend"] |= choices.flags
    options = with_presets(options, owners)
    strategy = owners[0].make(options["strategy"])
    extra = SearchOptions(**options["search"])
    factory = AnswerCache().making(owners[1].factory) if choices.cache else owners[1].factory
    backend = make_backend(factory, choices.model, options["backend"], extra.models)
    start = choose_start(extra.start, backend, choices.seed)
    refiners = choose_refiners(extra.refine, backend, options)
    settings = {
        "strategy": owners[0].identity(strategy),
        "backend": owners[1].identity(innermost(backend)),
        "problem": owners[2].defaults() | options["problem"],
        "sandbox": asdict(Limits.chosen(options["sandbox"])),
    }
    searched = {"start": start.identity} if start else {}  # as in runs of versions without a start
    if isinstance(backend, ModelPool):
        searched["models"] = extra.models
    if searched:
        settings["search"] = searched
    for owner in owners:
        if owner.label in refiners:
            settings[owner.label] = owner.identity(refiners[owner.label])
    is_asked = backend.is_language_model or backend.recorded()
    simplify = extra.simplify if is_asked else 0
    return SearchParts(strategy, backend, refiners, start, settings, simplify)


# Programs that cost no completion


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
    simplify: Annotated[int, Field(ge=0)] = 1
    """Maximum number of completions that rewrite a solved program so that it is shorter, within the
    budget. Only a language model is asked, and only if it was asked before."""


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
