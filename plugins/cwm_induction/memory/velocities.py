"""Hidden velocities: the changes of coordinates from step to step determine them.

If coordinates move by the velocity before or after a step, their changes are the velocities, and
the equations are found as if the velocities were visible. If the velocity changes within a step, a
mechanism determines the velocities that lead to the observed coordinates. The written program
estimates the velocities after every step.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, Self

import numpy as np

from cwm_cli.data.dataset import Dataset
from cwm_cli.data.spaces import Space
from cwm_induction.continuous.chains import Chains
from cwm_induction.continuous.samples import Array, Remembered, Samples
from cwm_induction.continuous.terms import NamedColumn
from cwm_induction.continuous.variables import Variable, inputs_of, latents
from cwm_induction.effort import Effort
from cwm_induction.flattening import built, joined
from cwm_induction.mechanics.fitting import fit
from cwm_induction.mechanics.motion import (
    Joint,
    Mechanics,
    Motion,
    UnseenMotion,
    joints_of,
    shot,
)
from cwm_induction.memory.history import RecordedHistory
from cwm_induction.writing.rounding import literal, simplest_between

FIRST_DIGITS = (5.0, 2.0, 1.0)
"""First digits of the assumed time of a step, which the observations do not show."""

RIGHT_SHARE = 0.9
"""Minimum share of correct held-out values of a mechanism, to derive velocities from it."""

FEWEST = 4
"""Minimum number of equal largest speeds that show a limit."""

SLIGHT = 0.05
"""Effects of a push below this size, in standard deviations of a change of speed, do not count."""

Way = Literal["after", "before", "between"]
"""The velocity that moves coordinates: after a step, before it, or at a time within it."""

_FILTER = '''

SEEN = {seen}  # observed numbers of the state, which come first; further numbers are estimated


class Environment(Dynamics):
    """Predicts from observations without {unseen}.

    Each episode is assumed to begin at rest, so its first prediction is a guess. After a step,
    `correct` estimates the velocities that lead to the observation, and `step` continues from
    them. Their unit assumes that a step takes {time}: the data do not show its true length.
    """

    def reset(self, observation):
        """Start an episode."""
        self.set_state(np.concatenate([{numbers}, np.zeros({hidden})]))

    def step(self, action):
        """Predict the outcome of an action."""
        self.before, self.action = self.observation, {action}
        numbers, reward, terminated = self.moved(self.action)
        return {built}, reward, terminated

    def correct(self, observation, reward):
        """Estimate the velocities that led to an observation, from the predicted ones on."""
        seen, velocities = {numbers}, self.before[SEEN:]
        for _ in range(8):
            led = self.after(velocities)
            nudged = [self.after(velocities + nudge) for nudge in 1e-6 * np.eye({hidden})]
            slopes = (np.array(nudged) - led).T / 1e-6
            change = np.linalg.lstsq(slopes, seen - led, rcond=1e-6)[0]
            velocities = velocities + change
            if np.abs(change).max() < 1e-9:
                break
        self.after(velocities)
        self.observation[:SEEN] = seen

    def after(self, velocities):
        """Repeat the last step with other velocities; return the observed numbers."""
        self.set_state(np.concatenate([self.before[:SEEN], velocities]))
        return self.moved(self.action)[0]

    def moved(self, action):
        """Take a step{and_stop}; return the observed numbers."""
        state, reward, terminated = super().step(action)
{stops}        return state[:SEEN], reward, terminated
'''

_STOP = """        if not {low} < state[{at}] < {high}:
            state[{at}] = self.observation[{at}] = {clipped}
            self.observation[SEEN + {place}] = 0.0
