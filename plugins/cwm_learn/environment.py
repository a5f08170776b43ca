"""The environment of a learner, with recorded episodes repeated from the journal."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from cwm_cli.data.dataset import Transition
from cwm_cli.envs.tasks import reward_number, seeds_of
from cwm_cli.planning.model import close
from cwm_learn.runs import dataset_value

if TYPE_CHECKING:
    import gymnasium as gym

    from cwm_cli.envs.tasks import Task
    from cwm_cli.runs.observer import Observer
    from cwm_learn.actors.base import Knowledge
    from cwm_learn.journal_replay import LearnerJournal


class RepeatableEnvironment:
    """An environment whose recorded steps come from the journal instead of the environment.

    Attributes:
        env: The environment; an observer may wrap it.
        episode: Number of the present episode.
        has_diverged: Whether the environment deviates from the recorded part of the episode.
    """

    def __init__(
        self, task: Task, known: Knowledge, journal: LearnerJournal, observer: Observer
    ) -> None:
        self.env = task.make()
        self.env.action_space.seed(seeds_of(known.seed, 0)[1])
        self.episode = max((row.episode for row in known.rows), default=-1)
        self.has_diverged = False
        self._task, self._known, self._journal, self._observer = task, known, journal, observer

    @property
    def allowed(self) -> tuple[int, ...] | None:
        """The valid actions, None if all are valid."""
        return self._task.allowed(self.env)

    @property
    def is_recorded(self) -> bool:
        """Whether the journal has the next step of the episode."""
        return self._journal.replay.has_row(self.episode)

    @property
    def is_left(self) -> bool:
        """Whether the journal continues with another episode."""
        return self._journal.replay.leaves(self.episode)

    @property
    def is_incomplete(self) -> bool:
        """Whether the episode diverged, or the journal leaves it before its end."""
        replay = self._journal.replay
        return self.has_diverged or (self.is_left and not replay.has_end(self.episode))

    def reset(self) -> Any:
        """Begin the next episode, or the next recorded one; return its first observation."""
        self.episode = self._journal.replay.begin_episode(self.episode + 1)
        self.has_diverged = False
        seed, _ = seeds_of(self._known.seed, self.episode)
        return dataset_value(self._known.observation_space, self.env.reset(seed=seed)[0])

    def step(self, observation: Any, action: Any, recorded: Transition | None) -> Transition:
        """Return the recorded step if there is one, else take the step.

        A recorded step is also taken if its episode continues. An environment that diverges from
        the record cannot continue the episode.
        """
        replay = self._journal.replay
        if recorded is None:
            if not replay.is_over:
                replay.clear()  # decisions after a new step are not in the journal
                self._journal.begin()
            row = take_step(self.env, self._task, self._known, observation, action, self.episode)
            self._journal.add_step(row)
            return row
        is_unfinished = self.episode == replay.unfinished
        if is_unfinished or self._task.valid is not None:
            observation, action = recorded.observation, recorded.action
            row = take_step(self.env, self._task, self._known, observation, action, self.episode)
            same = close(row.next_observation, recorded.next_observation)
            if not same and is_unfinished and not self.has_diverged:
                self.has_diverged = True
                self._observer.note(
                    "the environment did not repeat its observations: the current episode is "
                    "discarded"
                )
        self._journal.begin()
        return recorded


def take_step(
    env: gym.Env[Any, Any],
    task: Task,
    known: Knowledge,
    observation: Any,
    action: Any,
    episode: int = 0,
) -> Transition:
    """Take a step in an environment, and return its transition."""
    found, reward, terminated, truncated, _ = env.step(deepcopy(action))
    return Transition(
        observation,
        dataset_value(known.action_space, action),
        dataset_value(known.observation_space, found),
        reward_number(reward),
        bool(terminated),
        bool(truncated),
        episode,
        valid=task.allowed(env),
    )
