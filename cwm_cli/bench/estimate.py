"""Estimates of the tokens, US dollars and hours of searches, made before they start.

`estimated` uses the measured usage of the same model in earlier runs. If there is none it assumes
typical values. The estimate reports its basis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from cwm_cli.errors import CwmError
from cwm_cli.runs.files import read_object
from cwm_cli.runs.observer import Observer
from cwm_cli.runs.searches import JOURNAL, SearchRun
from cwm_cli.runs.store import HEADER, RUNS
from cwm_cli.search.contracts import Backend, Usage
from cwm_cli.search.models import ModelPool

MAX_SEARCHED_RUNS = 60
"""Read at most this number of runs, so that a folder with thousands of runs costs no time."""

PROBLEMS = "problems"
"""Folder in a run over many problems, with one search per problem."""


class SearchesToCome(NamedTuple):
    """Planned searches with one model: their number and their remaining completions in total."""

    model: str
    backend: Backend
    jobs: int
    completions: int


@dataclass(frozen=True)
class ModelEstimate:
    """The estimated usage of one model.

    Attributes:
        model: The name of the model.
        jobs: Number of searches.
        completions: Number of completions of all searches.
        prompt_tokens: Mean tokens per prompt.
        answer_tokens: Mean tokens per completion.
        most_tokens: Maximum tokens per completion, reasoning included.
        thinks: Whether the model uses reasoning.
        seconds: Mean seconds per completion.
        measured: Number of earlier completions over which the means were computed. With 0 the
            means are assumed.
        expected: US dollars for all completions, or None if the price is unknown.
        worst: US dollars if every completion has the maximum length, or None.
    """

    model: str
    jobs: int
    completions: int
    prompt_tokens: int
    answer_tokens: int
    most_tokens: int
    thinks: bool
    seconds: float
    measured: int
    expected: float | None
    worst: float | None


@dataclass(frozen=True)
class CostEstimate:
    """The estimated usage of planned searches.

    Attributes:
        models: One estimate per model.
        in_flight: Number of parallel completions, or 0 if unknown.
        left: US dollars that remain of the cost limit, or None if there is no limit.
        jobs: Number of searches.
    """

    models: tuple[ModelEstimate, ...]
    in_flight: int
    left: float | None = None
    jobs: int = 0

    @property
    def completions(self) -> int:
        """The number of completions if every search uses its whole budget."""
        return sum(model.completions for model in self.models)

    @property
    def unpriced(self) -> tuple[str, ...]:
        """The models whose price is unknown."""
        return tuple(model.model for model in self.models if model.expected is None)

    @property
    def expected(self) -> float:
        """Expected US dollars for the models of known price, at most the remaining limit."""
        return self._apply_limit(sum(model.expected or 0.0 for model in self.models))

    @property
    def worst(self) -> float:
        """Maximum US dollars for the models of known price, at most the remaining limit."""
        return self._apply_limit(sum(model.worst or 0.0 for model in self.models))

    @property
    def hours(self) -> float:
        """Hours of waiting for completions, which is most of the time of searches.

        If `in_flight` is unknown, this is the time with one completion after the other.
        """
        seconds = sum(model.completions * model.seconds for model in self.models)
        return seconds / max(1, min(self.in_flight, self.completions)) / 3600

    @property
    def lines(self) -> tuple[str, str]:
        """The estimate as two lines of text: the amount of work, then its cost and time."""
        prompts = sum(model.completions * model.prompt_tokens for model in self.models)
        answers = sum(model.completions * model.answer_tokens for model in self.models)
        measured = sum(model.measured for model in self.models)
        assumed = [model.model for model in self.models if not model.measured]
        basis = (
            f"measured on {measured:,} completions"
            if measured
            else "assumed: no earlier completions are known"
        )
        if measured and assumed:
            basis += f", assumed for {', '.join(assumed)}"
        reasoning = " with reasoning" * any(model.thinks for model in self.models)
        waiting = "with one completion at a time: divide by the number in flight"
        if self.in_flight:
            waiting = f"with {self.in_flight} in flight"
        if self.hours >= 1:
            time = f"{self.hours:,.1f} hours"
        else:
            time = "a minute" if self.hours < 1.5 / 60 else f"{60 * self.hours:.0f} minutes"
        return (
            f"{self.jobs:,} jobs with up to {self.completions:,} completions: about "
            f"{_format_count(prompts)} prompt tokens and {_format_count(answers)} completion "
            f"tokens{reasoning} ({basis})",
            f"{self._format_cost()}; about {time} of waiting {waiting}",
        )

    def as_json(self) -> dict[str, Any]:
        """Return the estimate as JSON data."""
        return {
            "jobs": self.jobs,
            "completions": self.completions,
            "unpriced": self.unpriced,
            "expected": self.expected,
            "worst": self.worst,
            "hours": self.hours,
            "in_flight": self.in_flight,
            "left": self.left,
            "models": [asdict(model) for model in self.models],
        }

    def _format_cost(self) -> str:
        """Return the cost in words; an unknown price is reported and never counts as $0."""
        unknown = f"the price of {', '.join(self.unpriced)} is unknown" * bool(self.unpriced)
        if len(self.unpriced) == len(self.models):
            return unknown
        most = max(model.most_tokens for model in self.models if model.expected is not None)
        words = (
            f"about ${self.expected:,.2f}, ${self.worst:,.2f} if every completion had {most:,} "
            "tokens"
        )
        if self.left is not None and sum(model.worst or 0.0 for model in self.models) > self.left:
            words += f" (--max-cost leaves ${self.left:,.2f})"
        return "; ".join(filter(None, (words, unknown)))

    def _apply_limit(self, cost: float) -> float:
        return cost if self.left is None else min(cost, max(0.0, self.left))


Ask = Callable[[CostEstimate], bool]
"""Returns whether the user accepts an estimate."""


def estimated(
    to_come: Iterable[SearchesToCome],
    *,
    in_flight: int,
    left: float | None = None,
    folders: Sequence[Path] = (),
) -> CostEstimate:
    """Estimate the usage of planned searches.

    Args:
        to_come: The planned searches. Searches that sample from several models distribute their
            completions by weight.
        in_flight: Number of parallel completions, or 0 if unknown.
        left: US dollars that remain of the cost limit, or None if there is no limit.
        folders: Run folders whose completions are measured first, before other recent runs.
    """
    unfinished = [searches for searches in to_come if searches.completions]
    models = []
    for searches in unfinished:
        if not isinstance(pool := searches.backend, ModelPool):
            models.append(_estimate_model(searches, folders))
            continue
        weights, remaining = sum(pool.weights.values()), searches.completions
        for name, backend in pool.members.items():
            # The share is taken of the remaining completions, so that rounded shares add up.
            part = round(remaining * pool.weights[name] / weights)
            weights, remaining = weights - pool.weights[name], remaining - part
            share = searches._replace(model=name, backend=backend, completions=part)
            models.append(_estimate_model(share, folders))
    jobs = sum(searches.jobs for searches in unfinished)
    return CostEstimate(tuple(models), in_flight, left, jobs)


def agreed(estimate: CostEstimate, ask: Ask | None, observer: Observer) -> None:
    """Report an estimate, and ask for the user's consent.

    Args:
        estimate: The estimate. Without completions nothing is reported or asked.
        ask: Callback that returns whether the user accepts, or None to skip the question.
        observer: The observer that receives the lines of the estimate.

    Raises:
        CwmError: The user declined.
    """
    if not estimate.completions:
        return
    for line in estimate.lines:
        observer.note(line, "Estimate")
    if ask is not None and not ask(estimate):
        raise CwmError("not started, no cost: start with --yes, or limit the cost with --max-cost")


def _estimate_model(searches: SearchesToCome, folders: Sequence[Path]) -> ModelEstimate:
    backend, count = searches.backend, searches.completions
    # Average over this number of completions, taken from the newest runs: a mean needs no more.
    max_measured_completions = 200
    measured = list(islice(_usages(searches.model, folders), max_measured_completions))
    length = backend.answer_length()
    if measured:
        prompt = round(sum(usage.prompt_tokens for usage in measured) / len(measured))
        answer = round(sum(usage.completion_tokens for usage in measured) / len(measured))
        seconds = sum(usage.seconds for usage in measured) / len(measured)
    else:
        # The published medians are 2,500 tokens to generate a program and 3,500 to improve one.
        prompt, answer = 3000, length.usual
        seconds = 60.0 if length.thinks else 20.0
    most = max(length.most, answer)
    expected, worst = backend.price(prompt, answer), backend.price(prompt, most)
    return ModelEstimate(
        model=searches.model,
        jobs=searches.jobs,
        completions=count,
        prompt_tokens=prompt,
        answer_tokens=answer,
        most_tokens=most,
        thinks=length.thinks or any(usage.reasoning_tokens for usage in measured),
        seconds=seconds,
        measured=len(measured),
        expected=None if expected is None else count * expected,
        worst=None if worst is None else count * worst,
    )


def _usages(model: str, folders: Sequence[Path]) -> Iterator[Usage]:
    """Yield the usage of a model's completions: first from `folders`, then from recent runs."""
    own = (folder for folder in folders if (folder / JOURNAL).exists())
    for folder in dict.fromkeys(chain(islice(own, MAX_SEARCHED_RUNS), _newest_searches())):
        with suppress(CwmError, OSError, ValueError):
            config = (read_object(folder / HEADER) or {}).get("config")
            option = config.get("model", "") if isinstance(config, dict) else ""
            # The option may list several models with weights: A=2,B=1.
            listed = (part.partition("=")[0] for part in str(option).split(","))
            if model not in (option, *listed):
                continue
            for node in SearchRun.load(folder).nodes():
                usage = node.usage
                is_same = (node.model or model) == model
                if node.asked and is_same and usage.tokens and not usage.reused:
                    yield usage


def _newest_searches() -> Iterator[Path]:
    """Yield the folders of the newest searches, also within benchmarks and runs over problems."""
    journals = chain(RUNS.glob(f"*/{JOURNAL}"), RUNS.glob(f"*/*/{JOURNAL}"))
    # A run may have ten thousand problems: a sample of their searches is enough.
    problems = (islice(f.iterdir(), MAX_SEARCHED_RUNS) for f in RUNS.glob(f"*/{PROBLEMS}"))
    found = []
    for file in chain(journals, (folder / JOURNAL for folder in chain.from_iterable(problems))):
        with suppress(OSError):
            found.append((file.stat().st_mtime, file.parent))
    yield from (folder for _, folder in sorted(found, reverse=True)[:MAX_SEARCHED_RUNS])


def _format_count(count: int) -> str:
    if count >= 1_000_000:
        return f"{count / 1e6:.3g} million"
    return f"{round(count, -2):,}" if count >= 1000 else str(count)