"""


def ways(data: Dataset) -> tuple[Way, ...]:
    """Return the velocities that may move the coordinates, the likeliest first.

    A push has an effect on the coordinates in the same step if the velocity after a step moves
    them, one step later if the velocity before it does, and in both steps otherwise.
    """
    samples = Samples.of(data, np.zeros(len(data), bool))
    rows = np.flatnonzero(_follows(data))
    moving = [v for v in latents(samples).variables if np.ptp(v.change[samples.smooth]) > 0]
    pushes = np.stack([column.values for column in _pushes(samples)[-1]], 1)
    known = [*(v.now[rows + 1] for v in moving), *(v.change[rows] for v in moving)]
    columns = np.column_stack([pushes[rows + 1], pushes[rows], *known, np.ones(len(rows))])
    scale = np.where(columns.std(0) > 0, columns.std(0), 1.0)
    effects = np.full(2, SLIGHT)
    for variable in moving:
        jump = variable.change[rows + 1] - variable.change[rows]
        weights = np.abs(np.linalg.lstsq(columns / scale, jump, rcond=1e-9)[0])
        both = weights[: 2 * pushes.shape[1]].reshape(2, -1).max(1) / (jump.std() + 1e-12)
        effects = np.maximum(effects, both)
    now, earlier = effects.tolist()
    if now == earlier or not 0.5 < now / earlier < 2:
        return ("before", "after", "between") if earlier > now else ("after", "before", "between")
    return "between", "after", "before"


def _pushes(samples: Samples) -> list[list[NamedColumn]]:
    """Return candidate inputs: the number of the action, or one indicator for each action."""
    inputs = inputs_of(samples)
    if samples.action_space.kind != "discrete":
        return [inputs]
    return [inputs[:1], *([inputs[2:]] if len(inputs) > 2 else [])]


def _follows(data: Dataset) -> Array:
    """Return the mask (rows - 1) of the rows that the next row continues."""
    history = RecordedHistory.of(data, np.zeros(len(data), bool))
    mask: Array = ~history.first[1:] & ~history.terminated[:-1]
    return mask


class UnseenVelocities(NamedTuple):
    """Visible coordinates with hidden velocities, in units of the assumed `time` of a step.

    `follows` (rows - 1) marks the rows that the next row continues.
    """

    samples: Samples
    coordinates: Sequence[Variable]
    follows: Array
    time: float

    @classmethod
    def of(
        cls,
        data: Dataset,
        held_back: Array,
        effort: Effort,
        only: str = "",
    ) -> Self | None:
        """Find all coordinates with a hidden velocity, or `only` one; None if there are none."""
        samples = Samples.of(data, held_back)
        found = _without_velocity(samples, effort)
        coordinates = [variable for variable in found if only in ("", variable.name)]
        if not coordinates:
            return None
        changes = [variable.change[samples.smooth] for variable in coordinates]
        return cls(samples, coordinates, _follows(data), _time(changes))

    @property
    def speeds(self) -> Array:
        """The changes of coordinates (coordinates, rows) over a step, divided by its time."""
        return np.stack([variable.change for variable in self.coordinates]) / self.time

    @property
    def ends(self) -> list[tuple[int, int, float, float]]:
        """The limits of coordinates that stopped: component, coordinate, low and high end."""
        return [
            (int(variable.source[len("observation[") : -1]), place, variable.low, variable.high)
            for place, variable in enumerate(self.coordinates)
            if self.stopped[place].any()
        ]

    @property
    def stopped(self) -> Array:
        """Mask (coordinates, rows) of the steps that end at a limit, which stops a coordinate."""
        return np.stack([(v.then == v.low) | (v.then == v.high) for v in self.coordinates])

    def before(self, speeds: Array | None = None, last: Array | None = None) -> Samples:
        """Return the rows with the velocities before the step, which move the coordinates.

        The velocities are the changes, or `speeds` (coordinates, rows). Episodes end with the
        velocities `last`.
        """
        speeds = self.speeds if speeds is None else speeds
        follows, terminated = np.append(self.follows, False), self.samples.terminated
        stopped = self.stopped.any(0) & ~terminated
        rows = np.flatnonzero((follows | terminated) & ~stopped)
        then = np.where(follows, np.roll(speeds, -1, axis=1), speeds if last is None else last)
        return self._rows(rows, speeds[:, rows], then[:, rows])

    def after(self) -> Samples:
        """Return the rows with the velocities after the step, which move the coordinates."""
        follows = np.append(False, self.follows)
        rows = np.flatnonzero(follows & (~self.stopped.any(0) | self.samples.terminated))
        speeds = np.where(self.stopped, 0.0, self.speeds)
        return self._rows(rows, speeds[:, rows - 1], speeds[:, rows])

    def _rows(self, rows: Array, now: Array, then: Array) -> Samples:
        """Return some rows with velocities (coordinates, rows) before and after the step.

        Velocities close to a limit are set to the limit: rounded coordinates make them inexact.
        """
        samples = self.samples
        sizes = [1.0 if v.is_angle else float(np.abs(v.now).max()) for v in self.coordinates]
        noise = 4 * samples.grain * np.array(sizes) / self.time
        both = np.concatenate([now, then], 1)
        bounds = np.array([_limit(*pair) for pair in zip(both, noise.tolist(), strict=True)])
        limits, near = bounds[:, None], noise[:, None]
        now, then = (
            np.where(np.abs(np.abs(speeds) - limits) < near, np.sign(speeds) * limits, speeds)
            for speeds in (now, then)
        )
        width = samples.before.shape[1]
        remembered = {
            width + place: Remembered(f"{variable.name}_velocity", off)
            for place, (variable, off) in enumerate(
                zip(self.coordinates, noise.tolist(), strict=True)
            )
        }
        return replace(
            samples,
            before=np.concatenate([samples.before[rows], now.T], 1),
            after=np.concatenate([samples.after[rows], then.T], 1),
            actions=samples.actions[rows],
            rewards=samples.rewards[rows],
            terminated=samples.terminated[rows],
            learn=samples.learn[rows],
            low=np.concatenate([samples.low, -bounds]),
            high=np.concatenate([samples.high, bounds]),
            shape=(width + len(bounds),),
            remembered=remembered,
        )

    def mechanism(
        self, rng: np.random.Generator, effort: Effort
    ) -> tuple[Samples, Mechanics] | None:
        """Return a mechanism that moves the coordinates, and the rows with its velocities."""
        rows = np.flatnonzero(self.follows & ~(self.stopped[:, :-1] | self.stopped[:, 1:]).any(0))
        samples = self._rows(rows, self.speeds[:, rows], self.speeds[:, rows + 1])
        by_name = {variable.name: variable for variable in latents(samples).variables}
        joints = [Joint(by_name[v.name], by_name[f"{v.name}_velocity"]) for v in self.coordinates]
        for inputs in _pushes(self.samples):
            now = [column._replace(values=column.values[rows]) for column in inputs]
            later = np.stack([column.values[rows + 1] for column in inputs], 1)
            motion = UnseenMotion.following(Motion.of(joints, now, self.time), later)
            found = fit(samples, joints, now, motion, rng, effort.share(0.5))
            if found is not None and found.right > RIGHT_SHARE:
                return self._through(found, inputs), found
        return None

    def _through(self, found: Mechanics, inputs: Sequence[NamedColumn]) -> Samples:
        """Return the rows with the velocities that a mechanism needs to reach the observations."""
        whole = Motion(
            q=np.stack([v.now for v in self.coordinates], 1),
            v=self.speeds.T,
            u=np.stack([column.values for column in inputs], 1),
            turn=np.stack([v.change for v in self.coordinates], 1),
            after=self.speeds.T,
            tolerance=np.ones((len(self.samples), 2 * len(self.coordinates))),
            time=self.time,
        )
        point = found.point[None]
        v = shot(whole, found.form, point, found.stepping)
        after = found.form.step(point, whole.q, v, whole.u, found.stepping).v
        return self.before(v[0].T, after[0].T)

    def program(self, plain: str, observations: Space, actions: Space) -> str:
        """Return a program without visible velocities, around one that reads and returns them."""
        hidden = [f"{variable.name}_velocity" for variable in self.coordinates]
        *most, last = hidden
        stops = "".join(
            _STOP.format(
                at=component,
                place=place,
                low=_end(low),
                high=_end(high),
                clipped=f"min(max(state[{component}], {_end(low)}), {_end(high)})",
            )
            for component, place, low, high in self.ends
        )
        text = _FILTER.format(
            seen=len(self.samples.low),
            hidden=len(hidden),
            time=literal(self.time),
            unseen=f"{', '.join(most)} and {last}" if most else last,
            numbers=joined(observations, "observation"),
            action=joined(actions, "action") if actions.children else "action",
            and_stop=" that stops at the limits" if stops else "",
            stops=stops,
            built=built(observations, "", [0]),
        )
        return plain.replace("class Environment:", "class Dynamics:", 1).rstrip() + "\n" + text


def _without_velocity(samples: Samples, effort: Effort) -> list[Variable]:
    """Return the moving coordinates without a visible velocity or an equation."""
    variables = latents(samples).variables
    joints, _ = joints_of(samples, variables)
    chains = Chains(samples, variables, inputs_of(samples), effort.share(0.05), 2)
    known = {variable.name for joint in joints for variable in joint} | chains.explain().keys()
    return [
        variable
        for variable in variables
        if variable.name not in known
        and not variable.is_whole
        and float(np.ptp(variable.change[samples.smooth])) > 1e-6
    ]


def _time(changes: Sequence[Array]) -> float:
    """Return a round time of a step, so that velocities are of the order of 1."""
    most = min(1.0, max(float(np.abs(change).max()) for change in changes))
    power = 10.0 ** np.floor(np.log10(most))
    digit = next(digit for digit in FIRST_DIGITS if digit * power <= most)
    return float(f"{digit * power:.0e}")


def _limit(speeds: Array, noise: float) -> float:
    """Return the limit of speeds in both directions, infinity if there is none.

    Several of the largest speeds are equal to a limit within the noise.
    """
    limits = [np.inf]
    for side in (1.0, -1.0):
        edge = float((side * speeds).max())
        near = side * speeds >= edge - noise
        if edge > 0 and FEWEST <= near.sum() < 0.5 * len(speeds):
            limits.append(simplest_between(edge - noise, edge + noise))
    limit = min(limits)
    return limit if np.abs(speeds).max() < limit + noise else np.inf


def _end(place: float) -> str:
    """Write a limit of a coordinate, which is stored in single precision."""
    return literal(float(f"{place:.7g}")) if np.isfinite(place) else f"float('{place}')"
