"""The choices for the searches of a run: backend, strategy and all of their options."""

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
"""A minimal request. A model whose price is known has a price for this request."""


class CodingAccess(BaseModel):
    """The choices of a search that are not part of its saved configuration.

    The worker process of a problem receives them in an environment variable.

    Attributes:
        options: Options that the user named (`-o NAME=VALUE`).
        flags: Backend options that have flags of their own.
        accepted: Gaps of the sandbox protection that the user accepts.
        cache: Whether answers are cached and reused.
        budget: Number of completions per search.
        parallel: Maximum number of completions in flight per search.
        max_cost: Cost limit of all searches together, in US dollars.
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
    """The strategy factory, the backend, and all options grouped by their owners."""

    strategy: Callable[[], Strategy]
    backend: Backend
    options: dict[str, dict[str, Any]]

    @property
    def models(self) -> ModelPool | None:
        """The pool of models that each search chooses from, None if there is one model."""
        return self.backend if isinstance(self.backend, ModelPool) else None

    @property
    def search_backend(self) -> Backend:
        """The backend of a single search. With several models, it learns from this search only."""
        return self.models.fresh(self.backend) if self.models else self.backend


def coding_parts(
    strategy: str,
    backend: str,
    model: str,
    access: CodingAccess,
    *,
    judge: JudgeRules | None = None,
) -> CodingParts:
    """Build the strategy and the backend, and check all options without any request.

    Raises:
        CwmError: If a search would reject the choices, or `max_cost` is given and the price of
            the model is unknown.
    """
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
    """Return the limits that the user named; the rest are the defaults for a test."""
    return Limits.chosen(asdict(LIMITS) | dict(options))
