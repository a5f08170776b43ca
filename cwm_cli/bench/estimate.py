"""What a benchmark will take, told before anything is asked or paid: tokens, dollars, hours.

`estimated` says it of searches that are to be made, from what completions of the same model took
in runs of before, or else from what they usually take, and says which.
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

PROMPT_TOKENS = 3_000
"""Tokens of a prompt where none was measured: the published medians are 2,500 to generate a program
and 3,500 to improve one."""

SECONDS, THINKING_SECONDS = 20.0, 60.0
"""Seconds of a completion where none was measured; models that think take several times longer."""

MOST_MEASURED = 200
"""Completions of a model that are looked at, those of the newest runs: a mean needs no more."""

MOST_LOOKED = 60
"""Runs that are looked at for them, so that a folder with thousands costs no time."""

PROBLEMS = "problems"
"""The folder within a run over many problems that has a search for each."""


class SearchesToCome(NamedTuple):
    """Searches that a backend is to answer: how many, and how many completions they have left."""

    model: str
    backend: Backend
    jobs: int
    completions: int


@dataclass(frozen=True)
class ModelEstimate:
    """What a model will take: tokens of a prompt and of an answer, and seconds, on the mean.

    They are means over so many `measured` completions, and assumed where there are none. An answer
    has `most_tokens` at most, with its thoughts where the model `thinks`. `expected` and `worst`
    are US dollars for all completions, None where the price is unknown; the worst is that every
    answer is as long as it can be.
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
    """What searches that are to come will take, model by model; so many `jobs` they are.

    `in_flight` completions are under way at a time, 0 where that is not known. Of the limit of the
    cost `left` is what it still allows, None where there is no limit.
    """

    models: tuple[ModelEstimate, ...]
    in_flight: int
    left: float | None = None
    jobs: int = 0

    @property
    def completions(self) -> int:
        """All completions, if no search is right before its budget is spent."""
        return sum(each.completions for each in self.models)

    @property
    def unpriced(self) -> tuple[str, ...]:
        """The models whose price is unknown."""
        return tuple(each.model for each in self.models if each.expected is None)

    @property
    def expected(self) -> float:
        """US dollars that are to be expected, of models of known price, within the limit."""
        return self._limited(sum(each.expected or 0.0 for each in self.models))

    @property
    def worst(self) -> float:
        """US dollars at most, of models of known price, within the limit."""
        return self._limited(sum(each.worst or 0.0 for each in self.models))

    @property
    def hours(self) -> float:
        """Hours of waiting for answers, which is most of what searches do.

        Where it is not known how many are in flight they are those of all answers one by one.
        """
        seconds = sum(each.completions * each.seconds for each in self.models)
        return seconds / max(1, min(self.in_flight, self.completions)) / 3600

    @property
    def lines(self) -> tuple[str, str]:
        """What to tell a user: what is to be done, and what it takes."""
        prompts = sum(each.completions * each.prompt_tokens for each in self.models)
        answers = sum(each.completions * each.answer_tokens for each in self.models)
        measured = sum(each.measured for each in self.models)
        assumed = [each.model for each in self.models if not each.measured]
        basis = (
            f"measured on {measured:,} completions"
            if measured
            else "assumed: no earlier completions are known"
        )
        if measured and assumed:
            basis += f", assumed for {', '.join(assumed)}"
        thoughts = " with reasoning" * any(each.thinks for each in self.models)
        waiting = "with one completion at a time: divide by the number in flight"
        if self.in_flight:
            waiting = f"with {self.in_flight} in flight"
        return (
            f"{self.jobs:,} jobs with up to {self.completions:,} completions: about "
            f"{_many(prompts)} prompt tokens and {_many(answers)} completion tokens{thoughts} "
            f"({basis})",
            f"{self._money()}; about {_time(self.hours)} of waiting {waiting}",
        )

    def as_json(self) -> dict[str, Any]:
        """Return all of it in plain data."""
        names = (
            "jobs",
            "completions",
            "unpriced",
            "expected",
            "worst",
            "hours",
            "in_flight",
            "left",
        )
        facts = {name: getattr(self, name) for name in names}
        return facts | {"models": [asdict(each) for each in self.models]}

    def _money(self) -> str:
        """Say what it costs; what is unknown is never nothing."""
        unknown = f"the price of {', '.join(self.unpriced)} is unknown" * bool(self.unpriced)
        if len(self.unpriced) == len(self.models):
            return unknown
        most = max(each.most_tokens for each in self.models if each.expected is not None)
        words = (
            f"about ${self.expected:,.2f}, ${self.worst:,.2f} if every completion had {most:,} "
            "tokens"
        )
        if self.left is not None and sum(each.worst or 0.0 for each in self.models) > self.left:
            words += f" (--max-cost leaves ${self.left:,.2f})"
        return "; ".join(filter(None, (words, unknown)))

    def _limited(self, cost: float) -> float:
        return cost if self.left is None else min(cost, max(0.0, self.left))


