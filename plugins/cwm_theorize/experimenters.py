"""Who collects the transitions that rules in words are weighed by.

An `Experimenter` is a policy that is told before a phase what is known (`PhaseContext`), and after
it may learn from what came of it; any other policy serves as well. `gather` collects a phase.
`oracle` follows ways to goals that the environment knows, `enumerate` takes all actions in turn,
and with `llm` a language model says which action it would rather take.
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
    """What an experimenter is told: the phase, and what is known by then.

    `progress` is the share of the phases that are over. `rules` are the best now, `previous` the
    best of the phase before, "" for none; `goal` is what the environment asks for, in words, and
    `discovered` are the sentences that were met so far.
    """

    phase: int
    progress: float
    rules: str
    previous: str
    goal: str
    view: TextView
    statistician: Statistician
    discovered: tuple[str, ...] = ()


class SideBySide(NamedTuple):
    """How many environments are played side by side, and the steps of each."""

    number: int
    steps: int


@dataclass
class Experimenter(Policy):
    """A policy that knows of the rules which are weighed by what it collects.

    In the order of a run:

    - `prepare`, as of any policy, before anything else.
    - `restore`, where a run goes on, with the `state` after its last phase.
    - `inquire` tells it what is known before a phase.
    - `beside` says that it plays several environments side by side for so many steps a phase,
      however many episodes that takes.
    - `begin`, as of any policy, for every episode.
    - `learn` gives it all rows of the phase once they were weighed. It draws from a generator
      of the phase, so that its `state` and the rows say all.
    """

    needs_text = True

    context: PhaseContext | None = field(default=None, init=False, repr=False)

    @property
    def beside(self) -> SideBySide | None:
        """The environments that it plays side by side; None where episodes are counted."""
        return None

    def inquire(self, context: PhaseContext) -> None:
        """Take note of what is known before a phase."""
        self.context = context

    def learn(self, context: PhaseContext, rows: Sequence[Transition]) -> None:
        """Learn from a phase, knowing the rules that were the best after it and before it."""

    def state(self) -> dict[str, np.ndarray]:
        """Return what was learned, in arrays; nothing where nothing is."""
        return {}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from a `state`."""

    def looks_back(self, stage: Stage, place: int) -> bool:
        """Look back on no other episode."""
        return False

    def prepare(self, stage: Stage) -> None:
        """Refuse an environment that has no words."""
        view_of(stage.spec, stage.env)

    def view(self, stage: Stage) -> TextView:
        """Return the environment in words."""
        return self.context.view if self.context else view_of(stage.spec, stage.env)


def view_of(spec: EnvironmentSpec, env: gym.Env[Any, Any]) -> TextView:
    """Return the words for a made environment, or say which environments have any."""
    if spec.text is None:
        having = [name for name in names("environment") if find("environment", name)().text]
        raise CwmError(f"{spec.id} has no description in words: choose {', '.join(having)}")
    return spec.text(env)


def gather(
    stage: Stage,
    policy: Policy,
    episodes: int,
    *,
    seed: int,
    first: int = 0,
    split: int = 0,
    earlier: Sequence[Transition] = (),
) -> list[Transition]:
    """Collect the rows of a phase: so many episodes, or all that an experimenter's environments do.

    The first episode is number `first` of its split: phases that count on collect what `record`
    does with this policy and seed. `earlier` are the rows of the phases before. Episodes come, and
    are numbered, in the order in which they ended, counted in the steps of their environment.
    """
    beside = policy.beside if isinstance(policy, Experimenter) else None
    if beside is None:
        rows = EarlierRows(earlier)
        for place in range(first, first + episodes):
            back = rows if policy.looks_back(stage, place) else ()
            rows += _episode(
                stage, policy, EpisodeRequest(split, place, (seed, split, place)), back
            )
        return rows[len(earlier) :]
    ended: list[tuple[int, int, list[Transition]]] = []
    with stage.anew() as own:
        for which in range(beside.number):
            steps = 0
            while steps < beside.steps:
                own.max_steps = min(stage.max_steps, beside.steps - steps)
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
    """Play an episode and return its rows."""
    *_, recorded = record_episode(stage, policy, episode, earlier)
    assert isinstance(recorded, Recorded)
    return recorded.rows


@dataclass
class Discoveries:
    """How often each kind of change was met, and after how many steps for the first time."""

    steps: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)

    def add(self, kinds: Iterable[str]) -> None:
        """Count the kinds of further steps, in the order in which they were made."""
        for kind in kinds:
            self.steps += 1
            self.counts[kind] = self.counts.get(kind, 0) + 1
            self.first.setdefault(kind, self.steps)


@dataclass
class EnumeratePolicy(Experimenter):
    """Takes all legal actions in turn: the first one first, in the next step or episode the next.

    Where episodes have one step, as many of them as there are actions show what each does.
    """

    def begin(
        self, stage: Stage, place: int, seed: int, earlier: Sequence[Transition]
    ) -> tuple[str, Act]:
        """Begin with the action whose turn it is."""
        view = self.view(stage)

        def act(observation: Any, before: int) -> int:
            legal = view.legal(observation)
            return int(legal[(place + before) % len(legal)])

        return "all actions in turn", act


@dataclass
class OraclePolicy(Experimenter):
    """Follows a way to a goal, as the environment knows it; episodes end where that does."""

    plan: Literal["hardest", "curriculum", "ideal"] = "hardest"
    """Goal of the episodes. hardest: the hardest goal; curriculum: harder goals in later phases;
    ideal: the two hardest goals and random actions in turn."""

    def prepare(self, stage: Stage) -> None:
        """Refuse an environment whose words name no goals."""
        if not view_of(stage.spec, stage.env).goals:
            raise CwmError(f"{stage.spec.id} has no goals for an oracle: choose another policy")

    def goal(self, goals: Sequence[str], place: int) -> str | None:
        """Return what the episode at a place is for, None if its actions are random.

        Where no run says how far it is, the goals of the curriculum take turns.
        """
        if self.plan == "hardest":
            return goals[-1]
        if self.plan == "ideal":
            return (*goals[-2:], None)[place % (len(goals[-2:]) + 1)]
        if self.context is None:
            return goals[place % len(goals)]
        # the published index: the last goal has the last part, progress 1 included
        return goals[max(0, int(self.context.progress * len(goals) - 1e-4))]

    def begin(
        self, stage: Stage, place: int, seed: int, earlier: Sequence[Transition]
    ) -> tuple[str, Act]:
        """Begin an episode for its goal; the way to it is found where the episode starts."""
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
    """Draws each action by how likely a language model finds its sentence as the next one."""

    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Temperature of the model's action probabilities; below 1 favours likely actions."""

    def inquire(self, context: PhaseContext) -> None:
        """Refuse a statistician that cannot weigh any sentence."""
        backend = context.statistician.backend
        if not backend.can_score or backend.normalises:
            raise CwmError(
                f"{type(backend).__name__} cannot weigh sentences for actions: choose another "
                "--experimenter, or a language model with log-probabilities as the --statistician"
            )
        super().inquire(context)

    def begin(
        self, stage: Stage, place: int, seed: int, earlier: Sequence[Transition]
    ) -> tuple[str, Act]:
        """Ask at every step how likely each legal action is, given the rules and the goal."""
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
        """Ask for the next action."""
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
