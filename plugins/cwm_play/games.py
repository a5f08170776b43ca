"""Games in a world model or an environment, and replays of recorded episodes.

A game receives keys one by one and returns a scene to draw. A game in a world model continues from
the model's own predictions, so a wrong prediction affects all later steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset, Transition
from cwm_cli.data.spaces import Space
from cwm_cli.envs.tasks import EPISODE_SEED_STRIDE, Task, random_action, reward_number, seeds_of
from cwm_cli.errors import CwmError
from cwm_cli.evaluation.mismatches import DRAWS
from cwm_cli.planning import Moment, Unsuited
from cwm_cli.planning.model import EpisodeHistory, Step
from cwm_cli.sandbox.failures import Failure
from cwm_cli.worlds.model import ImaginedEpisodes, Plan, PlanningSession, Stuck, WorldModel
from cwm_play.keys import RESET, TRUTH, Keys, legend
from cwm_play.painting import Components, Painter, render
from cwm_play.scenes import (
    GameScene,
    Panel,
    as_transition,
    component_rows,
    describe_difference,
    matching_shape,
    mismatched_parts,
    visible_errors,
)

if TYPE_CHECKING:
    import gymnasium as gym


class EpisodeOutcome(NamedTuple):
    """The result of an episode that keys or a planner played.

    Attributes:
        steps: Number of steps.
        returned: The return in the model; without a model, the return in the environment.
        truly: The return in the environment for the same actions; None without a world model.
        first_mismatch: The first step, counted from 1, with a wrong prediction.
        parts: The wrong parts of that prediction, such as "observation".
        failure: The error of the model, if it failed.
        is_over: Whether the episode ended.
    """

    steps: int
    returned: float
    truly: float | None = None
    first_mismatch: int | None = None
    parts: tuple[str, ...] = ()
    failure: str = ""
    is_over: bool = False


class Game:
    """Base class of games.

    Attributes:
        is_done: Whether the game has ended, so that only keys can continue it.
    """

    is_done = False

    @property
    def scene(self) -> GameScene:
        """The scene to draw."""
        raise NotImplementedError

    def press(self, key: str | None) -> None:
        """Process a key, or None if time passed without one."""
        raise NotImplementedError

    def outcome(self) -> dict[str, Any]:
        """Return the results of the episodes as JSON-like data."""
        return {}

    def close(self) -> None:
        """Release the resources of the game."""


@dataclass
class Arena:
    """The setting of a game: the task, and how to show its observations and read its keys.

    Attributes:
        name: Title of the game.
        task: The environment, its seed and its step limit.
        rows: Example rows of the environment, which define its spaces.
        painter: Draws observations.
        components: Names the components of observations.
        keys: The key of each action.
    """

    name: str
    task: Task
    rows: Dataset
    painter: Painter
    components: Components
    keys: Keys

    @property
    def spaces(self) -> tuple[Space, Space]:
        """The observation space and the action space."""
        return self.rows.observation_space, self.rows.action_space


@dataclass
class _Side:
    """The current episode, in the model or in the environment."""

    title: str
    history: EpisodeHistory
    valid: tuple[int, ...] | None
    step: Step | None = None
    note: str = ""
    is_over: bool = False

    @property
    def observation(self) -> Any:
        return self.history.observations[-1]

    @property
    def returned(self) -> float:
        return float(sum(self.history.rewards))

    def take(self, action: Any, step: Step, note: str = "") -> None:
        """Append a step; a note ends the episode and gives the reason."""
        self.history = self.history.after(action, step.observation, step.reward)
        self.step, self.valid = step, step.valid
        self.is_over, self.note = bool(step.terminated or note), note
        if step.terminated:
            self.note = "the episode is over"


class WorldGame(Game):
    """A game in a world model beside the true environment, or in the environment alone.

    Args:
        arena: The setting of the game.
        model: The world model to play in. Without it, the environment is played.
        session: A planner that chooses the actions. Without it, keys choose them.
        episodes: Number of episodes that a planner plays.
        reconstruct: Returns an observation as the model represents it. With it, the scene has
            three panels: the image, the observation and the reconstruction.
        player: The name of the planner or agent for the legend.
    """

    def __init__(
        self,
        arena: Arena,
        model: WorldModel | None = None,
        session: PlanningSession | None = None,
        *,
        episodes: int = 1,
        reconstruct: Callable[[Any], Any] | None = None,
        player: str = "",
    ) -> None:
        self.arena, self.model, self.session = arena, model, session
        self.finished: list[EpisodeOutcome] = []
        self._episodes, self._reconstruct, self._player = episodes, reconstruct, player
        self._env: gym.Env[Any, Any] = arena.task.make()
        self._renders = bool(self._env.render_mode)
        self._shows_truth = True
        self._planned: deque[Any] = deque()
        self._episode_number = -1
        self._imagination: ImaginedEpisodes | None = None
        self._start_episode()

    def press(self, key: str | None) -> None:
        """Take the action of a key, start another episode, or toggle the environment."""
        if self.is_done and key is None:
            return
        self._warning = ""
        if key == TRUTH:
            self._shows_truth = not self._shows_truth
        elif key == RESET or (key is None and self._active.is_over):
            self._finish_episode(key)
        elif self._active.is_over:
            self._warning = "the episode is over: press enter to start another"
        elif self.session is not None:
            if key in (None, "space"):
                self._step(self._next_planned_action(self.session))
        else:
            action = self.arena.keys.idle if key is None else self.arena.keys.press(key)
            if action is not None:
                self._step(action)

    @property
    def scene(self) -> GameScene:
        """The panels, the progress of the episode, and the legend of the keys."""
        active, truth, arena = self._active, self._truth, self.arena
        compares = self.model is not None and self._shows_truth
        shown = [active, truth] if compares else [active]
        panels = [self._panel(side) for side in shown]
        if self._reconstruct is not None:
            image = self._renders and render(self._env)
            reconstruction = arena.painter.paint(self._reconstruct(truth.observation))
            panels = [
                Panel("original", image or panels[0].appearance),
                Panel("as observed", panels[0].appearance, panels[0].note),
                Panel("as the model sees it", reconstruction),
            ]
        rows = component_rows(
            arena.components, [side.observation for side in shown], (0, 1) if compares else None
        )
        return GameScene(
            title=arena.name,
            facts=list(self._facts()),
            panels=panels,
            columns=[side.title for side in shown],
            rows=rows,
            mark=self._mark,
            warning=self._warning,
            legend=self._legend(),
            moment=(self._episode_number, len(active.history.actions)),
            is_over=active.is_over,
            row=self._last_row(active),
        )

    def outcome(self) -> dict[str, Any]:
        """Return every episode with a step, and every episode that failed at its first step."""
        episodes = [*self.finished, *([self._episode()] if self._has_result else [])]
        return {"episodes": [each._asdict() for each in episodes]}

    def close(self) -> None:
        """Close the environment, the imagined episodes and the planner."""
        self._env.close()
        if self._imagination is not None:
            self._imagination.close()
        if self.session is not None:
            self.session.close()

    @property
    def _has_result(self) -> bool:
        """Whether the episode counts; a planner repeats an episode that does not."""
        failed = self.session is not None and bool(self._failure)
        return failed or bool(self._active.history.actions)

    def _finish_episode(self, key: str | None) -> None:
        """Start another episode, unless a planner has played all; a key adds one more."""
        if self._has_result:
            self.finished.append(self._episode())
        if self.session is not None and len(self.finished) >= self._episodes:
            if key is None:
                self.finished.pop()  # it is still shown, so `outcome` adds it
                self.is_done = True
                return
            self._episodes += 1
        self.is_done = False
        self._start_episode()

    def _start_episode(self) -> None:
        """Start an episode in the environment, and in the model from the same observation."""
        task = self.arena.task
        self._episode_number += 1
        seed, random = seeds_of(task.seed, self._episode_number)
        observation, _ = self._env.reset(seed=seed)
        self._env.action_space.seed(random)
        start = EpisodeHistory((deepcopy(observation),))
        valid = task.allowed(self._env)
        self._truth = _Side("environment", start, valid)
        self._active = self._truth
        self._mark = self._warning = ""
        self._first_mismatch: tuple[int, tuple[str, ...]] | None = None
        self._failure, self._has_diverged = "", False
        self._planned.clear()
        self._decisions = 0
        if self.model is not None:
            self._active = _Side("world model", start, valid)
            if self._imagination is not None:
                self._imagination.close()
            seed = (task.seed + EPISODE_SEED_STRIDE * self._episode_number) % (1 << 31)
            self._imagination = self.model.imagine([start], self.arena.rows, seed=seed)

    def _step(self, action: Any) -> None:
        """Take an action in the environment and in the model, and compare the results."""
        active, truth = self._active, self._truth
        if active.valid is not None and action not in active.valid:
            self._warning = f"{self.arena.keys.action_name(action)} is not allowed here"
            return
        if not truth.is_over:
            self._step_environment(action)
        if self.model is None:
            return
        try:
            predicted = self._predict(action)
        except CwmError as error:
            self._failure = self._warning = str(error)
            active.is_over, active.note = True, "the world model failed: press enter to restart"
            return
        was_over = truth.is_over and len(truth.history.actions) <= len(active.history.actions)
        active.take(action, predicted)
        if not was_over and truth.step is not None:
            self._compare(predicted, truth.step, action)
        if len(active.history.actions) >= self.arena.task.limit and not active.is_over:
            active.is_over, active.note = True, "time limit reached"

    def _predict(self, action: Any) -> Step:
        assert self._imagination is not None
        observations, actions = self.arena.spaces
        found = self._imagination.step(actions.pack("actions", [action]))
        valid = None if found.valid is None else actions.masked(found.valid[0]) or None
        return Step(
            observations.unpack("observations", found.observations, 0),
            float(found.rewards[0]),
            bool(found.terminated[0]),
            valid,
        )

    def _step_environment(self, action: Any) -> None:
        """Step the true environment; an action that is not allowed ends its episode."""
        truth, task = self._truth, self.arena.task
        if truth.valid is not None and action not in truth.valid:
            truth.is_over, truth.note = (
                True,
                f"{self.arena.keys.action_name(action)} is not allowed",
            )
            return
        observation, reward, terminated, truncated, _ = self._env.step(deepcopy(action))
        allowed = task.valid and task.valid(self._env.unwrapped)
        valid = None if allowed is None else tuple(map(int, allowed))
        step = Step(deepcopy(observation), reward_number(reward), bool(terminated), valid)
        truncated = truncated or len(truth.history.actions) + 1 >= task.limit
        truth.take(action, step, "time limit reached" if truncated else "")
        truth.valid = valid or None

    def _compare(self, predicted: Step, actual: Step, action: Any) -> None:
        """Mark the first mismatch; after it, the two episodes diverge and are not compared.

        A step that the model predicts correctly from the true observation is no mismatch: small
        differences have accumulated.
        """
        if self._has_diverged:
            return
        before = self._truth.history.observations[-2]
        row = as_transition(before, action, actual)
        parts = mismatched_parts(predicted, row, self.arena.rows)
        if not parts:
            return
        number = len(self._active.history.actions)
        shape = None if self.model is None else matching_shape(self.model, row, self.arena.rows)
        if shape == "certain":
            self._mark = self._mark or f"small differences have accumulated up to step {number}"
            return
        self._has_diverged = True
        if shape is not None:
            self._mark = f"random outcomes differ since step {number}: the episodes diverge"
            return
        self._first_mismatch = number, tuple(parts)
        detail = ""
        if "observation" in parts:
            observations = predicted.observation, actual.observation
            detail = describe_difference(self.arena.components, *observations)
        if not detail and "reward" in parts:
            detail = f"reward {predicted.reward:.5g} instead of {actual.reward:.5g}"
        message = f"first mismatch at step {number}: {' and '.join(parts)}"
        self._mark = f"{message} ({detail})" if detail else message

    def _next_planned_action(self, session: PlanningSession) -> Any:
        """Return the next action of the plan, or a random action if planning failed."""
        active = self._active
        if not self._planned:
            horizon = self.arena.task.limit - len(active.history.actions)
            state = session.state(self._env, active.history)
            moment = Moment(self._episode_number, self._decisions, state, horizon, active.valid)
            try:
                [plan] = session.plan([moment])
            except Unsuited as reason:
                raise CwmError(
                    f"planning is not possible here (the planner {reason}): choose another "
                    "--planner"
                ) from reason
            except Stuck as reason:
                plan = Plan([], Failure(kind="timeout_wall", message=str(reason)))
            self._decisions += 1
            self._planned.extend(plan.actions)
            if plan.failure is not None:
                self._warning = (
                    f"planning failed, so a random action is taken: {plan.failure.message}"
                )
        if not self._planned:
            return random_action(self._env.action_space, active.valid)
        return self._planned.popleft()

    def _panel(self, side: _Side) -> Panel:
        """Return the panel of a side; the environment renders itself if the painter cannot."""
        appearance = self.arena.painter.paint(side.observation)
        if appearance.is_empty and side is self._truth and self._renders:
            appearance = render(self._env) or appearance
        note = side.note
        if side.step is not None:
            note = f"reward {side.step.reward:.5g}" + (f" · {note}" if note else "")
        wrong = self._first_mismatch is not None and side is self._active
        return Panel(side.title, appearance, note, is_marked=wrong)

    def _last_row(self, side: _Side) -> Transition | None:
        """Return the last transition of a side."""
        if side.step is None:
            return None
        before, action = side.history.observations[-2], side.history.actions[-1]
        row = as_transition(before, action, side.step)
        truncated = side.is_over and not row.terminated
        return row._replace(episode=self._episode_number, truncated=truncated)

    def _facts(self) -> Sequence[str]:
        active, truth = self._active, self._truth
        parts = [f"episode {self._episode_number + 1}", f"step {len(active.history.actions)}"]
        if active.history.actions:
            parts.append(self.arena.keys.action_name(active.history.actions[-1]))
        returned = f"return {active.returned:.5g}"
        if self.model is not None:
            returned += f" (true: {truth.returned:.5g})"
        parts.append(returned)
        if active.is_over:
            parts.append(active.note)
        return [" · ".join(parts)]

    def _legend(self) -> list[str]:
        entries = []
        if self.session is not None:
            entries.append(f"{self._player} plays")
        else:
            entries += legend(self.arena.keys.allowed(self._active.valid))
            if values := self.arena.keys.current_values:
                entries.append(f"now {values}")
        entries += legend({RESET: "restart"})
        if self.model is not None:
            entries += legend({TRUTH: "true environment"})
        return entries

    def _episode(self) -> EpisodeOutcome:
        """Return the result of the episode so far."""
        active, truth = self._active, self._truth
        number, parts = self._first_mismatch or (None, ())
        return EpisodeOutcome(
            steps=len(active.history.actions),
            returned=active.returned,
            truly=truth.returned if self.model is not None else None,
            first_mismatch=number,
            parts=parts,
            failure=self._failure,
            is_over=active.is_over,
        )


@dataclass(frozen=True)
class _Split:
    """The train or test split of a dataset: the row numbers of each episode."""

    name: str
    episodes: list[np.ndarray]


class ReplayGame(Game):
    """Recorded episodes step by step: observation, prediction and true next observation.

    Every prediction starts from the recorded observation, not from earlier predictions.

    Args:
        arena: The setting of the game.
        model: The world model that predicts the rows, or None.
        rows: The recorded rows.
        seed: Seed of random predictions.
        episodes: Number of episodes to replay if no keys are pressed.

    Raises:
        CwmError: There are no rows.
    """

    KEYS: Mapping[str, str] = {
        "left": "a step back",
        "right": "a step on",
        "down": "10 back",
        "up": "10 on",
        "p": "episode before",
        "n": "next episode",
        "m": "next mismatch",
        "s": "other split",
    }

    def __init__(
        self,
        arena: Arena,
        model: WorldModel | None,
        rows: Dataset,
        *,
        seed: int,
        episodes: int = 1,
    ) -> None:
        if not len(rows):
            raise CwmError("the dataset has no rows: record some with `cwm collect`")
        self.arena, self.model, self.rows = arena, model, rows
        self._warning, self._failure, self._max_episodes = "", "", episodes
        self._splits = [
            _Split(name, _episodes(rows, part))
            for part, name in enumerate(("train", "test"))
            if (rows.columns["split"] == part).any()
        ]
        self._split = self._episode = self._place = 0
        draws = 1 if rows.observation_space.is_picture else DRAWS
        self._found = None if model is None else model.predict(rows, seed=seed, draws=draws)
        self._wrong: dict[str, np.ndarray] = {}
        if self._found is not None and self._found.failure is not None:
            self._failure = f"the world model failed: {self._found.failure.message}"
            self._found = None
        if self._found is not None:
            self._wrong = visible_errors(self._found, rows)
        masks = list(self._wrong.values())
        self.wrong = np.logical_or.reduce(masks) if masks else np.zeros(len(rows), bool)

    def press(self, key: str | None) -> None:
        """Go to another step, episode or split; None goes to the next step."""
        moves = {"left": -1, "right": 1, "down": -10, "up": 10, None: 1, "space": 1}
        episode, count = self._rows, len(self._splits[self._split].episodes)
        self._warning = ""
        if key is None and self._place == len(episode) - 1:
            self.is_done = self._episode + 1 >= min(self._max_episodes, count)
            if not self.is_done:
                self._episode, self._place = self._episode + 1, 0
        elif key in moves:
            self._place = min(max(self._place + moves[key], 0), len(episode) - 1)
        elif key in ("home", RESET):
            self._place = 0
        elif key == "end":
            self._place = len(episode) - 1
        elif key in ("n", "p"):
            self._episode = (self._episode + (1 if key == "n" else -1)) % count
            self._place = 0
        elif key == "s":
            self._split, self._episode, self._place = (self._split + 1) % len(self._splits), 0, 0
        elif key == "m":
            self._go_to_next_mismatch()

    @property
    def scene(self) -> GameScene:
        """The current step."""
        arena, index = self.arena, int(self._rows[self._place])
        row, predicted = self.rows.row(index), self._prediction(index)
        observations = [row.observation, predicted and predicted.observation, row.next_observation]
        titles = ["before", "predicted", "true"]
        notes = ["", predicted and f"reward {predicted.reward:.5g}", f"reward {row.reward:.5g}"]
        ends = [False, bool(predicted and predicted.terminated), row.terminated]
        shown = [n for n, each in enumerate(observations) if each is not None]
        panels = [
            Panel(
                titles[n],
                arena.painter.paint(observations[n]),
                " · ".join(filter(None, [notes[n], "the episode is over" * ends[n]])),
                is_marked=n == 1 and bool(self.wrong[index]),
            )
            for n in shown
        ]
        compared = (1, 2) if predicted is not None else None
        table = component_rows(arena.components, [observations[n] for n in shown], compared)
        return GameScene(
            title=arena.name,
            facts=self._facts(row.action),
            panels=panels,
            columns=[titles[n] for n in shown],
            rows=table,
            mark=self._failure or self._mark(index, predicted),
            warning=self._warning,
            legend=legend(self.KEYS),
            moment=(self._split, self._episode, self._place),
            is_over=self._place == len(self._rows) - 1,
            row=row,
        )

    def outcome(self) -> dict[str, Any]:
        """Return the length, the return and the wrong predictions of every episode."""
        episodes = []
        for split in self._splits:
            for number, rows in enumerate(split.episodes):
                wrong = np.flatnonzero(self.wrong[rows])
                parts = {
                    name: int(mask[rows].sum())
                    for name, mask in self._wrong.items()
                    if mask[rows].any()
                }
                episodes.append(
                    {
                        "split": split.name,
                        "episode": number + 1,
                        "steps": len(rows),
                        "return": float(self.rows.columns["rewards"][rows].sum()),
                        "wrong": None if self._found is None else len(wrong),
                        "first_mismatch": int(wrong[0]) + 1 if len(wrong) else None,
                        "parts": parts,
                    }
                )
        return {"episodes": episodes} | ({"failure": self._failure} if self._failure else {})

    @property
    def _rows(self) -> np.ndarray:
        """The rows of the episode that is shown."""
        return self._splits[self._split].episodes[self._episode]

    def _go_to_next_mismatch(self) -> None:
        """Go to the next wrong prediction of this split."""
        split = self._splits[self._split]
        for episode in range(self._episode, len(split.episodes)):
            after = self._place + 1 if episode == self._episode else 0
            places = np.flatnonzero(self.wrong[split.episodes[episode]][after:])
            if len(places):
                self._episode, self._place = episode, after + int(places[0])
                self._warning = ""
                return
        self._warning = "no more wrong predictions"

    def _prediction(self, index: int) -> Step | None:
        """Return the most likely prediction of a row, or None if there is no prediction."""
        found = self._found
        if found is None or (found.answered is not None and not found.answered[index]):
            return None
        columns = found[np.array([index])].likeliest()
        space = self.rows.observation_space
        return Step(
            space.unpack("next_observations", columns, 0),
            float(columns["rewards"][0]),
            bool(columns["terminations"][0]),
        )

    def _facts(self, action: Any) -> list[str]:
        split, rows = self._splits[self._split], self._rows
        parts = [
            f"{split.name} episode {self._episode + 1} of {len(split.episodes)}",
            f"step {self._place + 1} of {len(rows)}",
            self.arena.keys.action_name(action),
        ]
        if self._found is not None:
            parts.append(f"{int(self.wrong[rows].sum())} wrong predictions")
        return [" · ".join(parts)]

    def _mark(self, index: int, predicted: Step | None) -> str:
        """Describe the mismatch of this step, or name the first mismatch of the episode."""
        wrong = np.flatnonzero(self.wrong[self._rows])
        if not len(wrong):
            return ""
        first = f"first mismatch of this episode: step {wrong[0] + 1}"
        if not self.wrong[index]:
            return first
        parts = [name.replace("_", " ") for name, mask in self._wrong.items() if mask[index]]
        detail = ""
        if "observation" in parts and predicted is not None:
            actual = self.rows.row(index).next_observation
            detail = describe_difference(self.arena.components, predicted.observation, actual)
        message = f"mismatch: {' and '.join(parts)}" + (f" ({detail})" if detail else "")
        return f"first {message}" if self._place == wrong[0] else f"{message}; {first}"


def _episodes(rows: Dataset, part: int) -> list[np.ndarray]:
    """Return the row numbers of each episode of a split."""
    numbers, mask = rows.columns["episodes"], rows.columns["split"] == part
    return [np.flatnonzero(mask & (numbers == number)) for number in np.unique(numbers[mask])]
