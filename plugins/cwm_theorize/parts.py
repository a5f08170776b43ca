"""The parts of `cwm theorize` and `cwm score`: text views, backends, held-out rows."""

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
from cwm_theorize.choosing import scoring_backend
from cwm_theorize.experimenters import collect_phase, view_of
from cwm_theorize.problem import TheoryProblem
from cwm_theorize.statistician import Statistician


def text_stage(
    spec: EnvironmentSpec, env_args: Mapping[str, Any], *, seed: int, max_steps: int
) -> tuple[Stage, TextView]:
    """Return a stage for recording, whose environment the caller closes, and its text view."""
    with closing(spec.make(**env_args)) as made:
        view = view_of(spec, made)
    stage = Stage(spec, env_args, seed, max_steps)
    stage.max_steps = step_limit(stage.env, max_steps)
    return stage, view


class NamedBackend(NamedTuple):
    """The name of a backend, and its model ("" for a backend without models)."""

    backend: str
    model: str = ""

    @property
    def owner(self) -> Any:
        """The class of the backend, which declares its options."""
        return find("backend", self.backend)

    def __str__(self) -> str:
        return "/".join(filter(None, self))

    def make(self, options: Mapping[str, Any]) -> Backend:
        """Construct the backend with these options."""
        backend: Backend = self.owner(model=self.model, **options)
        return backend


def choose_backend(
    role: Literal["theorist", "statistician"], named: str | None, model: str | None = None
) -> NamedBackend:
    """Resolve a backend for a role from command line names.

    `named` is BACKEND, BACKEND/MODEL, or PROVIDER/NAME for a language model. Without it, the model
    is `model` or `$CWM_MODEL`. If no model is given either, the default backend of the role is
    used, which needs none.

    Raises:
        CwmError: The named backend needs a model, and none is given.
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


def make_statistician(
    asked: NamedBackend,
    options: Mapping[str, Any],
    spec: EnvironmentSpec,
    env_args: Mapping[str, Any],
    observer: Observer,
) -> Statistician:
    """Return a statistician that is ready to score rules for an environment.

    If the backend has no log-probabilities, a note says so (see `scoring_backend`).
    """
    backend = asked.make(options)
    backend.ready()
    with closing(spec.make(**env_args)) as made:
        view = view_of(spec, made)
    backend.prepare(spec, env_args, observer.note)
    scorer = scoring_backend(backend, lambda words: observer.note(words, "Warning"))
    return Statistician(view, scorer)


class TheoryChoices(NamedTuple):
    """The method, experimenter, theorist and statistician that a user selected by name."""

    method: str
    experimenter: str
    theorist: NamedBackend
    statistician: NamedBackend

    def make(
        self, options: Sequence[str] | Mapping[str, Any], flags: Mapping[str, Any]
    ) -> TheorizingParts:
        """Construct all parts.

        If the theorist and the statistician are the same backend with equal options, they share one
        object.

        Args:
            options: Options as `OWNER.NAME=VALUE`.
            flags: Values of options that have command line flags of their own, by `OWNER.NAME`.

        Raises:
            CwmError: No selected part has the option of a flag.
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
        for label, some in read_options(_flag_options(flags, owners), every).items():
            given[label] |= some
        given = with_presets(given, every)
        strategy, experimenter = (
            owners[label].factory(**given[label]) for label in ("strategy", "experimenter")
        )
        theorist = self.theorist.make(given["theorist"])
        statistician = self.statistician.make(given["statistician"])
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
    """The constructed parts, the options of the problem, and all options by owner."""

    strategy: Strategy
    experimenter: Policy
    theorist: Backend
    statistician: Backend
    problem: dict[str, Any]
    identity: dict[str, dict[str, Any]]

    def with_cache(self, cache: AnswerCache) -> Self:
        """Return the parts with cached backends; a shared backend stays shared."""
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
"""Options that have flags, with the owner and the flag for error messages."""


def _flag_options(flags: Mapping[str, Any], owners: Mapping[str, Owner]) -> dict[str, Any]:
    """Return the flags as options of the selected parts."""
    accepted = {}
    for key, value in flags.items():
        label, _, name = key.partition(".")
        if name in owners[label].options:
            accepted[key] = value
        elif key in FLAGS:
            whose, flag = FLAGS[key]
            raise CwmError(f"the chosen {whose} has no {flag}: leave it out")
    if "theorist.api_base" in flags and not any(key.endswith(".api_base") for key in accepted):
        raise CwmError("neither the theorist nor the statistician has --api-base: leave it out")
    return accepted


def load_held_out(
    spec: EnvironmentSpec, dataset: Dataset | Path | str, env_args: Mapping[str, Any] | None = None
) -> Dataset:
    """Return the held-out rows of a dataset, or all its rows if none are held out.

    Raises:
        CwmError: The dataset is empty.
    """
    rows, _ = load_transitions(spec, env_args=env_args, dataset=dataset)
    rows = rows.test if len(rows.test) else rows
    if not len(rows):
        raise CwmError("the dataset has no rows to hold out: choose another --dataset")
    columns = {name: column for name, column in rows.columns.items() if name != DONE}
    columns["split"] = np.ones_like(columns["split"])
    return replace(rows, columns=columns)


def collect_held_out(
    spec: EnvironmentSpec, env_args: Mapping[str, Any], *, seed: int = 0, max_steps: int = 100
) -> Dataset:
    """Collect held-out rows, from initial states that no phase uses.

    If episodes have a single step, each action is taken once. If the text view has goals, episodes
    alternate between the two hardest goals and random actions, so that the rows include rare
    changes. Otherwise, actions are random.
    """
    stage, view = text_stage(spec, env_args, seed=seed, max_steps=max_steps)
    with closing(stage.env):
        legal = view.legal(stage.env.reset(seed=seed)[0])
        # number of held-out episodes, the size of the published test set (Levy et al., 2025)
        held_out_episodes = 9
        if stage.max_steps == 1:
            policy, episodes = find("policy", "enumerate")(), len(legal)
        elif view.goals:
            policy, episodes = find("policy", "oracle")(plan="ideal"), held_out_episodes
        else:
            policy, episodes = find("policy", "random")(), held_out_episodes
        policy.prepare(stage)
        return dataset_of(stage, collect_phase(stage, policy, episodes, seed=seed, split=1))


def dataset_of(stage: Stage, rows: Sequence[Transition]) -> Dataset:
    """Return recorded rows as a dataset with the spaces and arguments of the environment."""
    return Dataset.of(
        rows,
        observation_space=space_of(stage.env.observation_space),
        action_space=space_of(stage.env.action_space, "actions"),
        metadata={"env": stage.spec.id, "env_args": dict(stage.env_args)},
    )
