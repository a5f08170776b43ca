"""A Gymnasium environment that predicts with `program.py`; `world.json` has the recorded facts.

Each step calls the program as its evaluation did: `set_state`, then `step`, or `outcomes`, of
which one is sampled. If the program was translated, a module with plain numbers computes the same
steps. The next step starts from the prediction before it is rounded to the precision of the space
and clipped to its bounds. A program with memory is only reset at the start of an episode and then
uses its own predictions, so `correct` is not called.
"""

import json
import math
import random
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from .rendering import renderer
from .values import plain, space_of, typed

WORLD = json.loads(Path(__file__).with_name("world.json").read_text(encoding="utf-8"))
RENDERING = WORLD["rendering"]


class WorldModelEnv(gym.Env[Any, Any]):
    """A Gymnasium environment whose transitions a program predicts.

    An episode starts at a recorded initial observation, or at the observation given by
    `reset(options={"observation": ...})`. If the program predicts valid actions, `info` has
    them as `valid_actions` and `action_mask`. All actions are valid at an initial observation
    with unknown valid actions. Predicted observations are clipped to the observation space; a
    prediction that is not finite raises ValueError.
    """

    metadata = {"render_modes": RENDERING["modes"], "render_fps": RENDERING["fps"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        characters = WORLD["characters"]
        self.observation_space = space_of(WORLD["observation_space"], characters)
        self.action_space = space_of(WORLD["action_space"], characters)
        self._draws, self._tells, self._remembers = (
            WORLD["abilities"][name] for name in ("draws", "tells", "remembers")
        )
        self._lists_legal = WORLD["abilities"].get("lists_legal") and WORLD["names_actions"]
        dtype = self.observation_space.dtype
        self._is_real = dtype is not None and dtype.kind == "f"
        self._plain, self._typed = plain(self.observation_space), typed(self.observation_space)
        self._plain_action = plain(self.action_space)
        self._renderer = None if render_mode is None else renderer(RENDERING, render_mode)
        with made():
            self._make_program = import_module(f"{__package__}.program").Environment
        self._program: Any = None
        self._take_step: Any = None
        if WORLD["single"]:  # computes the same steps with plain numbers
            self._take_step = import_module(f"{__package__}.{WORLD['single']}").step
        self._is_number = isinstance(self.observation_space, spaces.Discrete)
        self._is_choice = isinstance(self.action_space, spaces.Discrete)
        self._shape = self.observation_space.shape

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; equal seeds and actions give equal episodes."""
        super().reset(seed=seed)
        start = WORLD["starts"][self.np_random.integers(len(WORLD["starts"]))]
        if options and "observation" in options:
            start = {"observation": options["observation"]}
        self._program = None if self._take_step else self._begin_program()
        self._observation = self._plain(start["observation"])
        if self._remembers:
            self._program.reset(self._plain(self._observation))
        valid = start.get("valid_actions", ())
        if self._lists_legal:
            self._program.set_state(self._plain(self._observation))
            valid = self._program.legal_actions()
        return self.seen(), self._info(valid)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an action; Gymnasium applies the time limit."""
        if self._take_step and (found := self._translated_step(action)):
            self._observation, reward, terminated = found
            return self.seen(), reward, terminated, False, {}
        if WORLD["draws"]:
            with seeded(int(self.np_random.integers(2**32))):
                answer = self._answer(action)
        else:
            answer = self._answer(action)
        observation, reward, terminated, *valid = answer
        if self._lists_legal:
            valid = [() if terminated else self._program.legal_actions()]
        self._observation = self._plain(observation)
        if self._is_real and not np.isfinite(self._observation).all():
            raise ValueError(
                f"the program predicted an observation that is not finite: {self._observation}"
            )
        info = self._info(valid[0] if valid else ())
        return self.seen(), float(np.asarray(reward).item()), bool(terminated), False, info

    def render(self) -> Any:
        """Render the observation with the true environment, or as text."""
        if self._renderer is None:
            return None
        return self._renderer.render(self._observation)

    def draw(self, observation: Any) -> Any:
        """Render an observation."""
        self._observation = self._plain(observation)
        return self.render()

    def predict(self, observation: Any, action: Any) -> tuple[Any, float, bool]:
        """Return the next observation as numbers, the reward and whether the episode ends."""
        self._observation = self._plain(observation)
        _, reward, terminated, *_ = self.step(action)
        return np.asarray(self._observation).ravel(), reward, terminated

    def close(self) -> None:
        """Close the renderer."""
        if self._renderer is not None:
            self._renderer.close()

    def seen(self) -> Any:
        """Return the observation as an element of the space; render it in mode `human`."""
        if self.render_mode == "human":
            self.render()
        return self._typed(self._observation)

    def _begin_program(self) -> Any:
        """Return the program at the start of an episode."""
        if self._draws:
            self._make_program.rng = self.np_random  # the constructor may use it
        with made():
            program = self._make_program()
        if self._draws:
            # The class attribute may belong to another environment by now.
            program.rng = self.np_random
        return program

    def _translated_step(self, action: Any) -> tuple[Any, float, bool] | None:
        """Return a step with plain numbers, or None if only the program can compute it."""
        taken = int(action) if self._is_choice else self._plain_action(action).ravel().tolist()
        try:
            if self._is_number:
                draw = (float(self.np_random.random()),) if self._tells else ()
                number, reward, terminated = self._take_step(self._observation, taken, *draw)
                return number, reward, terminated
            state, reward, terminated = self._take_step(self._observation.ravel().tolist(), taken)
            if not math.isfinite(sum(state)):
                return None
        except (ArithmeticError, LookupError, TypeError, ValueError):
            return None
        return np.array(state).reshape(self._shape), reward, terminated

    def _answer(self, action: Any) -> Any:
        """Call the program with copies of the arguments."""
        taken = self._plain_action(action)
        self._program = self._program or self._begin_program()
        if not self._remembers:
            self._program.set_state(self._plain(self._observation))
            if self._tells:
                outcomes = list(self._program.outcomes(taken))
                shares = np.array([float(outcome[0]) for outcome in outcomes])
                return outcomes[self.np_random.choice(len(outcomes), p=shares / shares.sum())][1:]
        return self._program.step(taken)

    def _info(self, valid: Iterable[Any]) -> dict[str, Any]:
        """Return the valid actions if the program predicts them; if it predicts none, all."""
        if not WORLD["names_actions"]:
            return {}
        assert isinstance(self.action_space, spaces.Discrete)
        first, mask = int(self.action_space.start), np.zeros(int(self.action_space.n), np.int8)
        named = [int(action) - first for action in valid]
        mask[[place for place in named if 0 <= place < len(mask)]] = 1
        if not mask.any():
            mask[:] = 1
        return {"valid_actions": (np.flatnonzero(mask) + first).tolist(), "action_mask": mask}


def made() -> AbstractContextManager[None]:
    """Seed the construction of a random program as in its evaluation."""
    return seeded(WORLD["seed"]) if WORLD["draws"] else nullcontext()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed `random` and `numpy.random`, and restore both states at the end."""
    before = random.getstate(), np.random.get_state()
    random.seed(repr((seed,)))
    np.random.seed([seed % 2**32])
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
