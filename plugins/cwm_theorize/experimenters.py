"""Policies that collect the evidence for scoring rules in words.

An `Experimenter` receives a `PhaseContext` before each phase, and may learn from the rows of the
phase; any other policy works as well. `collect_phase` collects these rows. `oracle` follows the
environment's solutions to its goals, `enumerate` takes all actions in turn, and `llm` draws actions
by the probabilities of a language model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field
from scipy.special import softmax

from cwm_cli.commands.policies import Act, EarlierRows, Policy, Stage, random_acts
from cwm_cli.commands.recording import EpisodeRequest, Recorded, record_episode
from cwm_cli.errors import CwmError
from cwm_cli.registry import find, names
from cwm_cli.search.contracts import Message, ScoreRequest
from cwm_theorize.statistician import IMPOSSIBLE

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_cli.data.dataset import Transition
    from cwm_cli.envs.spec import EnvironmentSpec
    from cwm_cli.envs.text_view import TextView
    from cwm_theorize.statistician import Statistician


class PhaseContext(NamedTuple):
    """The knowledge that an experimenter receives before a phase.

    Attributes:
        phase: Number of the phase.
        progress: Fraction of finished phases.
        rules: Best rules now; "" for none.
        previous: Best rules of the previous phase; "" for none.
        goal: Goal of the environment in words.
        view: Text view of the environment.
        statistician: Scores rules.
        discovered: Sentences of all changes so far.
    """

    phase: int
    progress: float
    rules: str
    previous: str
    goal: str
    view: TextView
    statistician: Statistician
    discovered: tuple[str, ...] = ()


class ParallelEnvironments(NamedTuple):
    """Number of parallel environments, and steps of each per phase."""

    number: int
    steps: int


@dataclass
class Experimenter(Policy):
    """A policy that may use the current rules, which are scored on its data.

    Methods are called in this order during a run:

    - `prepare`, as for any policy, before anything else.
    - `restore`, if a run continues, with the `state` after its last phase.
    - `begin_phase` with the current knowledge, before each phase.
    - `parallel_environments` returns the environments to play in parallel, if any; the phase then
      has a fixed number of steps instead of episodes.
    - `begin`, as for any policy, for every episode.
    - `learn` with all rows of the phase, after they were scored. Random draws come from a generator
      seeded with the phase, so that `state` and the rows determine the result.
    """

    needs_text = True

    context: PhaseContext | None = field(default=None, init=False, repr=False)

    @property
    def parallel_environments(self) -> ParallelEnvironments | None:
        """Environments to play in parallel; None if a phase counts episodes."""
        return None

    def begin_phase(self, context: PhaseContext) -> None:
        """Receive the current knowledge before a phase."""
        self.context = context

    def learn(self, context: PhaseContext, rows: Sequence[Transition]) -> None:
        """Learn from the rows of a phase; `context` has the best rules after and before it."""

    def state(self) -> dict[str, np.ndarray]:
        """Return the learned state as arrays; empty if the experimenter does not learn."""
        return {}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a `state`."""

    def looks_back(self, stage: Stage, place: int) -> bool:
        """Return False: experimenters use no earlier episodes."""
        return False

    def prepare(self, stage: Stage) -> None:
        """Raise `CwmError` if the environment has no text view."""
        view_of(stage.spec, stage.env)

    def view(self, stage: Stage) -> TextView:
        """Return the text view of the environment."""
        return self.context.view if self.context else view_of(stage.spec, stage.env)


def view_of(spec: EnvironmentSpec, env: gym.Env[Any, Any]) -> TextView:
    """Return the text view of an environment.

    Raises:
        CwmError: The environment has none; the message lists environments that do.
    """
    if spec.text is None:
        having = [name for name in names("environment") if find("environment", name)().text]
        raise CwmError(f"{spec.id} has no description in words: choose {', '.join(having)}")
    return spec.text(env)


def collect_phase(
    stage: Stage,
    policy: Policy,
    episodes: int,
    *,
    seed: int,
    first: int = 0,
    split: int = 0,
    earlier: Sequence[Transition] = (),
) -> list[Transition]:
    """Collect the rows of a phase.

    Episodes are numbered by their ends, counted in steps of their own environment.

    Args:
        stage: Environment, spec and step limit.
        policy: Policy that acts. If it plays environments in parallel, `episodes` is ignored.
        episodes: Number of episodes.
        seed: Random seed of the run.
        first: Number of the first episode in its split. Phases with consecutive numbers collect the
            same episodes as `record` with this policy and seed.
        split: 0 for train, 1 for held-out.
        earlier: Rows of earlier phases.
    """
    parallel = policy.parallel_environments if isinstance(policy, Experimenter) else None
    if parallel is None:
        rows = EarlierRows(earlier)
        for place in range(first, first + episodes):
            back = rows if policy.looks_back(stage, place) else ()
            rows += _episode(
                stage, policy, EpisodeRequest(split, place, (seed, split, place)), back
            )
        return rows[len(earlier) :]
    ended: list[tuple[int, int, list[Transition]]] = []
    with stage.anew() as own:
        for which in range(parallel.number):
            steps = 0
            while steps < parallel.steps:
                own.max_steps = min(stage.max_steps, parallel.steps - steps)
                place = first + len(ended)
                played = _episode(own, policy, EpisodeRequest(split, place, (seed, split, place)))
                steps += len(played)
                ended.append((steps, which, played))
    ended.sort(key=lambda each: each[:2])
    return [
        row._replace(episode=first + place)
        for place, (_, _, played) in enumerate(ended)
        for row in played
    ]


