"""Several language models in one search: how they are named, which is asked next, what each brings.

`made_backend` makes a backend of a text such as `a=3,b`: of one model as it is, of several a
`ModelPool`, which gives every question to one of them. `model_uses` says of a search what each
took and brought.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
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
from cwm_cli.search.wrapper import BackendWrapper

if TYPE_CHECKING:
    import numpy as np

    from cwm_cli.envs.spec import EnvironmentSpec

Choosing = Literal["alternate", "bandit"]
"""The ways to choose among models."""

TRIES = 2
"""Answers of each model before a bandit chooses: the first one is asked for from scratch, which is
another task than bettering what is there."""

FORGETTING = 0.98
"""What an answer counts after each further one, so that some fifty count: what models bring
changes as the score rises, and the one that finds the outlines need not be the one that ends."""

PRIOR = (0.5, 0.5)
"""The beta distribution of the chance that an answer improves on the best, before any answer."""

LEAST_PRICE = 1.0
"""What any completion is taken to cost besides its price, in mean prices of the models: it takes
time and one of the budget of completions. With it two models are never further apart than three to
one: one that costs next to nothing, and brings nothing, is not asked a hundred times before one
that costs a hundred times as much."""


class NamedModel(NamedTuple):
    """A model, and how often it is asked relative to the others."""

    name: str
    weight: float = 1.0

    def __str__(self) -> str:
        """Write it as it is read."""
        return self.name if self.weight == 1 else f"{self.name}={self.weight:g}"


def read_models(texts: Iterable[str]) -> tuple[NamedModel, ...]:
    """Read the models of texts such as `a`, `a=3` or `a=3,b`; each once, in their order.

    Only a number after the last `=` is a weight. A text that is a file or folder is one name.
    """
    found: dict[str, NamedModel] = {}
    for text in texts:
        for model in [NamedModel(text)] if _is_place(text) else map(_read, text.split(",")):
            if not model.name:
                raise CwmError(
                    f"--model {text!r} has no model name: write NAME, NAME=3 or NAME=3,NAME"
                )
            if found.setdefault(model.name, model) != model:
                raise CwmError(f"{model.name} has two weights: give one")
    return tuple(found.values())


def models_text(models: Sequence[NamedModel]) -> str:
    """Write models as they are read; the weight of a single one does not matter."""
    return models[0].name if len(models) == 1 else ",".join(map(str, models))


def one_model(text: str) -> str:
    """Return the only model of a text, for what asks one alone."""
    models = read_models([text]) if text else (NamedModel(""),)
    if len(models) > 1:
        raise CwmError(
            f"several models are given ({models_text(models)}): only one is possible here"
        )
    return models[0].name


def _is_place(text: str) -> bool:
    return ("," in text or "=" in text) and Path(text).exists()


def _read(text: str) -> NamedModel:
    """Read a model and its weight."""
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
    """How several models share the completions of a search."""

    models: Choosing = "alternate"
    """Choice of the next model if there are several. alternate: by their weights; bandit: mostly
    the model with the largest improvement per US dollar."""


def made_backend(
    factory: Callable[..., Backend],
    text: str,
    options: Mapping[str, Any],
    choosing: Choosing = "alternate",
) -> Backend:
    """Make the backend of a text of models: as it is for one, a pool for several."""
    models = read_models([text]) if text else (NamedModel(""),)
    if len(models) == 1:
        return factory(model=models[0].name, **options)
    members = {each.name: factory(model=each.name, **options) for each in models}
    return ModelPool(members, {each.name: each.weight for each in models}, choosing)


@dataclass
class _Tried:
    """What is known of a model: `answers` in all, and those that count still, with what they did.

    Of these so many `improved` on the best, and `closed` is the sum of the shares of what was left
    that they closed. `costs` are in US dollars, None once one is unknown.
    """

    answers: int = 0
    counting: float = 0.0
    improved: float = 0.0
    closed: float = 0.0
    costs: float | None = 0.0

    def forget(self) -> None:
        """Have what is known count a little less."""
        self.counting *= FORGETTING
        self.improved *= FORGETTING
        self.closed *= FORGETTING


class ModelPool(BackendWrapper):
    """Several models as one backend: each question is for one of them, which `assign` names.

    The `members` are backends by model, alike but for that. All that is chosen by comes from
    `update` and from what is pending, so that a search that goes on, and one that is repeated,
    chooses as before. A question that nobody assigned is for the next by weight.

    - `alternate` is the smooth weighted round robin: of n questions each model gets its share by
      weight to within one, evenly spread.
    - `bandit` is Thompson sampling for bandits with costs: the model is asked of which an answer
      is drawn to gain most for what it costs [1]. What is gained is the share of what is left,
      1 minus the best score so far, that an answer closes, with what refiners make of
      it: as much for a step from 0.9 to 0.95 as for one from 0 to 0.5, since scores rise ever
      less. The chance that an answer improves on the best is drawn from its beta posterior, and
      taken times what an improvement of the model closed on the mean. Answers are forgotten
      little by little [2], as models that lead early may not lead late. The first answers of each
      are asked for by weight. Costs are means at list price, failures among them, plus a least
      price (`LEAST_PRICE`). Where the cost of an answer is unknown, or all are 0, what is gained
      per completion counts. Seconds would tell models apart that run here, but no second run would
      choose as the first one did.

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
        self._tried = {name: _Tried() for name in members}
        self._best = 0.0
        self._models: dict[int, str] = {}
        self._left: dict[int, float] = {}
        self._improving: set[int] = set()
        self._unassigned: Counter[str] = Counter()
        self._has_told = False
        self._lock = threading.Lock()
        if any(each.recorded() for each in members.values()):
            raise CwmError("a replayed run keeps its models: give one --model")

    def fresh(self, backend: Backend) -> ModelPool:
        """Return the same for another search, which has learned nothing and asks by `backend`.

        That one stands around this, or is it.
        """
        made = ModelPool(dict.fromkeys(self.members, backend), self.weights, self.choosing)
        made._priced = self._priced
        return made

    @property
    def can_score(self) -> bool:  # type: ignore[override]  # a class variable in `Backend`
        """Whether all of them know log-probabilities."""
        return all(each.can_score for each in self.members.values())

    @property
    def weighed(self) -> Usage:
        """What scoring took all of them."""
        return total([each.weighed for each in self.members.values()])

    def ready(self, max_cost: float | None = None) -> None:
        """Refuse what any of them refuses."""
        for each in self.members.values():
            each.ready(max_cost)

    def prepare(
        self,
        spec: EnvironmentSpec,
        env_args: Mapping[str, Any],
        tell: Callable[[str], None] = unheard,
    ) -> None:
        """Have all of them prepare."""
        for each in self.members.values():
            each.prepare(spec, env_args, tell)

    def assign(self, rng: np.random.Generator, pending: Sequence[str]) -> str:
        """Return the model that is to answer next, given those that are answering."""
        waiting = Counter(pending)
        counts = {name: each.answers + waiting[name] for name, each in self._tried.items()}
        began = all(each.answers and counts[name] >= TRIES for name, each in self._tried.items())
        if self.choosing == "alternate" or not began:
            return self._next(counts)
        costs, (successes, failures) = self._costs(), PRIOR
        usual = self._closed_by_one(self._tried.values(), 1.0)
        gains = {
            name: rng.beta(successes + each.improved, failures + each.counting - each.improved)
            * self._closed_by_one([each], usual)
            for name, each in self._tried.items()
        }
        return max(gains, key=lambda name: gains[name] / costs[name])

    def update(self, node: Node) -> None:
        """Learn what an answer, or what a refiner made of it, brought."""
        if node.id == 0:  # of a further search: its scores are of something else
            self._best, self._left, self._models, self._improving = 0.0, {}, {}, set()
        if node.asked and node.model in self.members:
            for each in self._tried.values():
                each.forget()
            tried, cost = self._tried[node.model], self._cost(node)
            tried.answers, tried.counting = tried.answers + 1, tried.counting + 1
            tried.costs = None if cost is None or tried.costs is None else tried.costs + cost
            self._left[node.step] = 1.0 - self._best
            self._models[node.step] = node.model
        score = 1.0 if node.verdict.solved else min(1.0, node.verdict.score)
        if score > self._best and node.step in self._models:
            tried = self._tried[self._models[node.step]]
            tried.closed += (score - self._best) / self._left[node.step]
            if node.asked or node.step not in self._improving:
                tried.improved = min(tried.improved + 1, tried.counting)
            self._improving.add(node.step)
        self._best = max(self._best, score)

    def price(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Return the mean price by weight, None where one is unknown."""
        found = {
            n: each.price(prompt_tokens, completion_tokens) for n, each in self.members.items()
        }
        known = [cost * self.weights[name] for name, cost in found.items() if cost is not None]
        return sum(known) / sum(self.weights.values()) if len(known) == len(found) else None

    def answer_length(self) -> AnswerLength:
        """Return the mean by weight of usual answers, and the most of any."""
        found = {name: each.answer_length() for name, each in self.members.items()}
        usual = sum(each.usual * self.weights[name] for name, each in found.items())
        return AnswerLength(
            round(usual / sum(self.weights.values())),
            max(each.most for each in found.values()),
            any(each.thinks for each in found.values()),
        )

    def complete(self, request: Request) -> Completion:
        """Have the model answer that the request names."""
        model = request.model
        if model not in self.members:
            with self._lock:
                model = self._next(self._unassigned)
                self._unassigned[model] += 1
        completion = self.members[model].complete(request._replace(model=model))
        if self.choosing == "bandit" and completion.usage.cost is None and self._is_news():
            words = (
                f"the price of {model} is unknown: models are compared by completions, not by cost"
            )
            return completion._replace(note="; ".join(filter(None, (completion.note, words))))
        return completion

    def worst_cost(self, request: Request) -> float | None:
        """Return what the model that the request names may cost, where it names none any of them.

        None where a price is unknown.
        """
        if request.model in self.members:
            return self.members[request.model].worst_cost(request)
        costs = [each.worst_cost(request) for each in self.members.values()]
        known = [cost for cost in costs if cost is not None]
        return max(known) if len(known) == len(costs) else None

    def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Sequence[float]]:
        """Have each text weighed by the model that its question is for, else by the first."""
        places: dict[str, list[int]] = defaultdict(list)
        for place, request in enumerate(requests):
            model = request.question.model if isinstance(request.question, Request) else ""
            places[model if model in self.members else next(iter(self.members))].append(place)
        found: dict[int, Sequence[float]] = {}
        for model, some in places.items():
            weighed = self.members[model].score([requests[place] for place in some])
            found |= dict(zip(some, weighed, strict=True))
        return [found[place] for place in range(len(requests))]

    def _is_news(self) -> bool:
        """Whether nobody was told yet that prices are unknown; from now on somebody was."""
        with self._lock:
            before, self._has_told = self._has_told, True
        return not before

    def _closed_by_one(self, some: Iterable[_Tried], usual: float) -> float:
        """Return how much of what was left an improvement closed on the mean, `usual` being one."""
        known = [(each.closed, each.improved) for each in some]
        return (sum(c for c, _ in known) + usual) / (sum(n for _, n in known) + 1)

    def _next(self, counts: Mapping[str, int]) -> str:
        """Return the next by weight, given how often each was asked."""
        number, every = sum(counts[n] for n in self.members) + 1, sum(self.weights.values())
        return max(self.members, key=lambda n: number * self.weights[n] - counts[n] * every)

    def _cost(self, node: Node) -> float | None:
        """Return what an answer costs: at list price where there is one.

        Then a second run chooses as the first did, though its answers were paid for before.
        """
        usage = node.usage
        listed = self._priced[node.model].price(usage.prompt_tokens, usage.completion_tokens)
        return listed or (None if usage.reused and listed is None else usage.cost)

    def _costs(self) -> dict[str, float]:
        """Return what an answer of each model is taken to cost, relative to their mean."""
        known = {n: each.costs / each.answers for n, each in self._tried.items() if each.costs}
        free = {n: 0.0 for n, each in self._tried.items() if each.costs == 0}
        means = known | free
        if len(means) < len(self.members) or not known:
            return dict.fromkeys(self.members, 1.0)
        mean = sum(means.values()) / len(means)
        return {name: cost / mean + LEAST_PRICE for name, cost in means.items()}


@dataclass(frozen=True)
class ModelUse:
    """What one model of a search took, and what came of its answers.

    `cost` is in US dollars, None where it is unknown. An answer counts with what refiners made of
    it: `improved` says how often the best score so far was raised, and `gain` by how much in all.
    `failing` answers held no program that runs.
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
        """Return it as `--json` prints it."""
        return asdict(self)


def model_gains(nodes: Iterable[Node], usual: str = "") -> dict[str, dict[int, float]]:
    """Return by how much each model raised the best score, by the number of the completion.

    Every model has every number; a raise that refiners came to later is there then.
    """
    raises: list[tuple[str, int, float]] = []
    models: dict[int, str] = {}
    best, asked = 0.0, 0
    for node in nodes:
        if node.asked:
            asked += 1
            models[node.step] = node.model or usual
        if node.step in models:
            raises.append((models[node.step], asked, max(0.0, node.verdict.score - best)))
        best = max(best, node.verdict.score)
    found = {name: dict.fromkeys(range(1, asked + 1), 0.0) for name in models.values()}
    for model, number, gain in raises:
        found[model][number] += gain
    return found


@dataclass
class _Answers:
    """The answers of one model, and what came of them."""

    nodes: list[Node] = field(default_factory=list)
    improved: int = 0
    gain: float = 0.0


def model_uses(nodes: Iterable[Node], usual: str = "") -> list[ModelUse]:
    """Return what each model of a search took and brought, in the order of their first answers.

    Answers of which no model is recorded are those of the `usual` one.
    """
    found: dict[str, _Answers] = defaultdict(_Answers)
    models: dict[int, str] = {}
    best = 0.0
    for node in nodes:
        if node.asked:
            models[node.step] = node.model or usual
            found[models[node.step]].nodes.append(node)
        if node.verdict.score > best:
            if node.step in models:
                answers = found[models[node.step]]
                answers.improved += 1
                answers.gain += node.verdict.score - best
            best = node.verdict.score
    return [_use(model, answers) for model, answers in found.items()]


def _use(model: str, answers: _Answers) -> ModelUse:
    """Add up the answers of a model."""
    spent = total([node.usage for node in answers.nodes])
    scores = [node.verdict.score for node in answers.nodes]
    return ModelUse(
        model=model,
        completions=len(scores),
        tokens=spent.tokens,
        cost=spent.cost,
        seconds=round(spent.seconds, 3),
        failing=sum(node.verdict.is_bug for node in answers.nodes),
        improved=answers.improved,
        gain=answers.gain,
        mean_score=sum(scores) / len(scores),
        best_score=max(scores),
    )
