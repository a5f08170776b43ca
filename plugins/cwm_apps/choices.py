"""What is chosen for the searches of a run: who answers, who searches, and all of their options."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from cwm_apps.judging import LIMITS, JudgeRules
from cwm_apps.problem import CodingProblem
from cwm_cli.commands.choices import check_flags
from cwm_cli.errors import CwmError
from cwm_cli.registry import Owner, find, read_options, with_presets
from cwm_cli.sandbox import Limits
from cwm_cli.search.answers import AnswerCache
from cwm_cli.search.contracts import GENERATE, Backend, Message, Move, Request, Strategy
from cwm_cli.search.models import ModelChoice, ModelPool, innermost, make_backend

Options = Sequence[str] | Mapping[str, Any]

QUESTION = Request((Message(role="user", content="?"),), 0, Move(GENERATE), None)
"""What is asked as little as anything: its price is known if any is."""


class CodingAccess(BaseModel):
    """What searches need beside what a run is; a process of one is told it, and nobody writes it.

    `options` are those that a user named, and `flags` those of the backend that have flags of
    their own. Each search has `budget` completions, of which `parallel` are in flight; all of them
    together cost `max_cost` US dollars at most. `accepted` are gaps of a sandbox that do not
    matter, and with a `cache` answers are kept and reused.
    """

    model_config = ConfigDict(frozen=True)

    options: tuple[str, ...] | dict[str, Any] = ()
    flags: dict[str, Any] = {}
    accepted: tuple[str, ...] = ()
    cache: bool = False
    budget: int = 20
    parallel: int = 1
    max_cost: float | None = None


class CodingParts(NamedTuple):
    """What searches are made of: who searches, who answers, and all options by their owners."""

    strategy: Callable[[], Strategy]
    backend: Backend
    options: dict[str, dict[str, Any]]

    @property
    def models(self) -> ModelPool | None:
        """The models that each search chooses among, None where there is one."""
        return self.backend if isinstance(self.backend, ModelPool) else None

    @property
    def backend_of_one(self) -> Backend:
        """Return what answers a single search, which chooses among models by what it sees."""
        return self.models.fresh(self.backend) if self.models else self.backend


def coding_parts(
    strategy: str,
    backend: str,
    model: str,
    access: CodingAccess,
    *,
    judge: JudgeRules | None = None,
) -> CodingParts:
    """Make what was chosen, and refuse at once what any search would refuse; nobody is asked."""
    owners = [
        Owner("strategy", find("strategy", strategy)),
        Owner("backend", find("backend", backend)),
        Owner("problem", CodingProblem),
        Owner("sandbox", Limits),
        Owner("search", ModelChoice),
    ]
    read_in = read_options(access.options, owners)
    check_flags(backend, access.flags)
    read_in["backend"] |= access.flags
    if judge is not None:
        read_in["problem"]["rules"] = judge
    read_in = with_presets(read_in, owners)
    make = partial(owners[0].factory, **read_in["strategy"])
    choosing = ModelChoice(**read_in["search"]).models
    factory = owners[1].factory
    if access.cache:
        factory = AnswerCache().making(factory)
    answers = make_backend(factory, model, read_in["backend"], choosing)
    answers.ready(access.max_cost)
    if access.max_cost is not None and answers.worst_cost(QUESTION) is None:
        raise CwmError("--max-cost needs a model with a known price: leave it out for this model")
    options = {
        "strategy": owners[0].identity(make()),
        "backend": owners[1].identity(innermost(answers)),
        "problem": owners[2].defaults() | read_in["problem"],
        "sandbox": asdict(chosen_limits(read_in["sandbox"])),
    }
    if isinstance(answers, ModelPool):
        options["search"] = {"models": choosing}
    return CodingParts(make, answers, options)


def chosen_limits(options: Mapping[str, Any]) -> Limits:
    """Return the limits that a user named, the others as they are for a test of a problem."""
    return Limits.chosen(asdict(LIMITS) | dict(options))