def _episode(
    stage: Stage, policy: Policy, episode: EpisodeRequest, earlier: Sequence[Transition] = ()
) -> list[Transition]:
    *_, recorded = record_episode(stage, policy, episode, earlier)
    assert isinstance(recorded, Recorded)
    return recorded.rows


@dataclass
class Discoveries:
    """Counts of each kind of change, and the step at which each first occurred."""

    steps: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)

    def add(self, kinds: Iterable[str]) -> None:
        """Count the kinds of further steps, in order."""
        for kind in kinds:
            self.steps += 1
            self.counts[kind] = self.counts.get(kind, 0) + 1
            self.first.setdefault(kind, self.steps)


@dataclass
class EnumeratePolicy(Experimenter):
    """Takes all legal actions in turn, one per step, and continues across episodes.

    With one step per episode, as many episodes as actions show every action once.
    """

    def begin(
        self, stage: Stage, place: int, seed: int, earlier: Sequence[Transition]
    ) -> tuple[str, Act]:
        """Start with the next action in turn."""
        view = self.view(stage)

        def act(observation: Any, before: int) -> int:
            legal = view.legal(observation)
            return int(legal[(place + before) % len(legal)])

        return "all actions in turn", act


@dataclass
class OraclePolicy(Experimenter):
    """Follows the environment's solution to a goal; the episode ends after its last action."""

    plan: Literal["hardest", "curriculum", "ideal"] = "hardest"
    """Goal of the episodes. hardest: the hardest goal; curriculum: harder goals in later phases;
    ideal: the two hardest goals and random actions in turn."""

    def prepare(self, stage: Stage) -> None:
        """Raise `CwmError` if the text view has no goals."""
        if not view_of(stage.spec, stage.env).goals:
            raise CwmError(f"{stage.spec.id} has no goals for an oracle: choose another policy")

    def goal(self, goals: Sequence[str], place: int) -> str | None:
        """Return the goal of the episode at a place; None for random actions.

        Outside a run there is no progress, so the goals of the curriculum take turns.
        """
        if self.plan == "hardest":
            return goals[-1]
        if self.plan == "ideal":
            return (*goals[-2:], None)[place % (len(goals[-2:]) + 1)]
        if self.context is None:
            return goals[place % len(goals)]
        # The published index; the last goal includes progress 1.
        return goals[max(0, int(self.context.progress * len(goals) - 1e-4))]

    def begin(
        self, stage: Stage, place: int, seed: int, earlier: Sequence[Transition]
    ) -> tuple[str, Act]:
        """Start an episode for its goal; the solution is computed at the initial state."""
        view = self.view(stage)
        goal = self.goal(view.goals, place)
        if goal is None:
            return "random", random_acts(stage, seed)
        way: list[int] = []

        def act(observation: Any, before: int) -> int | None:
            if before == 0:
                way[:] = map(int, view.solution(observation, goal))
                if not way:
                    raise CwmError(f"the goal {goal!r} is already reached at the start")
            return way[before] if before < len(way) else None

        return f"oracle: {goal}", act


SYSTEM = (
    "You act in a small world that is described to you, to find out how it works. You answer with "
    "one action in the words of the description, and nothing else."
)


@dataclass
class LlmPolicy(Experimenter):
    """Draws each action with the probability that a language model gives to its sentence."""

    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Temperature of the model's action probabilities; below 1 favours likely actions."""

    def begin_phase(self, context: PhaseContext) -> None:
        """Raise `CwmError` if the statistician cannot score arbitrary sentences."""
        backend = context.statistician.backend
        if not backend.can_score or backend.normalises:
            raise CwmError(
                f"{type(backend).__name__} cannot score sentences for actions: choose another "
                "--experimenter, or a language model with log-probabilities as the --statistician"
            )
        super().begin_phase(context)

    def begin(
        self, stage: Stage, place: int, seed: int, earlier: Sequence[Transition]
    ) -> tuple[str, Act]:
        """Score the sentences of all legal actions at every step, given rules and goal."""
        if self.context is None:
            raise CwmError("llm needs rules and a statistician: use it in `cwm theorize`")
        context, view = self.context, self.context.view
        backend = context.statistician.backend
        rng = np.random.default_rng(seed)

        def act(observation: Any, before: int) -> int:
            messages, legal = self._messages(context, observation), view.legal(observation)
            asked = [ScoreRequest(messages, view.action(observation, each)) for each in legal]
            logs = np.maximum([sum(tokens) for tokens in backend.score(asked)], IMPOSSIBLE)
            return int(legal[rng.choice(len(legal), p=softmax(logs / self.temperature))])

        return "language model", act

    def _messages(self, context: PhaseContext, observation: Any) -> tuple[Message, ...]:
        """Return the prompt for the next action."""
        parts = [context.view.guide()]
        if context.rules:
            parts.append(f"What is known to hold:\n{context.rules}")
        if context.goal:
            parts.append(f"Goal: {context.goal}")
        parts.append("Say in one sentence what you do next.")
        parts.append(f"State: {context.view.state(observation)}")
        return (
            Message(role="system", content=SYSTEM),
            Message(role="user", content="\n\n".join(parts)),
        )
