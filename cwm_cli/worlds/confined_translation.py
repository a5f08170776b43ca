"""The confined process that translates a program for an export, and verifies the translation."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.planning.model import Model, Step
from cwm_cli.sandbox.handlers import values
from cwm_cli.translation.expressions import Unsupported
from cwm_cli.translation.source import SourceForm, write_module
from cwm_cli.translation.states import Trace
from cwm_cli.worlds.confined import ImaginingHandler
from cwm_cli.worlds.messages import ImaginingJob

RANDOM_STEPS, EPISODE_STEPS = 10_000, 50
"""Number of compared steps with random actions, and number of steps in each episode."""

RELATIVE_TOLERANCE = 1e-6
"""Maximum difference of equal numbers, relative to the larger one or to 1."""

MAX_UNCOVERED = 0.1
"""Maximum fraction of steps that only the program itself can compute."""


class Mismatch(Exception):
    """A translated step differs from the step of the program; the text says which and how."""


@dataclass(frozen=True, kw_only=True)
class TranslationJob(ImaginingJob):
    """A program that is translated inside its process."""

    handler: ClassVar[str] = "cwm_cli.worlds.confined_translation:TranslationHandler"


def translate(
    model: Model,
    arrays: Mapping[str, np.ndarray],
    *,
    program: str,
    spaces: Sequence[dict[str, Any]],
    forms: Sequence[SourceForm],
    seed: int,
) -> dict[str, np.ndarray]:
    """Return the text of each form as UTF-8 bytes, or the reason for its absence as `reason`.

    Each text is compared with the program in recorded rows and in random steps.

    Args:
        model: The program.
        arrays: Recorded `observations` and `actions`, one leaf each.
        program: The text of the program.
        spaces: Observation and action space as JSON data.
        forms: The forms to write.
        seed: Seed of the random actions.
    """
    observation_space, action_space = (Space.from_json(space) for space in spaces)
    try:
        trace = Trace(program, observation_space, action_space)
        texts = {
            form: write_module(trace, program, (observation_space, action_space), form)
            for form in forms
        }
        columns = (arrays["observations"], arrays["actions"])
        spaced = zip((observation_space, action_space), columns, strict=True)
        observations, actions = (list(values(space, iter([column]))) for space, column in spaced)
        recorded = _Steps(model, zip(observations, actions, strict=True))
        rng = np.random.default_rng(seed)
        played = _Steps(model, _random_walk(model, observations, actions, rng))
        for form in ("numpy", "python"):
            if form in texts:
                _compare(form, texts[form], [("recorded row", recorded), ("random step", played)])
    except (Unsupported, Mismatch) as reason:
        return {"reason": _encoded(str(reason))}
    return {form: _encoded(text) for form, text in texts.items()}


def tabulate(
    model: Model,
    arrays: Mapping[str, np.ndarray],
    *,
    spaces: Sequence[dict[str, Any]],
) -> dict[str, np.ndarray]:
    """Return the outcomes of all states and actions as JSON data, or a `reason`.

    A row has no outcomes if the program fails there, or leaves the observation space.

    Args:
        model: The program, which has the method `outcomes`.
        arrays: Not used.
        spaces: Observation and action space as JSON data; both are single whole numbers.
    """
    del arrays
    states, actions = (Space.from_json(space) for space in spaces)
    first_state, last_state, first_action = (
        int(bound[0]) for bound in (states.low, states.high, actions.low)
    )
    table: dict[str, list[Any]] = {"chances": [], "states": [], "rewards": [], "ends": []}
    for state in range(first_state, last_state + 1):
        for action in range(first_action, first_action + actions.count):
            try:
                model.stand(state)
                found = model.outcomes(action) or []
            except Exception:  # noqa: BLE001  # programs raise anything
                found = []
            if not all(first_state <= each.step.observation <= last_state for each in found):
                found = []
            sums = np.cumsum([each.probability for each in found])
            table["chances"].append((sums / sums[-1]).tolist() if found else [])
            table["states"].append([int(each.step.observation) for each in found])
            table["rewards"].append([float(each.step.reward) for each in found])
            table["ends"].append([bool(each.step.terminated) for each in found])
    if not any(table["chances"]):
        return {"reason": _encoded("the program fails in every state")}
    facts = {
        "first_state": first_state,
        "first_action": first_action,
        "actions": actions.count,
        **table,
    }
    return {"outcomes": _encoded(json.dumps(facts))}


class _Steps:
    """Steps of a program: states, actions and results; steps at which it fails are left out."""

    def __init__(self, model: Model, pairs: Iterator[tuple[Any, Any]]) -> None:
        self.states: list[Any] = []
        self.actions: list[Any] = []
        self.results: list[Step] = []
        for state, action in pairs:
            try:
                model.stand(state)
                step = model.step(action)
            except Exception:  # noqa: BLE001, S112  # programs raise anything
                continue
            self.states.append(state)
            self.actions.append(action)
            self.results.append(step)


def _random_walk(
    model: Model, starts: Sequence[Any], actions: Sequence[Any], rng: np.random.Generator
) -> Iterator[tuple[Any, Any]]:
    """Yield states and actions of episodes that begin at recorded observations.

    Actions are drawn from the recorded ones, since the bounds of an action space may be infinite.
    """
    for _ in range(RANDOM_STEPS // EPISODE_STEPS):
        state = starts[int(rng.integers(len(starts)))]
        for _ in range(EPISODE_STEPS):
            action = actions[int(rng.integers(len(actions)))]
            yield state, action
            try:
                model.stand(state)
                step = model.step(action)
            except Exception:  # noqa: BLE001  # programs raise anything
                break
            if step.terminated:
                break
            state = step.observation


def _compare(form: str, text: str, parts: Sequence[tuple[str, _Steps]]) -> None:
    """Compare a form with the program.

    Raises:
        Mismatch: A step differs, or too many steps need the program itself.
    """
    module = SimpleNamespace()
    exec(compile(text, f"<{form}>", "exec"), vars(module))  # noqa: S102  # in the sandbox
    take = _take_together if form == "numpy" else _take_alone
    for name, steps in parts:
        if not steps.results:
            raise Mismatch("the program fails at every recorded row")
        found = take(module.step, steps)
        expected = _columns(steps.results)
        covered = ~np.isnan(found[1])
        if (~covered).mean() > MAX_UNCOVERED:
            raise Mismatch(f"{(~covered).sum()} of {len(covered)} steps need the program itself")
        for part, one, other in zip(("state", "reward", "end"), found, expected, strict=True):
            right = np.isclose(one, other, RELATIVE_TOLERANCE, RELATIVE_TOLERANCE)
            right = right.reshape(len(covered), -1).all(1) | ~covered
            if not right.all():
                row = int(np.argmin(right))
                raise Mismatch(
                    f"the {part} after {name} {row} is {one[row]} instead of {other[row]}"
                )


def _columns(steps: Sequence[Step]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    states = np.array([np.ravel(step.observation) for step in steps], float)
    rewards = np.array([step.reward for step in steps], float)
    return states, rewards, np.array([step.terminated for step in steps])


def _take_together(step: Callable[..., Any], steps: _Steps) -> tuple[np.ndarray, ...]:
    states = np.array([flat_state(state) for state in steps.states])
    actions = np.array([flat_state(action) for action in steps.actions])
    with np.errstate(all="ignore"):
        following, rewards, ended = step(states, actions)
    return following.reshape(len(states), -1).astype(float), rewards, ended


def _take_alone(step: Callable[..., Any], steps: _Steps) -> tuple[np.ndarray, ...]:
    found = list[Step]()
    for state, action in zip(steps.states, steps.actions, strict=True):
        plain = (flat_state(each).tolist() for each in (np.asarray(state), np.asarray(action)))
        try:
            found.append(Step(*step(*plain)))
        except (ArithmeticError, LookupError, TypeError, ValueError):
            found.append(Step(state, float("nan"), False))
    return _columns(found)


def flat_state(value: Any) -> np.ndarray:
    """Return a number, or the components of an array as float64 or int64."""
    array = np.asarray(value)
    array = array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    return array if array.ndim == 0 else array.ravel()


def _encoded(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-8", "replace"), np.uint8)


class TranslationHandler(ImaginingHandler):
    """Translates the program on request."""

    job_class = TranslationJob
    modules: ClassVar = {"translating": sys.modules[__name__]}
