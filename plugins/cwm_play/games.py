"""Games: a world that is played in by keys or by plans, beside the true one.

A game is told keys, one after the other, and says what there is to see. In the world model it goes
on from its own predictions, so that what it gets wrong once stays wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_cli.envs.tasks import EPISODE_SEED_STRIDE, Task, random_action, reward_number, seeds_of
from cwm_cli.errors import CwmError
from cwm_cli.evaluation.mismatches import DRAWS
from cwm_cli.planning import Moment, Unsuited
from cwm_cli.planning.model import EpisodeHistory, Step
from cwm_cli.sandbox.failures import Failure
from cwm_cli.worlds.model import ImaginedEpisodes, Plan, PlanningSession, Stuck, WorldModel
from cwm_play.keys import RESET, TRUTH, Keys, legend
from cwm_play.painting import Components, Painter, rendered
from cwm_play.scenes import (
    GameScene,
    Panel,
    compared_rows,
    difference_words,
    foreseen,
    parts_of,
    seen_wrong,
    transition,
)

if TYPE_CHECKING:
    import gymnasium as gym


class EpisodeOutcome(NamedTuple):
    """What an episode came to that was played by keys or by plans.

    `returned` is the return in the world that was played, `truly` that of the true environment
    for the same actions, None where that is the same. `first_mismatch` is the step, counted
    from 1, that came out otherwise than predicted, in these `parts`.
    """

    steps: int
    returned: float
    truly: float | None = None
    first_mismatch: int | None = None
    parts: tuple[str, ...] = ()
    failure: str = ""
    is_over: bool = False


class Game:
    """What keys are told to, and what there is to see then.

    `press` hears a key, or None when time went on without one; `scene` is what to look at, and
    `outcome` what came of it in the end. `is_done` says that time alone leads no further.
    """

    is_done = False

    @property
    def scene(self) -> GameScene:
        """What there is to see."""
        raise NotImplementedError

    def press(self, key: str | None) -> None:
        """Hear of a key, or that time went on."""
        raise NotImplementedError

    def outcome(self) -> dict[str, Any]:
        """Return what came of it, as plain data."""
        return {}

    def close(self) -> None:
        """Let go of what the game holds."""


@dataclass
class Arena:
    """What games are played in: the task, its spaces, and how its observations are shown.

    `rows` are of the environment: their spaces count.
    """

    name: str
    task: Task
    rows: Dataset
    painter: Painter
    named: Components
    keys: Keys

    @property
    def spaces(self) -> tuple[Space, Space]:
        """Of observations and of actions."""
        return self.rows.observation_space, self.rows.action_space


@dataclass
class _Side:
    """One of the worlds: the path that was gone in it, and what is to be said of it."""

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
        """Go a step on."""
        self.history = self.history.after(action, step.observation, step.reward)
        self.step, self.valid = step, step.valid
        self.is_over, self.note = bool(step.terminated or note), note
        if step.terminated:
            self.note = "the episode is over"


class WorldGame(Game):
    """A world model that is played in, with the true environment beside it; or that alone.

    Without a `model` the true environment is played. With a `session` it is not keys that choose
    the actions, but plans, for so many `episodes`. `seen` returns observations as the model sees
    them: with it a third panel shows that.
    """

    def __init__(
        self,
        arena: Arena,
        model: WorldModel | None = None,
        session: PlanningSession | None = None,
        *,
        episodes: int = 1,
        seen: Callable[[Any], Any] | None = None,
        chosen_by: str = "",
    ) -> None:
        self.arena, self.model, self.session = arena, model, session
        self.played: list[EpisodeOutcome] = []
        self._episodes, self._seen, self._chosen_by = episodes, seen, chosen_by
        self._env: gym.Env[Any, Any] = arena.task.make()
        self._draws = bool(self._env.render_mode)
        self._shows_truth = True
        self._planned: deque[Any] = deque()
        self._number = -1
        self._imagined: ImaginedEpisodes | None = None
        self._reset()

    def press(self, key: str | None) -> None:
        """Take the action of a key; begin again, or show and hide what is true."""
        if self.is_done and key is None:
            return
        self._warning = ""
        if key == TRUTH:
            self._shows_truth = not self._shows_truth
        elif key == RESET or (key is None and self._inside.is_over):
            self._again(key)
        elif self._inside.is_over:
            self._warning = "the episode is over: press enter to start another"
        elif self.session is not None:
            if key in (None, "space"):
                self._step(self._decided(self.session))
        else:
            action = self.arena.keys.idle if key is None else self.arena.keys.press(key)
            if action is not None:
                self._step(action)

    @property
    def scene(self) -> GameScene:
        """Both worlds, how far the episode is, and what keys do."""
        inside, truth, arena = self._inside, self._truth, self.arena
        compares = self.model is not None and self._shows_truth
        shown = [inside, truth] if compares else [inside]
        panels = [self._panel(side) for side in shown]
        if self._seen is not None:
            inner = self._seen(truth.observation)
            panels = [
                Panel("original", (self._draws and rendered(self._env)) or panels[0].look),
                Panel("as observed", panels[0].look, panels[0].note),
                Panel("as the model sees it", arena.painter.look(inner)),
            ]
        rows = compared_rows(
            arena.named, [side.observation for side in shown], (0, 1) if compares else None
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
            moment=(self._number, len(inside.history.actions)),
            is_over=inside.is_over,
        )

    def outcome(self) -> dict[str, Any]:
        """Return every episode that had a step, or that an agent could not begin."""
        every = [*self.played, *([self._episode()] if self._counts else [])]
        return {"episodes": [each._asdict() for each in every]}

    def close(self) -> None:
        """Let go of the environment, the model and the plans."""
        self._env.close()
        if self._imagined is not None:
            self._imagined.close()
        if self.session is not None:
            self.session.close()

    @property
    def _counts(self) -> bool:
        """Whether the episode counts; an agent repeats an episode that does not."""
        failed = self.session is not None and bool(self._failure)
        return failed or bool(self._inside.history.actions)

    def _again(self, key: str | None) -> None:
        """Begin another episode, unless there were enough."""
        if self._counts:
            self.played.append(self._episode())
        if self.session is not None and len(self.played) >= self._episodes:
            if key is None:
                self.played.pop()  # it is still shown
                self.is_done = True
                return
            self._episodes += 1
        self.is_done = False
        self._reset()

    def _reset(self) -> None:
        """Begin an episode in both worlds."""
        task = self.arena.task
        self._number += 1
        seed, random = seeds_of(task.seed, self._number)
        observation, _ = self._env.reset(seed=seed)
        self._env.action_space.seed(random)
        start = EpisodeHistory((deepcopy(observation),))
        valid = task.allowed(self._env)
        self._truth = _Side("environment", start, valid)
        self._inside = self._truth
        self._mark = self._warning = ""
        self._first: tuple[int, tuple[str, ...]] | None = None
        self._failure, self._is_apart = "", False
        self._planned.clear()
        self._decisions = 0
        if self.model is not None:
            self._inside = _Side("world model", start, valid)
            if self._imagined is not None:
                self._imagined.close()
            seed = (task.seed + EPISODE_SEED_STRIDE * self._number) % (1 << 31)
            self._imagined = self.model.imagine([start], self.arena.rows, seed=seed)

    def _step(self, action: Any) -> None:
        """Take an action in both worlds, and compare what it led to."""
        inside, truth = self._inside, self._truth
        if inside.valid is not None and action not in inside.valid:
            self._warning = f"{self.arena.keys.words(action)} is not allowed here"
            return
        if not truth.is_over:
            self._step_truly(action)
        if self.model is None:
            return
        try:
            predicted = self._predicted(action)
        except CwmError as error:
            self._failure = self._warning = str(error)
            inside.is_over, inside.note = True, "the world model failed: press enter to restart"
            return
        was_over = truth.is_over and len(truth.history.actions) <= len(inside.history.actions)
        inside.take(action, predicted)
        if not was_over and truth.step is not None:
            self._compare(predicted, truth.step, action)
        if len(inside.history.actions) >= self.arena.task.limit and not inside.is_over:
            inside.is_over, inside.note = True, "time limit reached"

    def _predicted(self, action: Any) -> Step:
        """Ask the world model what follows."""
        assert self._imagined is not None
        observations, actions = self.arena.spaces
        found = self._imagined.step(actions.pack("actions", [action]))
        valid = None if found.valid is None else actions.masked(found.valid[0]) or None
        return Step(
            observations.unpack("observations", found.observations, 0),
            float(found.rewards[0]),
            bool(found.terminated[0]),
            valid,
        )

    def _step_truly(self, action: Any) -> None:
        """Step the true environment, as long as it goes on and allows the action."""
        truth, task = self._truth, self.arena.task
        if truth.valid is not None and action not in truth.valid:
            truth.is_over, truth.note = True, f"{self.arena.keys.words(action)} is not allowed"
            return
        seen, reward, terminated, truncated, _ = self._env.step(deepcopy(action))
        named = task.valid and task.valid(self._env.unwrapped)
        valid = None if named is None else tuple(map(int, named))
        step = Step(deepcopy(seen), reward_number(reward), bool(terminated), valid)
        cut = truncated or len(truth.history.actions) + 1 >= task.limit
        truth.take(action, step, "time limit reached" if cut else "")
        truth.valid = valid or None

    def _compare(self, predicted: Step, actual: Step, action: Any) -> None:
        """Mark the first step that came out otherwise than predicted; then the worlds are apart.

        Where the model is right from what is true, the step is none: small differences add up.
        """
        if self._is_apart:
            return
        before = self._truth.history.observations[-2]
        row = transition(before, action, actual)
        parts = parts_of(predicted, row, self.arena.rows)
        if not parts:
            return
        number = len(self._inside.history.actions)
        how = foreseen(self.model, row, self.arena.rows) if self.model is not None else None
        if how == "certain":
            self._mark = self._mark or f"small differences have accumulated up to step {number}"
            return
        self._is_apart = True
        if how is not None:
            self._mark = f"random outcomes differ since step {number}: the episodes diverge"
            return
        self._first = number, tuple(parts)
        what = ""
        if "observation" in parts:
            seen = predicted.observation, actual.observation
            what = difference_words(self.arena.named, *seen)
        if not what and "reward" in parts:
            what = f"reward {predicted.reward:.5g} instead of {actual.reward:.5g}"
        words = f"first mismatch at step {number}: {' and '.join(parts)}"
        self._mark = f"{words} ({what})" if what else words

    def _decided(self, session: PlanningSession) -> Any:
        """Return the next planned action; a random one where there is no plan."""
        inside = self._inside
        if not self._planned:
            horizon = self.arena.task.limit - len(inside.history.actions)
            state = session.state(self._env, inside.history)
            moment = Moment(self._number, self._decisions, state, horizon, inside.valid)
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
            return random_action(self._env.action_space, inside.valid)
        return self._planned.popleft()

    def _panel(self, side: _Side) -> Panel:
        """Return what is seen of a world; the true one draws itself where nothing else does."""
        found = self.arena.painter.look(side.observation)
        if found.is_empty and side is self._truth and self._draws:
            found = rendered(self._env) or found
        note = side.note
        if side.step is not None and self.model is not None:
            note = f"reward {side.step.reward:.5g}" + (f" · {note}" if note else "")
        wrong = self._first is not None and side is self._inside
        return Panel(side.title, found, note, is_marked=wrong)

    def _facts(self) -> Sequence[str]:
        """Say how far the episode is."""
        inside, truth = self._inside, self._truth
        parts = [f"episode {self._number + 1}", f"step {len(inside.history.actions)}"]
        if inside.history.actions:
            parts.append(self.arena.keys.words(inside.history.actions[-1]))
        returned = f"return {inside.returned:.5g}"
        if self.model is not None:
            returned += f" (true: {truth.returned:.5g})"
        parts.append(returned)
        if inside.is_over:
            parts.append(inside.note)
        return [" · ".join(parts)]

    def _legend(self) -> list[str]:
        """Say what keys do here."""
        told = []
        if self.session is not None:
            told.append(f"{self._chosen_by} plays")
        else:
            told += legend(self.arena.keys.open_to(self._inside.valid))
            if standing := getattr(self.arena.keys, "standing", ""):
                told.append(f"now {standing}")
        told += legend({RESET: "restart"})
        if self.model is not None:
            told += legend({TRUTH: "true environment"})
        return told

    def _episode(self) -> EpisodeOutcome:
        """Return what the episode came to so far."""
        inside, truth = self._inside, self._truth
        number, parts = self._first or (None, ())
        return EpisodeOutcome(
            steps=len(inside.history.actions),
            returned=inside.returned,
            truly=truth.returned if self.model is not None else None,
            first_mismatch=number,
            parts=parts,
            failure=self._failure,
            is_over=inside.is_over,
        )


@dataclass(frozen=True)
class _Split:
    """The episodes of a part of a dataset, and what a model says to each of their rows."""

    name: str
    episodes: list[np.ndarray]


class ReplayGame(Game):
    """Recorded episodes, step by step: what was before, what was predicted, and what came about.

    Every row is predicted from what was observed, not from predictions.
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
        self._warning, self._failure, self._most = "", "", episodes
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
            self._wrong = seen_wrong(self._found, rows)
        masks = list(self._wrong.values())
        self.wrong = np.logical_or.reduce(masks) if masks else np.zeros(len(rows), bool)

    def press(self, key: str | None) -> None:
        """Go to another step, episode or split; time alone goes on, through so many episodes."""
        moves = {"left": -1, "right": 1, "down": -10, "up": 10, None: 1, "space": 1}
        episode, count = self._rows, len(self._splits[self._split].episodes)
        self._warning = ""
        if key is None and self._place == len(episode) - 1:
            self.is_done = self._episode + 1 >= min(self._most, count)
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
            self._to_mismatch()

    @property
    def scene(self) -> GameScene:
        """The step that the game stands at."""
        arena, index = self.arena, int(self._rows[self._place])
        row, predicted = self.rows.row(index), self._prediction(index)
        observations = [row.observation, predicted and predicted.observation, row.next_observation]
        titles = ["before", "predicted", "true"]
        notes = ["", predicted and f"reward {predicted.reward:.5g}", f"reward {row.reward:.5g}"]
        ends = [False, bool(predicted and predicted.terminated), row.terminated]
        kept = [n for n, each in enumerate(observations) if each is not None]
        panels = [
            Panel(
                titles[n],
                arena.painter.look(observations[n]),
                " · ".join(filter(None, [notes[n], "the episode is over" * ends[n]])),
                is_marked=n == 1 and bool(self.wrong[index]),
            )
            for n in kept
        ]
        compared = (1, 2) if predicted is not None else None
        table = compared_rows(arena.named, [observations[n] for n in kept], compared)
        return GameScene(
            title=arena.name,
            facts=self._facts(row.action),
            panels=panels,
            columns=[titles[n] for n in kept],
            rows=table,
            mark=self._failure or self._mark(index, predicted),
            warning=self._warning,
            legend=legend(self.KEYS),
            moment=(self._split, self._episode, self._place),
            is_over=self._place == len(self._rows) - 1,
        )

    def outcome(self) -> dict[str, Any]:
        """Return for every episode its length, and which of its steps were predicted wrongly."""
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

    def _to_mismatch(self) -> None:
        """Go to the next step that was predicted wrongly, in this split."""
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
        """Return what was predicted of a row, the likeliest where several things may follow."""
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
        """Say which step of which episode is shown."""
        split, rows = self._splits[self._split], self._rows
        parts = [
            f"{split.name} episode {self._episode + 1} of {len(split.episodes)}",
            f"step {self._place + 1} of {len(rows)}",
            self.arena.keys.words(action),
        ]
        if self._found is not None:
            parts.append(f"{int(self.wrong[rows].sum())} wrong predictions")
        return [" · ".join(parts)]

    def _mark(self, index: int, predicted: Step | None) -> str:
        """Say in what the step differs, or where the first one of its episode is that does."""
        wrong = np.flatnonzero(self.wrong[self._rows])
        if not len(wrong):
            return ""
        first = f"first mismatch of this episode: step {wrong[0] + 1}"
        if not self.wrong[index]:
            return first
        parts = [name.replace("_", " ") for name, mask in self._wrong.items() if mask[index]]
        what = ""
        if "observation" in parts and predicted is not None:
            actual = self.rows.row(index).next_observation
            what = difference_words(self.arena.named, predicted.observation, actual)
        words = f"mismatch: {' and '.join(parts)}" + (f" ({what})" if what else "")
        return f"first {words}" if self._place == wrong[0] else f"{words}; {first}"


def _episodes(rows: Dataset, part: int) -> list[np.ndarray]:
    """Return the rows of each episode of a part of a dataset, in their order."""
    numbers, mask = rows.columns["episodes"], rows.columns["split"] == part
    return [np.flatnonzero(mask & (numbers == number)) for number in np.unique(numbers[mask])]