Ask = Callable[[CostEstimate], bool]
"""Says whether what is estimated is to be done."""


def estimated(
    to_come: Iterable[SearchesToCome],
    *,
    in_flight: int,
    left: float | None = None,
    folders: Sequence[Path] = (),
) -> CostEstimate:
    """Return what searches will take, each model by what it took in these folders, or in others.

    Several models that searches choose among have their shares by weight. `left` is what a limit of
    the cost still allows, in US dollars.
    """
    some = [each for each in to_come if each.completions]
    models = tuple(_of_model(each, folders) for searches in some for each in _members(searches))
    return CostEstimate(models, in_flight, left, sum(each.jobs for each in some))


def agreed(estimate: CostEstimate, ask: Ask | None, observer: Observer) -> None:
    """Tell what is estimated, and ask; `CwmError` where it is not to be done."""
    if not estimate.completions:
        return
    for line in estimate.lines:
        observer.note(line, "Estimate")
    if ask is not None and not ask(estimate):
        raise CwmError("not started, no cost: start with --yes, or limit the cost with --max-cost")


def _members(searches: SearchesToCome) -> Iterator[SearchesToCome]:
    """Yield what each of several models is to answer, or all of it for a single one."""
    pool = searches.backend
    if not isinstance(pool, ModelPool):
        yield searches
        return
    weights, left = sum(pool.weights.values()), searches.completions
    for name, backend in pool.members.items():
        # of what is left, so that all shares together are whole
        share = round(left * pool.weights[name] / weights)
        weights, left = weights - pool.weights[name], left - share
        yield searches._replace(model=name, backend=backend, completions=share)


def _of_model(searches: SearchesToCome, folders: Sequence[Path]) -> ModelEstimate:
    """Return what a model will take."""
    backend, count = searches.backend, searches.completions
    known = list(islice(_usages(searches.model, folders), MOST_MEASURED))
    length = backend.answer_length()
    if known:
        prompt = round(sum(each.prompt_tokens for each in known) / len(known))
        answer = round(sum(each.completion_tokens for each in known) / len(known))
        seconds = sum(each.seconds for each in known) / len(known)
    else:
        prompt, answer = PROMPT_TOKENS, length.usual
        seconds = THINKING_SECONDS if length.thinks else SECONDS
    most = max(length.most, answer)
    expected, worst = backend.price(prompt, answer), backend.price(prompt, most)
    return ModelEstimate(
        model=searches.model,
        jobs=searches.jobs,
        completions=count,
        prompt_tokens=prompt,
        answer_tokens=answer,
        most_tokens=most,
        thinks=length.thinks or any(each.reasoning_tokens for each in known),
        seconds=seconds,
        measured=len(known),
        expected=None if expected is None else count * expected,
        worst=None if worst is None else count * worst,
    )


def _usages(model: str, folders: Sequence[Path]) -> Iterator[Usage]:
    """Yield what completions of a model took, first in these folders, then in the newest runs."""
    own = (folder for folder in folders if (folder / JOURNAL).exists())
    for folder in dict.fromkeys(chain(islice(own, MOST_LOOKED), _newest(RUNS))):
        with suppress(CwmError, OSError, ValueError):
            if model in _model_of(folder):
                for node in SearchRun.load(folder).nodes():
                    usage = node.usage
                    is_its = (node.model or model) == model
                    if node.asked and is_its and usage.tokens and not usage.reused:
                        yield usage


def _newest(place: Path) -> Iterator[Path]:
    """Yield the newest searches in a folder, among them those of benchmarks and of problems."""
    journals = chain(place.glob(f"*/{JOURNAL}"), place.glob(f"*/*/{JOURNAL}"))
    # of a run there may be ten thousand problems: some of them tell what the others would
    several = (islice(folder.iterdir(), MOST_LOOKED) for folder in place.glob(f"*/{PROBLEMS}"))
    found = []
    for file in chain(journals, (folder / JOURNAL for folder in chain.from_iterable(several))):
        with suppress(OSError):
            found.append((file.stat().st_mtime, file.parent))
    yield from (folder for _, folder in sorted(found, reverse=True)[:MOST_LOOKED])


def _model_of(folder: Path) -> list[str]:
    """Return the models of a run, by the names that estimates have for them."""
    config = (read_object(folder / HEADER) or {}).get("config")
    named = config.get("model", "") if isinstance(config, dict) else ""
    return [named, *(each.partition("=")[0] for each in str(named).split(","))]


def _many(count: int) -> str:
    """Write a large number in few digits."""
    if count >= 1_000_000:
        return f"{count / 1e6:.3g} million"
    return f"{round(count, -2):,}" if count >= 1000 else str(count)


def _time(hours: float) -> str:
    """Write hours, or minutes."""
    if hours >= 1:
        return f"{hours:,.1f} hours"
    return "a minute" if hours < 1.5 / 60 else f"{60 * hours:.0f} minutes"
