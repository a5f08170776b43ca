"""Several language models in one search: their names, the choice among them, their results.

`make_backend` makes the backend of a text such as `a=3,b`: a plain backend for one model, and a
`ModelPool` for several, which assigns each request to one model. `model_uses` returns the usage
and the improvements of each model of a search.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cwm_cli.errors import CwmError
from cwm_cli.search.contracts import (
    AnswerLength,
    Backend,
    Completion,
    Node,
    Request,
    ScoreRequest,
    Usage,
    total,
    unheard,
)

if TYPE_CHECKING:
    import numpy as np

    from cwm_cli.envs.spec import EnvironmentSpec


class BackendWrapper(Backend):
    """Delegates all attributes and methods to the backend `inner`; a subclass overrides some.

    Example::

        class Counting(BackendWrapper):
            requests = 0

            def complete(self, request):
                self.requests += 1
                return self.inner.complete(request)
    """

    def __init__(self, inner: Backend) -> None:
        self.inner = inner


# `__getattr__` would not do: it is only called for names that `Backend` does not define.
# `dir` also lists the names that `Backend` inherits, which `vars` leaves out.
for _name in dir(Backend):
    if not _name.startswith("_"):
        setattr(BackendWrapper, _name, property(attrgetter(f"inner.{_name}")))


class Waiting(NamedTuple):
    """A request without an answer yet: its model and its start in monotonic seconds."""

    model: str
    since: float


class InFlight:
    """The requests in flight of several backends, for live views."""

    def __init__(self) -> None:
        self._waiting: dict[object, Waiting] = {}

    @property
    def oldest(self) -> Waiting | None:
        """The request that has waited longest, or None."""
        return min(self._waiting.copy().values(), key=lambda request: request.since, default=None)

    def making(self, factory: Callable[..., Backend]) -> Callable[..., Backend]:
        """Return a factory of the same backends that registers their requests here."""
        return lambda **options: _Registered(factory(**options), options["model"], self._waiting)


class _Registered(BackendWrapper):
    def __init__(self, inner: Backend, model: str, waiting: dict[object, Waiting]) -> None:
        super().__init__(inner)
        self._model, self._waiting = model, waiting

    def complete(self, request: Request) -> Completion:
        key = object()
        self._waiting[key] = Waiting(self._model, time.monotonic())
        try:
            return self.inner.complete(request)
        finally:
            del self._waiting[key]


def innermost(backend: Backend) -> Backend:
    """Return the backend inside all wrappers, which has the options."""
    while isinstance(backend, BackendWrapper):
        backend = backend.inner
    return backend


Choosing = Literal["alternate", "bandit"]
"""The ways to choose among models."""


class NamedModel(NamedTuple):
    """A model and its share of the completions, relative to the other models."""

    name: str
    weight: float = 1.0

    def __str__(self) -> str:
        """Return the text that `read_models` reads."""
        return self.name if self.weight == 1 else f"{self.name}={self.weight:g}"


def read_models(texts: Iterable[str]) -> tuple[NamedModel, ...]:
    """Read the models of texts such as `a`, `a=3` or `a=3,b`.

    Only a number after the last `=` is a weight. A text that is the path of a file or folder is
    one name.

    Returns:
        The models in order, without duplicates.

    Raises:
        CwmError: If a name is missing, or if a weight is not positive or not unique.
    """
    found: dict[str, NamedModel] = {}
    for text in texts:
        is_path = ("," in text or "=" in text) and Path(text).exists()
        for model in [NamedModel(text)] if is_path else map(_read, text.split(",")):
            if not model.name:
                raise CwmError(
                    f"--model {text!r} has no model name: write NAME, NAME=3 or NAME=3,NAME"
                )
            if found.setdefault(model.name, model) != model:
                raise CwmError(f"{model.name} has two weights: give one")
    return tuple(found.values())


def models_text(models: Sequence[NamedModel]) -> str:
    """Return the text of models, without the weight if there is a single model."""
    return models[0].name if len(models) == 1 else ",".join(map(str, models))


def one_model(text: str) -> str:
    """Return the only model of a text; raise `CwmError` if there are several."""
    models = read_models([text]) if text else (NamedModel(""),)
    if len(models) > 1:
        raise CwmError(
            f"several models are given ({models_text(models)}): only one is possible here"
        )
    return models[0].name


def _read(text: str) -> NamedModel:
    name, separator, number = text.strip().rpartition("=")
    if separator:
        try:
            weight = float(number)
        except ValueError:
            return NamedModel(text.strip())
        if not 0 < weight < inf:
            raise CwmError(f"the weight of {name} is {number}: it must be above 0")
        return NamedModel(name.strip(), weight)
    return NamedModel(number)


@dataclass(frozen=True)
class ModelChoice:
    """The way that several models share the completions of a search."""

    models: Choosing = "alternate"
    """Choice of the next model if there are several. alternate: by their weights; bandit: mostly
    the model with the largest improvement per US dollar."""


def make_backend(
    factory: Callable[..., Backend],
    text: str,
    options: Mapping[str, Any],
    choosing: Choosing = "alternate",
) -> Backend:
    """Return the backend of a text of models: a plain backend for one, a pool for several."""
    models = read_models([text]) if text else (NamedModel(""),)
    if len(models) == 1:
        return factory(model=models[0].name, **options)
    members = {model.name: factory(model=model.name, **options) for model in models}
    return ModelPool(members, {model.name: model.weight for model in models}, choosing)


@dataclass
class _Arm:
    """The statistics of a model; all but `answers` and `costs` are discounted over time.

    `improved` counts the answers that improved on the best score. `closed` is the sum of the
    fractions of the remaining gap, 1 minus the best score, that they closed. `costs` is in US
    dollars, or None after an answer of unknown cost.
    """

    answers: int = 0
    counted: float = 0.0
    improved: float = 0.0
    closed: float = 0.0
    costs: float | None = 0.0

    def forget(self) -> None:
        """Discount the statistics by one answer.

        With a factor of 0.98 about fifty answers count. Which model improves most changes as the
        score rises: the best one for a first outline may not be the best one for the last errors.
        """
        self.counted *= 0.98
        self.improved *= 0.98
        self.closed *= 0.98


class ModelPool(BackendWrapper):
    """Several models as one backend; `assign` chooses the model of each request.

    The `members` are backends by model, with otherwise equal options. The choice depends only on
    `update` and on the pending requests, so that a resumed or repeated search chooses the same
    models. A request without an assigned model goes to the next model by weight.

    - `alternate` is smooth weighted round robin: of n requests each model gets its share by
      weight to within one, evenly spread.
    - `bandit` is Thompson sampling for bandits with costs [1]: it chooses the model with the
      largest sampled gain per cost. The gain of an answer is the fraction of the remaining gap,
      1 minus the best score so far, that the answer and its refinements close. A step from 0.9 to
      0.95 counts as much as one from 0 to 0.5, since scores rise more and more slowly. The
      probability of an improvement is sampled from its beta posterior, and multiplied by the mean
      fraction that an improvement of the model closes. Old answers are discounted [2], since the
      best model may change. The first answers of each model are assigned by weight. The cost is
      the mean at list price, with failed answers, plus a constant (see `_costs`). If the cost of an
      answer is unknown, or all costs are 0, the gain per completion counts. The time of an answer
      does not count, although it differs between local models: it is never the same twice, so a
      repeated run would choose other models.

    [1] Y. Xia, H. Li, T. Qin, N. Yu, T.-Y. Liu: Thompson Sampling for Budgeted Multi-armed
        Bandits, IJCAI 2015.
    [2] V. Raj, S. Kalyani: Taming Non-stationary Bandits: A Bayesian Approach, 2017
        (arXiv:1707.09727).
    """

    def __init__(
        self,
        members: Mapping[str, Backend],
        weights: Mapping[str, float] | None = None,
        choosing: Choosing = "alternate",
    ) -> None:
        super().__init__(next(iter(members.values())))
        self.members = dict(members)
        self.weights = {name: (weights or {}).get(name, 1.0) for name in members}
        self.choosing = choosing
        self._priced = self.members
        self._arms = {name: _Arm() for name in members}
        self._best = 0.0
        self._models: dict[int, str] = {}  # by step, and so are the next two
        self._gaps: dict[int, float] = {}
        self._improving: set[int] = set()
        self._unassigned: Counter[str] = Counter()
        self._has_warned = False
        self._lock = threading.Lock()
        if any(member.recorded() for member in members.values()):
            raise CwmError("a replayed run keeps its models: give one --model")

    def fresh(self, backend: Backend) -> ModelPool:
        """Return a pool without statistics for another search, which requests from `backend`.

        `backend` is this pool or a wrapper around it.
        """
        made = ModelPool(dict.fromkeys(self.members, backend), self.weights, self.choosing)
        made._priced = self._priced
        return made

    @property
    def can_score(self) -> bool:  # type: ignore[override]  # a class variable in `Backend`
        """Whether all members have log-probabilities."""
        return all(member.can_score for member in self.members.values())

    @property
    def weighed(self) -> Usage:
        """The usage of all scoring by all members."""
        return total([member.weighed for member in self.members.values()])

    def ready(self, max_cost: float | None = None) -> None:
        """Raise the error of the first member that is not ready."""
        for member in self.members.values():
            member.ready(max_cost)

    def prepare(
        self,
        spec: EnvironmentSpec,
        env_args: Mapping[str, Any],
        tell: Callable[[str], None] = unheard,
    ) -> None:
        """Prepare all members."""
        for member in self.members.values():
            member.prepare(spec, env_args, tell)

    def assign(self, rng: np.random.Generator, pending: Sequence[str]) -> str:
        """Return the model of the next request, given the models of the pending ones."""
        waiting = Counter(pending)
        counts = {name: arm.answers + waiting[name] for name, arm in self._arms.items()}
        # The bandit needs two answers per model: the first one is generated from scratch, which
        # is another task than an improvement.
        began = all(arm.answers and counts[name] >= 2 for name, arm in self._arms.items())
        if self.choosing == "alternate" or not began:
            return self._next_by_weight(counts)
        costs, (successes, failures) = self._costs(), (0.5, 0.5)  # Jeffreys prior
        usual = _closed_per_improvement(self._arms.values(), 1.0)
        gains = {
            name: rng.beta(successes + arm.improved, failures + arm.counted - arm.improved)
            * _closed_per_improvement([arm], usual)
            for name, arm in self._arms.items()
        }
        return max(gains, key=lambda name: gains[name] / costs[name])

    def update(self, node: Node) -> None:
        """Update the statistics with an answer, or with a refinement of an answer."""
        if node.id == 0:  # a new search begins, whose scores mean something else
            self._best, self._gaps, self._models, self._improving = 0.0, {}, {}, set()
        if node.asked and node.model in self.members:
            for arm in self._arms.values():
                arm.forget()
            arm, cost = self._arms[node.model], self._cost(node)
            arm.answers, arm.counted = arm.answers + 1, arm.counted + 1
            arm.costs = None if cost is None or arm.costs is None else arm.costs + cost
            self._gaps[node.step] = 1.0 - self._best
            self._models[node.step] = node.model
        score = 1.0 if node.verdict.solved else min(1.0, node.verdict.score)
        if score > self._best and node.step in self._models:
            arm = self._arms[self._models[node.step]]
            arm.closed += (score - self._best) / self._gaps[node.step]
            if node.asked or node.step not in self._improving:
                arm.improved = min(arm.improved + 1, arm.counted)
            self._improving.add(node.step)
        self._best = max(self._best, score)

    def price(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Return the mean price by weight, or None if one price is unknown."""
        found = {
            name: member.price(prompt_tokens, completion_tokens)
            for name, member in self.members.items()
        }
        known = [cost * self.weights[name] for name, cost in found.items() if cost is not None]
        return sum(known) / sum(self.weights.values()) if len(known) == len(found) else None

    def answer_length(self) -> AnswerLength:
        """Return the mean of the usual lengths by weight, and the largest maximum."""
        found = {name: member.answer_length() for name, member in self.members.items()}
        usual = sum(length.usual * self.weights[name] for name, length in found.items())
        return AnswerLength(
            round(usual / sum(self.weights.values())),
            max(length.most for length in found.values()),
            any(length.thinks for length in found.values()),
        )

    def complete(self, request: Request) -> Completion:
        """Complete a request with its assigned model."""
        model = request.model
        if model not in self.members:
            with self._lock:
                model = self._next_by_weight(self._unassigned)
                self._unassigned[model] += 1
        completion = self.members[model].complete(request._replace(model=model))
        if self.choosing == "bandit" and completion.usage.cost is None:
            with self._lock:
                had_warned, self._has_warned = self._has_warned, True
            if not had_warned:
                warning = (
                    f"the price of {model} is unknown: models are compared by completions, not by "
                    "cost"
                )
                note = "; ".join(filter(None, (completion.note, warning)))
                return completion._replace(note=note)
        return completion

    def worst_cost(self, request: Request) -> float | None:
        """Return the worst cost of the assigned model, or of all models if none is assigned.

        None means that a price is unknown.
        """
        if request.model in self.members:
            return self.members[request.model].worst_cost(request)
        costs = [member.worst_cost(request) for member in self.members.values()]
        known = [cost for cost in costs if cost is not None]
        return max(known) if len(known) == len(costs) else None

    def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Sequence[float]]:
        """Score each text with the model of its question, or else with the first model."""
        places: dict[str, list[int]] = defaultdict(list)
        for place, request in enumerate(requests):
            model = request.question.model if isinstance(request.question, Request) else ""
            places[model if model in self.members else next(iter(self.members))].append(place)
        found: dict[int, Sequence[float]] = {}
        for model, own in places.items():
            scores = self.members[model].score([requests[place] for place in own])
            found |= dict(zip(own, scores, strict=True))
        return [found[place] for place in range(len(requests))]

    def _next_by_weight(self, counts: Mapping[str, int]) -> str:
        """Return the model that is furthest behind its share, given the requests of each."""
        number, every = sum(counts[n] for n in self.members) + 1, sum(self.weights.values())
        return max(self.members, key=lambda n: number * self.weights[n] - counts[n] * every)

    def _cost(self, node: Node) -> float | None:
        """Return the cost of an answer, at list price if known.

        The list price is the same for a cached answer, which cost nothing, so that a second run
        chooses the same models.
        """
        usage = node.usage
        listed = self._priced[node.model].price(usage.prompt_tokens, usage.completion_tokens)
        return listed or (None if usage.reused and listed is None else usage.cost)

    def _costs(self) -> dict[str, float]:
        """Return the mean cost of an answer of each model, relative to the mean of all, plus 1.

        The constant represents the time and the budget that any completion takes. With it the
        costs of two models differ at most threefold, so that an almost free model without
        improvements is not tried a hundred times before a model of a hundred times its price.
        """
        known = {n: arm.costs / arm.answers for n, arm in self._arms.items() if arm.costs}
        free = {n: 0.0 for n, arm in self._arms.items() if arm.costs == 0}
        means = known | free
        if len(means) < len(self.members) or not known:
            return dict.fromkeys(self.members, 1.0)
        mean = sum(means.values()) / len(means)
        return {name: cost / mean + 1.0 for name, cost in means.items()}


