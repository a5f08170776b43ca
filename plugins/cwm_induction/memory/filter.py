"""A program with memory, written around one that knows everything."""

from collections.abc import Sequence

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_induction.continuous.samples import Samples
from cwm_induction.flattening import built, joined
from cwm_induction.writing.rounding import literal

_FILTER = '''

SEEN = {seen}  # observed numbers of the state, which come first; the others are estimated


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


def remembering(
    program: str,
    samples: Samples,
    time: float,
    ends: Sequence[tuple[int, int, float, float]],
    observations: Space,
    actions: Space,
) -> str:
    """Let a program that knows everything take and give what is seen only.

    A step takes a `time`. Velocities end at the `ends` of a way: of which component, which of
    them, from where to where.
    """
    hidden = [found.name for found in samples.remembered.values()]
    *most, last = hidden
    text = _FILTER.format(
        seen=len(samples.low) - len(hidden),
        hidden=len(hidden),
        time=literal(time),
        unseen=f"{', '.join(most)} and {last}" if most else last,
        numbers=joined(observations, "observation"),
        action=joined(actions, "action") if actions.children else "action",
        and_stop=" that stops at the limits" if ends else "",
        stops="".join(
            _STOP.format(
                at=component,
                place=place,
                low=_end(low),
                high=_end(high),
                clipped=f"min(max(state[{component}], {_end(low)}), {_end(high)})",
            )
            for component, place, low, high in ends
        ),
        built=built(observations, "", [0]),
    )
    return program.replace("class Environment:", "class Dynamics:", 1).rstrip() + "\n" + text


def _end(place: float) -> str:
    """Write the end of a way, which is stored in single precision."""
    return literal(float(f"{place:.7g}")) if np.isfinite(place) else f"float('{place}')"
