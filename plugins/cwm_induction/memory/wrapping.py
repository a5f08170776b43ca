"""Programs with memory, written around plain programs that take remembered quantities as input."""

import re
from collections.abc import Sequence
from dataclasses import replace

from cwm_cli.data.spaces import Space
from cwm_induction.flattening import built, joined
from cwm_induction.memory.clocks import Clock
from cwm_induction.memory.history import RememberedQuantity

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
        text += clock.methods(given, observations.size, executed)
    plain = program.replace("class Environment:", "class Rules:", 1).rstrip()
    imports = "" if "import numpy as np" in plain else "import numpy as np\n\n\n"
    return imports + plain + "\n" + text


def _single(actions: Space) -> str:
    """Write the single number of an action."""
    return "action" if actions.kind == "discrete" else "np.ravel(action)[0]"