def _closed_per_improvement(arms: Iterable[_Arm], usual: float) -> float:
    """Return the mean fraction of the gap that an improvement closed.

    `usual` counts as one more improvement, a prior.
    """
    known = [(arm.closed, arm.improved) for arm in arms]
    return (sum(c for c, _ in known) + usual) / (sum(n for _, n in known) + 1)


@dataclass(frozen=True)
class ModelUse:
    """The usage and the improvements of one model of a search.

    `cost` is in US dollars, or None if it is unknown. `failing` counts the answers without a
    program that runs. `improved` counts the improvements of the best score, including those by
    refinements of an answer, and `gain` is their sum.
    """

    model: str
    completions: int
    tokens: int
    cost: float | None
    seconds: float
    failing: int
    improved: int
    gain: float
    mean_score: float
    best_score: float

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return asdict(self)


def model_gains(nodes: Iterable[Node]) -> dict[str, dict[int, float]]:
    """Return the gain in the best score by model and number of the completion, from 1.

    Every model has every number. A gain by a refinement counts at the number of completions at
    that time.
    """
    raises: list[tuple[str, int, float]] = []
    models: dict[int, str] = {}
    best, asked = 0.0, 0
    for node in nodes:
        if node.asked:
            asked += 1
            models[node.step] = node.model
        if node.step in models:
            raises.append((models[node.step], asked, max(0.0, node.verdict.score - best)))
        best = max(best, node.verdict.score)
    found = {name: dict.fromkeys(range(1, asked + 1), 0.0) for name in models.values()}
    for model, number, gain in raises:
        found[model][number] += gain
    return found


def model_uses(nodes: Iterable[Node], usual: str = "") -> list[ModelUse]:
    """Return the use of each model of a search, in the order of their first answers.

    Answers without a recorded model count for the `usual` one.
    """
    answers: dict[str, list[Node]] = defaultdict(list)
    improved: Counter[str] = Counter()
    gains: dict[str, float] = defaultdict(float)
    models: dict[int, str] = {}
    best = 0.0
    for node in nodes:
        if node.asked:
            models[node.step] = node.model or usual
            answers[models[node.step]].append(node)
        if node.verdict.score > best:
            if node.step in models:
                improved[models[node.step]] += 1
                gains[models[node.step]] += node.verdict.score - best
            best = node.verdict.score
    uses = []
    for model, own in answers.items():
        usage = total([node.usage for node in own])
        scores = [node.verdict.score for node in own]
        use = ModelUse(
            model=model,
            completions=len(scores),
            tokens=usage.tokens,
            cost=usage.cost,
            seconds=round(usage.seconds, 3),
            failing=sum(node.verdict.is_bug for node in own),
            improved=improved[model],
            gain=gains[model],
            mean_score=sum(scores) / len(scores),
            best_score=max(scores),
        )
        uses.append(use)
    return uses
