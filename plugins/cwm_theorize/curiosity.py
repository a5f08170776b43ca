"""The experimenter `curiosity`: a policy learns to produce badly predicted changes.

The rewards are computed when the rows of a phase have been scored: the surprise of each change
under the rules, or the difference that new rules make to its likelihood (Levy et al., 2025).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from cwm_cli.commands.policies import Act, Stage
from cwm_cli.envs.spec import space_of
from cwm_cli.errors import CwmError
from cwm_theorize.experimenters import (
    Experimenter,
    ParallelEnvironments,
    PhaseContext,
    view_of,
)
from cwm_theorize.ppo import Ppo, PpoEpisode
from cwm_theorize.statistician import TextTransition, text_transitions

if TYPE_CHECKING:
    from cwm_cli.data.dataset import Transition


@dataclass
class CuriousPolicy(Experimenter):
    """Learns, by PPO with action masks, to produce changes that the rules predict badly.

    It needs Stable-Baselines3 (extra `rl`).
    """

    reward: Literal["ll", "alp", "alpexp", "alpll", "custom"] = "ll"
    """Reward of a change. ll: minus its log-likelihood under the best rules; alp: absolute
    difference of that to the rules of the previous phase; alpexp: the same with a moving average
    per kind of change; alpll: product of ll and alp; custom: by kind, from `table`."""
    average: Annotated[float, Field(ge=0, lt=1)] = 0.6
    """Weight of the moving average in alpexp."""
    table: dict[str, float] = field(default_factory=dict)
    """Reward of each kind of change for custom; 1 for kinds that are not listed."""
    exponent: Annotated[float, Field(ge=0)] = 1.0
    """For custom: divide the reward by the count of its kind to this power."""
    environments: Annotated[int, Field(ge=1)] = 5
    """Number of environments played in parallel in a phase."""
    steps: Annotated[int, Field(ge=1)] = 30
    """Steps of each environment in a phase. The first phase is random, and all changes must be
    scored."""
    gamma: Annotated[float, Field(ge=0, le=1)] = 0.99
    """Discount factor per step."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Learning rate of the policy."""
    entropy: Annotated[float, Field(ge=0)] = 0.05
    """Weight of the policy's entropy in the loss; surprising changes do not stay surprising."""
    clip: Annotated[float, Field(gt=0)] = 0.6
    """Maximum relative change of an action's probability in a phase."""
    epochs: Annotated[int, Field(ge=1)] = 20
    """Number of passes over the rows of a phase."""
    _ppo: Ppo | None = field(default=None, init=False, repr=False)
    _first: int = field(default=0, init=False, repr=False)
    _averages: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    _counts: dict[str, int] = field(default_factory=dict, init=False, repr=False)

    @property
    def parallel_environments(self) -> ParallelEnvironments:
        """The environments of a phase."""
        return ParallelEnvironments(self.environments, self.steps)

    def prepare(self, stage: Stage) -> None:
        """Create networks for the features and actions of the environment."""
        view = view_of(stage.spec, stage.env)
        actions = space_of(stage.env.action_space, "actions")
        if actions.kind != "discrete":
            raise CwmError(f"curiosity needs a list of actions, which {stage.spec.id} lacks")
        if unknown := sorted(self.table.keys() - set(view.kinds)):
            kinds = ", ".join(view.kinds)
            raise CwmError(f"unknown kind of change {unknown[0]!r}: choose from {kinds}")
        with stage.anew() as own:
            inputs = len(view.features(own.env.reset(seed=stage.seed)[0]))
        self._first = int(actions.low[0])
        self._averages = dict.fromkeys(view.kinds, 0.0)
        self._counts = dict.fromkeys(view.kinds, 0)
        self._ppo = Ppo(
            inputs,
            actions.count,
            seed=stage.seed,
            gamma=self.gamma,
            learning_rate=self.learning_rate,
            entropy=self.entropy,
            clip=self.clip,
            epochs=self.epochs,
        )

    def begin(
        self, stage: Stage, place: int, seed: int, earlier: Sequence[Transition]
    ) -> tuple[str, Act]:
        """Draw actions from the current policy."""
        if self.context is None or self._ppo is None:
            raise CwmError("curiosity needs rules: use it in `cwm theorize`")
        view, ppo = self.context.view, self._ppo
        rng = np.random.default_rng(seed)

        def act(observation: Any, before: int) -> int:
            mask = self._mask(ppo, view.legal(observation))
            chances = ppo.probabilities(view.features(observation)[None], mask[None])[0]
            drawn = rng.choice(len(chances), p=chances / chances.sum(dtype=np.float64))
            return self._first + int(drawn)

        return f"curious, {self.reward}", act

    def learn(self, context: PhaseContext, rows: Sequence[Transition]) -> None:
        """Update the policy with the rows of a phase."""
        if self._ppo is None:
            raise RuntimeError("call prepare first")
        rewards = self.rewards(context, text_transitions(context.view, rows))
        played = list(self._ppo_episodes(self._ppo, context, rows, rewards))
        self._ppo.learn(played, [self._ppo.seed, context.phase])

    def rewards(self, context: PhaseContext, transitions: Sequence[TextTransition]) -> np.ndarray:
        """Return the reward of each change (transitions,), and update the statistics of kinds."""
        kinds = np.array([each.change.kind for each in transitions])
        if self.reward == "custom":
            found = list[float]()
            for kind in kinds.tolist():
                self._counts[kind] += 1
                found.append(self.table.get(kind, 1.0) / self._counts[kind] ** self.exponent)
            return np.array(found)
        now = _log_likelihoods(context, context.rules, transitions)
        surprise: np.ndarray = -now
        if self.reward == "ll":
            return surprise
        same = context.rules == context.previous
        before = now if same else _log_likelihoods(context, context.previous, transitions)
        gains: np.ndarray = np.abs(now - before)
        if self.reward == "alpll":
            gains = surprise * gains
        if self.reward != "alpexp":
            return gains
        known = np.array([self._averages[kind] for kind in kinds.tolist()])
        for kind, average in self._averages.items():
            of_kind = gains[kinds == kind]
            fresh = float(of_kind.mean()) if len(of_kind) else 0.0
            self._averages[kind] = self.average * average + (1 - self.average) * fresh
        mixed: np.ndarray = (1 - self.average) * gains + self.average * known
        return mixed

    def _ppo_episodes(
        self,
        ppo: Ppo,
        context: PhaseContext,
        rows: Sequence[Transition],
        rewards: np.ndarray,
    ) -> Iterator[PpoEpisode]:
        """Yield the episodes of a phase as arrays for PPO."""
        view, start = context.view, 0
        for _, group in groupby(rows, key=lambda row: row.episode):
            steps = list(group)
            seen = [view.features(row.observation) for row in steps]
            yield PpoEpisode(
                np.array([*seen, view.features(steps[-1].next_observation)]),
                np.array([self._mask(ppo, view.legal(row.observation)) for row in steps]),
                np.array([row.action for row in steps]) - self._first,
                rewards[start : start + len(steps)],
                steps[-1].terminated,
            )
            start += len(steps)

    def _mask(self, ppo: Ppo, legal: Sequence[int]) -> np.ndarray:
        """Return which actions are legal (actions,)."""
        mask = np.zeros(ppo.actions, np.bool_)
        mask[np.asarray(legal) - self._first] = True
        return mask

    def state(self) -> dict[str, np.ndarray]:
        """Return the state of PPO, and the count and the average of each kind."""
        learned = self._ppo.state() if self._ppo else {}
        return learned | {
            "counts": np.array(list(self._counts.values())),
            "averages": np.array(list(self._averages.values())),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a `state` of the same environment, after `prepare`.

        Raises:
            CwmError: The state does not fit, for example because an earlier version saved it.
        """
        if self._ppo is None:
            raise RuntimeError("call prepare first")
        try:
            self._ppo.restore(state)
        except ValueError as error:
            raise CwmError(
                f"the saved policy cannot be used ({error}): start another run with --new"
            ) from error
        self._counts = dict(zip(self._counts, state["counts"].tolist(), strict=True))
        self._averages = dict(zip(self._averages, state["averages"].tolist(), strict=True))


def _log_likelihoods(
    context: PhaseContext, rules: str, transitions: Sequence[TextTransition]
) -> np.ndarray:
    """Return the log-likelihood (transitions,) of each change; equal sentences are scored once."""
    texts = [(each.state, each.action, each.change.text) for each in transitions]
    each_once = dict(zip(texts, transitions, strict=True))
    statistician, asked = context.statistician, list(each_once.values())
    weights = statistician.log_likelihoods(rules, asked, context.discovered)
    found = dict(zip(each_once, weights.tolist(), strict=True))
    return np.array([found[text] for text in texts])
