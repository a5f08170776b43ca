"""Programs with memory, written around plain programs that take remembered quantities as input."""

import re
from collections.abc import Sequence
from dataclasses import replace

from cwm_cli.data.spaces import Space
from cwm_induction.flattening import built, joined
from cwm_induction.memory.history import Quantity

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
        self.set_state([*self.now, *self.memory{given}])
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
    quantities: Sequence[Quantity],
    observations: Space,
    actions: Space,
    sent: Sequence[Quantity] = (),
) -> str:
    """Return a program that remembers quantities, around one that takes them as observations.

    The actions that were `sent`, the oldest one first, are remembered too; if there are any, the
    oldest one is executed in place of the last one.
    """
    given = len(quantities)
    if sent:  # quantities are about executed actions
        executed = [re.sub(r"\baction\b", sent[0].name, q.update) for q in quantities]
        pairs = zip(quantities, executed, strict=True)
        quantities = [*(replace(q, update=text) for q, text in pairs), *sent]
    oldest = f"self.memory[{given}]"
    delayed = oldest if actions.kind == "discrete" else f"np.array([{oldest}])"
    text = _PROGRAM.format(
        count=f"{len(quantities)} quantities" if len(quantities) > 1 else "one quantity",
        meanings="\n".join(f"    {quantity.name}: {quantity.meaning}." for quantity in quantities),
        numbers=joined(observations, "observation"),
        starts=", ".join(quantity.start for quantity in quantities),
        action=joined(actions, "action")
        if actions.size > 1 or actions.children
        else _single(actions),
        size=observations.size,
        given=f"[:{given}]" if sent else "",
        executed=delayed if sent else "action",
        built=built(observations, "", [0]),
        names=", ".join(quantity.name for quantity in quantities),
        updates="\n".join(f"            {quantity.update}," for quantity in quantities),
    )
    plain = program.replace("class Environment:", "class Rules:", 1).rstrip()
    imports = "" if "import numpy as np" in plain else "import numpy as np\n\n\n"
    return imports + plain + "\n" + text


def _single(actions: Space) -> str:
    """Write the single number of an action."""
    return "action" if actions.kind == "discrete" else "np.ravel(action)[0]"
