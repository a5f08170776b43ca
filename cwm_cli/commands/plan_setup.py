"""What `cwm plan` plays: an environment, or recorded data that a program simulates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from cwm_cli.commands.matches import OPPONENTS, OpponentName
from cwm_cli.commands.subjects import Subject
from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_cli.envs.spec import EnvironmentSpec, space_of
from cwm_cli.envs.tasks import step_limit
from cwm_cli.errors import CwmError, UnknownNameError
from cwm_cli.runs.observer import Observer
from cwm_cli.sandbox import Sandbox
from cwm_cli.worlds.program import ProgramModel
from cwm_cli.worlds.rewarding import RewardedEnv, RewardExpression
from cwm_cli.worlds.simulated import ProgramSimulator


class PlanSetup(NamedTuple):
    """An environment or recorded data to play in, and the subject that plans.

    Attributes:
        subject: The subject; its program and its environment have the user's rewards.
        spaces: Observation space and action space.
        limit: Maximum number of steps of an episode. Recorded data have the length of the longest
            recorded episode.
        data: Recorded transitions that support a program; None without any.
        reward: The user's expression of the reward, None for the own reward.
        in_program: Whether there is no simulator, so that the program is played itself.
    """

    subject: Subject
    spaces: tuple[Space, Space]
    limit: int
    data: Dataset | None
    reward: RewardExpression | None
    in_program: bool

    @classmethod
    def of(
        cls,
        subject: Subject,
        *,
        dataset: Dataset | Path | str | None,
        reward_expression: str | None,
        max_steps: int | None,
        observer: Observer,
    ) -> Self:
        """Return the setup of a subject.

        Raises:
            CwmError: The expression is invalid, or recorded data cannot be simulated.
        """
        reward, data = None, None
        with closing(subject.spec.make(**subject.env_args)) as made:
            spaces = space_of(made.observation_space), space_of(made.action_space, "actions")
            limit = step_limit(made, max_steps)
            if reward_expression is not None:
                reward = RewardExpression.parse(reward_expression, subject.spec, made)
        # the true environment and trained models need no support by data
        if subject.text is not None and (dataset is not None or subject.run is not None):
            data = subject.transitions(dataset, observer)
        if reward:
            subject, data = _with_reward(subject, reward, data)
        in_program = not subject.spec.has_simulator(subject.env_args)
        if in_program:
            data = _check_simulated(subject, data, reward)
            limit = max_steps or data.longest_episode
        return cls(subject, spaces, limit, data, reward, in_program)

    def check_options(self, *, oracle: bool, render: bool) -> None:
        """Refuse options that need a simulator, or a simulator with the user's rewards."""
        for option, given in {"--oracle": oracle, "--render": render}.items():
            if given and self.in_program:
                raise CwmError(f"{self.subject.env} has no simulator: leave out {option}")
        if oracle and self.reward:
            raise CwmError(
                "plans in the environment itself have its own rewards: leave out --oracle, or "
                "--reward-expression"
            )

    def opponent(self, asked: OpponentName | None, *, render: bool) -> OpponentName | Literal[""]:
        """Return the opponent in a game of two players, "" in other environments.

        Raises:
            CwmError: The opponent is unknown, or the options do not fit a match.
        """
        spec = self.subject.spec
        if spec.game is None:
            if asked is not None:
                raise CwmError(f"{spec.id} is no game of two players: leave out --opponent")
            return ""
        if asked not in (None, *OPPONENTS):
            raise UnknownNameError("opponent", str(asked), OPPONENTS)
        if render:
            raise CwmError("a match cannot be filmed: leave out --render")
        if spec.game.turn not in self.spaces[0].keys:
            raise CwmError(
                f"planners need {spec.game.turn!r} in the observations of {spec.id}: leave out "
                "--hide and other changes of its observations"
            )
        return asked or "random"

    @contextmanager
    def opened(self, sandbox: Sandbox) -> Iterator[Subject]:
        """Yield the subject; without a simulator, its environment is the program itself."""
        subject = self.subject
        if not self.in_program or self.data is None:
            yield subject
            return
        model = ProgramModel(subject.text or "", sandbox, subject.name)
        with ProgramSimulator(model, self.data) as simulator:
            yield subject._replace(spec=replace(subject.spec, make=simulator.make))


def _with_reward(
    subject: Subject, reward: RewardExpression, data: Dataset | None
) -> tuple[Subject, Dataset | None]:
    """Return a subject and its transitions with the rewards of an expression."""
    if subject.text is None:
        raise CwmError(
            f"{subject.name} is no program, so its rewards cannot be replaced: leave out "
            "--reward-expression"
        )
    spec = replace(subject.spec, make=partial(_make_rewarded, subject.spec, reward))
    named = data is not None and data.has_valid_actions
    subject = subject._replace(spec=spec, text=reward.extended(subject.text, valid=named))
    return subject, None if data is None else reward.rewarded(data)


def _make_rewarded(
    spec: EnvironmentSpec, reward: RewardExpression, /, **env_args: Any
) -> RewardedEnv:
    """Make an environment with the rewards of an expression."""
    return RewardedEnv(spec.make(**env_args), reward)


def _check_simulated(
    subject: Subject, data: Dataset | None, reward: RewardExpression | None
) -> Dataset:
    """Return recorded transitions without a simulator, if a program can simulate episodes."""
    without = f"{subject.env} has no simulator"
    if subject.text is None:
        raise CwmError(f"{without}: plan in a program, with --program FILE or a run that has one")
    if data is None:
        raise CwmError(f"{without}: add --dataset FILE, whose episodes give the initial states")
    if reward is None and np.ptp(data.columns["rewards"]) == 0:
        raise CwmError(
            f"all recorded rewards are {data.columns['rewards'][0]:g}: define a reward, such as "
            "--reward-expression '-abs(level - 1.2)' with the names of columns"
        )
    return data
