"""What theorizing is made of: an environment in words, who proposes and who weighs, held-out rows.

`cwm theorize` and `cwm score` share it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from cwm_cli.commands.choices import MODEL_VARIABLE
from cwm_cli.commands.collect import load_transitions
from cwm_cli.commands.policies import Policy, Stage
from cwm_cli.data.dataset import DONE, Dataset, Transition
from cwm_cli.envs.spec import EnvironmentSpec, space_of
from cwm_cli.envs.tasks import step_limit
from cwm_cli.envs.text_view import TextView
from cwm_cli.errors import CwmError
from cwm_cli.registry import Owner, default, find, names, read_options, with_presets
from cwm_cli.runs.observer import Observer
from cwm_cli.search.answers import AnswerCache
from cwm_cli.search.contracts import Backend, Strategy
from cwm_cli.search.models import one_model
from cwm_theorize.choosing import weigher
from cwm_theorize.experimenters import gather, view_of
from cwm_theorize.problem import TheoryProblem
from cwm_theorize.statistician import Statistician

HELD_OUT_EPISODES = 9
"""Episodes that are held out, as many as in the published test set."""


def in_words(
    spec: EnvironmentSpec, env_args: Mapping[str, Any], *, seed: int, max_steps: int
) -> tuple[Stage, TextView]:
    """Return an environment to record, which is to be closed, and the words for it."""
    with closing(spec.make(**env_args)) as made:
        view = view_of(spec, made)
    stage = Stage(spec, env_args, seed, max_steps)
    stage.max_steps = step_limit(stage.env, max_steps)
    return stage, view


class NamedBackend(NamedTuple):
    """Who answers: a backend by name, and the model that it is to use, "" where it uses none."""

    backend: str
    model: str = ""

    @property
    def owner(self) -> Any:
        """The class of the backend, whose options can be set."""
        return find("backend", self.backend)

    def __str__(self) -> str:
        return "/".join(filter(None, self))

    def made(self, options: Mapping[str, Any]) -> Backend:
        """Make the backend."""
        backend: Backend = self.owner(model=self.model, **options)
        return backend


def answers(
    role: Literal["theorist", "statistician"], named: str | None, model: str | None = None
) -> NamedBackend:
    """Choose who answers in a role: a backend by its name, or PROVIDER/NAME for a language model.

    BACKEND/MODEL names both. Where nothing is named it is the `model`, or that of `$CWM_MODEL`, or
    else what needs none.
    """
    model = one_model(model or os.environ.get(MODEL_VARIABLE, ""))
    head, _, rest = (named or "").partition("/")
    if rest:
        known = head in names("backend")
        return NamedBackend(head, rest) if known else NamedBackend(default("model"), named or "")
    if named is not None:
        needs = find("backend", named).needs_model
        if needs and not model:
            raise CwmError(f"the backend {named!r} needs a model: write --{role} {named}/MODEL")
        return NamedBackend(named, model if needs else "")
    return NamedBackend(default("model"), model) if model else NamedBackend(default(role))


def statistician_of(
    asked: NamedBackend,
    options: Mapping[str, Any],
    spec: EnvironmentSpec,
    env_args: Mapping[str, Any],
    observer: Observer,
) -> Statistician:
    """Return who reads rules of an environment, ready to; one that only chooses is said to."""
    backend = asked.made(options)
    backend.ready()
    with closing(spec.make(**env_args)) as made:
        view = view_of(spec, made)
    backend.prepare(spec, env_args, observer.note)
    weighs = weigher(backend, lambda words: observer.note(words, "Warning"))
    return Statistician(view, weighs)


class TheoryChoices(NamedTuple):
    """What a user chose, by name."""

    method: str
    experimenter: str
    theorist: NamedBackend
    statistician: NamedBackend

    def made(
        self, options: Sequence[str] | Mapping[str, Any], flags: Mapping[str, Any]
    ) -> TheorizingParts:
        """Make all of it by the options; `flags` are such that have flags of their own.

        A flag that nothing has is refused. Where the same backend with the same options proposes
        and weighs it is one.
        """
        owners = {
            "strategy": Owner("strategy", find("strategy", self.method)),
            "problem": Owner("problem", TheoryProblem),
            "theorist": Owner("theorist", self.theorist.owner),
            "statistician": Owner("statistician", self.statistician.owner),
            "experimenter": Owner("experimenter", find("policy", self.experimenter)),
        }
        every = list(owners.values())
        given = read_options(options, every)
        for label, some in read_options(_served(flags, owners), every).items():
            given[label] |= some
        given = with_presets(given, every)
        strategy, experimenter = (
            owners[label].factory(**given[label]) for label in ("strategy", "experimenter")
        )
        theorist = self.theorist.made(given["theorist"])
        statistician = self.statistician.made(given["statistician"])
        made = {
            "strategy": strategy,
            "experimenter": experimenter,
            "theorist": theorist,
            "statistician": theorist if statistician == theorist else statistician,
        }
        problem = owners["problem"].defaults() | given["problem"]
        identity = {label: owners[label].identity(part) for label, part in made.items()}
        return TheorizingParts(**made, problem=problem, identity=identity | {"problem": problem})


class TheorizingParts(NamedTuple):
    """What was made, the options of the problem, and all options by whom they are for."""

    strategy: Strategy
    experimenter: Policy
    theorist: Backend
    statistician: Backend
    problem: dict[str, Any]
    identity: dict[str, dict[str, Any]]

    def kept(self, cache: AnswerCache) -> Self:
        """Return the parts with answers that are kept; who does both stays one."""
        theorist = cache.around(self.theorist)
        is_one = self.statistician is self.theorist
        return self._replace(
            theorist=theorist,
            statistician=theorist if is_one else cache.around(self.statistician),
        )


FLAGS = {
    "strategy.hastings": ("the method", "--hastings"),
    "strategy.particles": ("the method", "--particles"),
    "experimenter.reward": ("the experimenter", "--reward"),
    "theorist.temperature": ("the theorist", "--temperature"),
}
"""Options that have flags, and whose they are."""


def _served(flags: Mapping[str, Any], owners: Mapping[str, Owner]) -> dict[str, Any]:
    """Return the flags as options; refuse what nothing has."""
    served = {}
    for key, value in flags.items():
        label, _, name = key.partition(".")
        if name in owners[label].options:
            served[key] = value
        elif key in FLAGS:
            whose, flag = FLAGS[key]
            raise CwmError(f"the chosen {whose} has no {flag}: leave it out")
    if "theorist.api_base" in flags and not any(key.endswith(".api_base") for key in served):
        raise CwmError("neither the theorist nor the statistician has --api-base: leave it out")
    return served


def given_rows(
    spec: EnvironmentSpec, dataset: Dataset | Path | str, env_args: Mapping[str, Any] | None = None
) -> Dataset:
    """Return the held-out rows of a dataset, or all where none are held out."""
    rows, _ = load_transitions(spec, env_args=env_args, dataset=dataset)
    rows = rows.test if len(rows.test) else rows
    if not len(rows):
        raise CwmError("the dataset has no rows to hold out: choose another --dataset")
    columns = {name: column for name, column in rows.columns.items() if name != DONE}
    columns["split"] = np.ones_like(columns["split"])
    return replace(rows, columns=columns)


def held_out_rows(
    spec: EnvironmentSpec, env_args: Mapping[str, Any], *, seed: int = 0, max_steps: int = 100
) -> Dataset:
    """Collect the rows that rules are measured by, from starts that no phase has.

    Where an episode has a single step, each action is taken once. Where there are goals, episodes
    are for the two hardest ones and for none in turn, so that rare changes are among them; else
    actions are random.
    """
    stage, view = in_words(spec, env_args, seed=seed, max_steps=max_steps)
    with closing(stage.env):
        legal = view.legal(stage.env.reset(seed=seed)[0])
        if stage.max_steps == 1:
            policy, episodes = find("policy", "enumerate")(), len(legal)
        elif view.goals:
            policy, episodes = find("policy", "oracle")(plan="ideal"), HELD_OUT_EPISODES
        else:
            policy, episodes = find("policy", "random")(), HELD_OUT_EPISODES
        policy.prepare(stage)
        return dataset_of(stage, gather(stage, policy, episodes, seed=seed, split=1))


def dataset_of(stage: Stage, rows: Sequence[Transition]) -> Dataset:
    """Return recorded rows with what they are of."""
    return Dataset.of(
        rows,
        observation_space=space_of(stage.env.observation_space),
        action_space=space_of(stage.env.action_space, "actions"),
        metadata={"env": stage.spec.id, "env_args": dict(stage.env_args)},
    )
