"""Programs with memory, written around plain programs that take remembered quantities as input."""

import re
from collections.abc import Sequence
from dataclasses import replace

from cwm_cli.data.spaces import Space
from cwm_induction.flattening import built, joined
from cwm_induction.memory.clocks import Clock
from cwm_induction.memory.history import RememberedQuantity
from cwm_induction.writing.rounding import literal

_PROGRAM = '''

class Environment(Rules):
    """Predicts from observations and from {count} that it remembers.

{meanings}
    """

    def reset(self, observation):
        """Start an episode."""
        self.now = now = {numbers}
        self.memory = ({starts},)

    def step(self, action):
        """Predict the outcome of an action."""
        self.before = self.now, self.memory, {action}
        self.set_state([*self.now, *self.memory{given}{on}])
        numbers, reward, terminated = super().step({executed})
        numbers = np.asarray(numbers)[:{size}]
        self.remember(numbers, reward)
        return {built}, reward, terminated

    def correct(self, observation, reward):
        """Continue from the recorded outcome of the last step."""
        self.remember({numbers}, reward)

    def remember(self, after, reward):
        """Update the memory after the last step."""
        now, memory, action = self.before
        {names}, = memory
        self.now = after
        self.memory = (
{updates}
        )
'''


_CLOCK = '''
    def is_on(self):
        """Return whether the clock is on, for the phase with the smallest error so far."""
        *_, age, errors = self.memory
        return int((age + errors.index(min(errors))) % {period} < {length})

    def judged(self, after):
        """Add the errors that the last outcome has for each phase at the start."""
        now, memory, action = self.before
        *_, age, errors = memory
        off = []
        for is_on in (0, 1):
            self.set_state([*now, *memory[:{given}], is_on])
            numbers = np.asarray(super().step({executed})[0])[:{size}]
            off.append(min(float(np.sum(((numbers - after) / {scale}) ** 2)), 9.0))
        return tuple(
            error + off[int((age + phase) % {period} < {length})]
            for phase, error in enumerate(errors)
        )
'''


def remembering(
    program: str,
    quantities: Sequence[RememberedQuantity],
    observations: Space,
    actions: Space,
    sent: Sequence[RememberedQuantity] = (),
    clock: Clock | None = None,
) -> str:
    """Return a program that remembers quantities, around one that takes them as observations.

    The actions that were `sent`, the oldest one first, are remembered too; if there are any, the
    oldest one is executed in place of the last one. The mode of a `clock` is the last component.
    """
    given = len(quantities)
    if sent:  # quantities are about executed actions
        updates = [re.sub(r"\baction\b", sent[0].name, q.update) for q in quantities]
        pairs = zip(quantities, updates, strict=True)
        quantities = [*(replace(q, update=text) for q, text in pairs), *sent]
    executed = "action"
    if sent:
        oldest = f"self.memory[{given}]"
        executed = oldest if actions.kind == "discrete" else f"np.array([{oldest}])"
    memory = [*quantities, *(clock.memory if clock else ())]
    text = _PROGRAM.format(
        count=f"{len(memory)} quantities" if len(memory) > 1 else "one quantity",
        meanings="\n".join(f"    {quantity.name}: {quantity.meaning}." for quantity in memory),
        numbers=joined(observations, "observation"),
        starts=", ".join(quantity.start for quantity in memory),
        action=joined(actions, "action")
        if actions.size > 1 or actions.children
        else _single(actions),
        size=observations.size,
        given=f"[:{given}]" if len(memory) > given else "",
        on=", self.is_on()" if clock else "",
        executed=executed,
        built=built(observations, "", [0]),
        names=", ".join(quantity.name for quantity in memory),
        updates="\n".join(f"            {quantity.update}," for quantity in memory),
    )
    if clock is not None:
        executed = executed.replace("self.memory", "memory")
        text += _CLOCK.format(
            period=clock.period,
            length=clock.length,
            given=given,
            size=observations.size,
            executed=executed,
            scale=literal(clock.scale),
        )
    plain = program.replace("class Environment:", "class Rules:", 1).rstrip()
    imports = "" if "import numpy as np" in plain else "import numpy as np\n\n\n"
    return imports + plain + "\n" + text


def _single(actions: Space) -> str:
    """Write the single number of an action."""
    return "action" if actions.kind == "discrete" else "np.ravel(action)[0]"
