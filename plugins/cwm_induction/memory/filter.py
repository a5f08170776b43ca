"""A program with memory, written around one that knows everything."""

from collections.abc import Sequence

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_induction.continuous.samples import Samples
from cwm_induction.flattening import built, joined
from cwm_induction.writing.rounding import literal

_FILTER = '''

SEEN = {seen}  # numbers of the state that are seen; the others are remembered


class Environment(Dynamics):
    """The same for one who does not see {unseen}.

    An episode is taken to begin at rest, so its first step is a guess. Once it is seen what
    followed a step, the velocities before it become those that lead there; the equations carry
    them on. They are in units in which a step takes {time}: its true length does not show.
    """

    def reset(self, observation):
        """An episode begins."""
        self.set_state(np.concatenate([{numbers}, np.zeros({hidden})]))

    def step(self, action):
        """Predict what is seen after an action."""
        self.before, self.action = self.observation, {action}
        numbers, reward, terminated = self.moved(self.action)
        return {built}, reward, terminated

    def correct(self, observation, reward):
        """Find the velocities that led to what was seen, beginning with those expected."""
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
        """Take the last step again with other velocities; return what is seen then."""
        self.set_state(np.concatenate([self.before[:SEEN], velocities]))
        return self.moved(self.action)[0]

    def moved(self, action):
        """Take a step{and_stop}; return what is seen of it."""
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
        and_stop=", and stop at the end of a way" if ends else "",
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
