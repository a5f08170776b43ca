"""The text of programs in which chance decides what follows."""

from cwm_induction.discrete.conditions import Constants
from cwm_induction.discrete.drift import Drift

STEP = '''
def step(self, action):
    """Answer with what is likeliest: the next state, the reward and the end, each by itself."""
    states, rewards, ends = {{}}, {{}}, {{}}
    for (*state, reward, terminated), chance in self.outcomes(action).items():
        worth = chance{worth}
        rewards[reward] = rewards.get(reward, 0) + worth
        ends[terminated] = ends.get(terminated, 0) + worth
        if not terminated:
            states[tuple(state)] = states.get(tuple(state), 0) + worth
    if states:
        {state} = max(states, key=states.get)
    return self.observation(), max(rewards, key=rewards.get), max(ends, key=ends.get)
'''


def chances_constant(constants: Constants, drift: Drift, names: list[str], axes: list[int]) -> str:
    """Add the constant that says how often each action takes which step."""
    entries = []
    for action, shares in enumerate(drift.shares.tolist()):
        steps = [
            f"{_step(step, axes)}: {round(share, 3)}"
            for step, share in zip(drift.steps.tolist(), shares, strict=True)
            if share
        ]
        entries.append(f"{action}: {{{', '.join(steps)}}}")
    subject = names[0] if len(names) == 1 else f"({', '.join(names)})"
    comment = f"by action: how likely it is that this is added to {subject}"
    return constants.add("CHANCES", "{" + ", ".join(entries) + "}", comment)


def outcomes_lines(
    chances: str, names: list[str], radices: list[int], rules: list[str], read: list[str]
) -> list[str]:
    """Write the function that lists what may follow."""
    steps = [f"{name}_step" for name in names]
    subject = steps[0] if len(steps) == 1 else f"({', '.join(steps)})"
    landings = [
        f"    new_{name} = min(max({name} + {name}_step, 0), {radix - 1})"
        for name, radix in zip(names, radices, strict=True)
    ]
    new = ", ".join(f"new_{name}" for name in names)
    return [
        "def outcomes(self, action):",
        f'    """Return the chance of every ({new}, reward, terminated)."""',
        *[f"    {line}" for line in read],
        "    found = {}",
        f"    for {subject}, chance in {chances}[action].items():",
        *[f"    {line}" for line in [*landings, *(f"    {rule}" for rule in rules)]],
        f"        outcome = {new}, reward, terminated",
        "        found[outcome] = found.get(outcome, 0) + chance",
        "    return found",
        "",
    ]


def step_lines(constants: Constants, names: list[str], worth: dict[str, float]) -> list[str]:
    """Write the function that answers with the likeliest outcome."""
    factor = ""
    if len(worth) > 1:
        display = "{" + ", ".join(f"{reward}: {value:.3g}" for reward, value in worth.items()) + "}"
        name = constants.add("WORTH", display, "what a prediction weighs: rare rewards more")
        factor = f" * {name}[reward]"
    state = ", ".join(f"self.{name}" for name in names)
    state += "," if len(names) == 1 else ""
    return STEP.format(worth=factor, state=state).strip().split("\n")


def _step(step: list[int], axes: list[int]) -> str:
    """Write what is added to the factors that chance moves."""
    parts = [str(step[axis]) for axis in axes]
    return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
