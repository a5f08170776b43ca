"""A program with memory, written around one that knows everything."""

from cwm_cli.data.spaces import Space
from cwm_induction.continuous.samples import Samples
from cwm_induction.flattening import built, joined

_FILTER = '''

SEEN = {seen}  # numbers of the state that are seen; the others are remembered


class Environment(Dynamics):
    """The same for one who does not see {unseen}.

    An episode is taken to begin at rest, so its first step is a guess. Once it is seen what
    followed a step, the velocities before it become those that lead there; the equations carry
    them on.
    """

    def reset(self, observation):
        """An episode begins."""
        self.set_state(np.concatenate([{numbers}, np.zeros({hidden})]))

    def step(self, action):
        """Predict what is seen after an action."""
        self.before, self.action = self.observation, {action}
        state, reward, terminated = super().step(self.action)
        {answer}
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
        return super().step(self.action)[0][:SEEN]
'''


def remembering(program: str, samples: Samples, observations: Space, actions: Space) -> str:
    """Let a program that knows everything take and give what is seen only."""
    hidden = [found.name for found in samples.remembered.values()]
    *most, last = hidden
    text = _FILTER.format(
        seen=len(samples.low) - len(hidden),
        hidden=len(hidden),
        unseen=f"{', '.join(most)} and {last}" if most else last,
        numbers=joined(observations, "observation"),
        action=joined(actions, "action") if actions.children else "action",
        answer="numbers = state[:SEEN]",
        built=built(observations, "", [0]),
    )
    return program.replace("class Environment:", "class Dynamics:", 1).rstrip() + "\n" + text
