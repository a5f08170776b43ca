"""Changes of state that chance decides: how often each action adds what, found and in words."""

from itertools import combinations
from math import log2
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete.dynamics import FactorDynamics
from cwm_induction.discrete.expressions import Constants, as_one, listed, targets
from cwm_induction.discrete.features import FactoredTransitions, Sizes
from cwm_induction.discrete.moves import FactorMove
from cwm_induction.discrete.outcomes import Outcomes, fit_outcomes
from cwm_induction.discrete.rule_search import RuleVariant
from cwm_induction.discrete.transitions import Layout, Transitions, join, layouts, split

MOST_STEPS = 24
"""Different steps that are considered, the commonest."""

ROUNDS = 20
"""Rounds of expectation maximisation; shares are only needed to within `LEAST_SHARE`."""

LEAST_SHARE = 0.02
"""Share below which a step is taken for none of an action's."""

MOST_SUBSETS = 6
"""Steps up to which every choice of equally likely ones is tried; of more, the commonest ones."""

PARAMETER_BITS = 3.0
"""Price of a share."""

UNFORESEEN_BITS = 16.0
"""Price of a transition that no step explains."""

MOST_WEIGHED = 20
"""Different rewards up to which rows weigh more the rarer their reward is, as in the score."""

Foreseen = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Next observations, rewards and ends."""


class Drift(NamedTuple):
    """The steps that factors take together and, for every action, the share of each step."""

    steps: np.ndarray
    shares: np.ndarray

    def landing(self, old: np.ndarray, radices: tuple[int, ...]) -> np.ndarray:
        """Return where every step leads from states: one row per state, one column per step."""
        result: np.ndarray = np.clip(old[:, None] + self.steps, 0, np.array(radices) - 1)
        return result

    def constant(self, constants: Constants, names: list[str], axes: list[int]) -> str:
        """Add the constant that says how often each action takes which step."""
        entries = []
        for action, shares in enumerate(self.shares.tolist()):
            steps = [
                f"{as_one([str(step[axis]) for axis in axes])}: {round(share, 3)}"
                for step, share in zip(self.steps.tolist(), shares, strict=True)
                if share
            ]
            entries.append(f"{action}: {{{', '.join(steps)}}}")
        comment = f"by action: how likely it is that this is added to {as_one(names)}"
        return constants.add("CHANCES", "{" + ", ".join(entries) + "}", comment)


class Chances(NamedTuple):
    """A model in which chance decides; `worth` is what a row with each reward weighs."""

    dynamics: FactorDynamics
    drift: Drift
    outcomes: Outcomes
    worth: tuple[float, ...]
    rewards: tuple[float, ...]

    def predict(self, before: np.ndarray, action: np.ndarray) -> Foreseen:
        """Return the likeliest next states, rewards and ends, each by itself."""
        layout, sizes = self.dynamics.layout, self.dynamics.sizes
        old = split(before, layout)
        new = self.drift.landing(old, sizes.radices)
        rows, steps, factors = new.shape
        starts, taken = np.repeat(old, steps, 0), np.repeat(action, steps)
        factored = FactoredTransitions.of(taken, starts, new.reshape(-1, factors))
        factored = self.outcomes.predict(factored, sizes)
        done, reward = factored.done.reshape(rows, steps), factored.reward.reshape(rows, steps)
        worth = self.drift.shares[action] * np.array(self.worth)[reward]
        votes = np.stack([(worth * (reward == code)).sum(1) for code in range(len(self.worth))], 1)
        same = (new[:, :, None] == new[:, None]).all(3) & (done == 0)[:, None]
        likeliest = (same * worth[:, None]).sum(2) * (done == 0)
        after = new[np.arange(rows), likeliest.argmax(1)]
        ends = (worth * done).sum(1) > (worth * (1 - done)).sum(1)
        return join(after, layout), np.array(self.rewards)[votes.argmax(1)], ends.astype(np.int64)


def fit_chances(seen: Transitions, variant: RuleVariant) -> Chances | None:
    """Find the layout in which few steps, drawn by chance, explain what was seen."""
    found = [_fit(seen, layout, bits) for layout, bits in layouts(seen.encoding.sizes)]
    moving = [one for one in found if one and one[0].steps.any()]
    best = min(moving, key=lambda one: one[1].bits, default=None)
    if best is None:
        return None
    drift, dynamics = best
    old, after = seen.in_factors(dynamics.layout)
    factored, noise = FactoredTransitions.of(seen.action, old, after), seen.disagreement(after=True)
    outcomes = fit_outcomes(seen, factored, dynamics.sizes, variant, noise)
    counts = np.bincount(seen.codes, weights=seen.count, minlength=len(seen.rewards))
    equal = len(counts) > MOST_WEIGHED
    worth = np.ones(len(counts)) if equal else 1 / np.maximum(counts, 1)
    return Chances(dynamics, drift, outcomes, tuple(worth.tolist()), seen.rewards)


def _fit(seen: Transitions, layout: Layout, bits: float) -> tuple[Drift, FactorDynamics] | None:
    """Estimate how often each action takes which step, by expectation maximisation.

    The state has no moves but these steps.
    """
    radices = tuple(radix for part in layout for radix in part)
    old, after = seen.in_factors(layout)
    steps, index = np.unique(after - old, axis=0, return_inverse=True)
    counts = np.bincount(index.reshape(-1), weights=seen.count)
    steps = steps[np.argsort(-counts, kind="stable")[:MOST_STEPS]]
    drift = Drift(steps, np.full((seen.encoding.actions, len(steps)), 1 / len(steps)))
    lands = (drift.landing(old, radices) == after[:, None]).all(2)
    if not lands.any():
        return None
    shares = drift.shares
    for _ in range(ROUNDS):
        belief = shares[seen.action] * lands
        belief /= np.maximum(belief.sum(1, keepdims=True), 1e-12)
        totals = np.zeros_like(shares)
        np.add.at(totals, seen.action, belief * seen.count[:, None])
        shares = totals / np.maximum(totals.sum(1, keepdims=True), 1e-12)
    shares = np.where(shares < LEAST_SHARE, 0.0, shares)
    for action in range(len(shares)):
        rows = seen.action == action
        shares[action] = _simplest(shares[action], lands[rows], seen.count[rows])
    chance = (shares[seen.action] * lands).sum(1)
    bits -= float((seen.count * np.log2(np.maximum(chance, 2**-UNFORESEEN_BITS))).sum())
    bits += float(np.count_nonzero(shares) * PARAMETER_BITS + len(steps) * sum(map(log2, radices)))
    moves = tuple(
        FactorMove(radix, wraps=False, key=None, deltas=steps[:, [factor]])
        for factor, radix in enumerate(radices)
    )
    dynamics = FactorDynamics(layout, Sizes(radices, len(shares)), moves, None, (), (), bits)
    return Drift(steps, shares), dynamics


def _simplest(shares: np.ndarray, lands: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Make some of the steps equally likely where that is shorter to describe."""
    order = np.argsort(-shares, kind="stable")
    order = order[shares[order] > 0]
    chosen = [order[:number] for number in range(1, len(order) + 1)]
    if len(order) <= MOST_SUBSETS:
        chosen = [np.array(c) for n in range(1, len(order) + 1) for c in combinations(order, n)]
    choices = np.vstack([shares, np.zeros((len(chosen), len(shares)))])
    for number, steps in enumerate(chosen, 1):
        choices[number, steps] = 1 / len(steps)
    chance = np.maximum(choices @ lands.T, 2**-UNFORESEEN_BITS)
    prices = -(np.log2(chance) * count).sum(1)
    prices[0] += PARAMETER_BITS * np.count_nonzero(shares)
    best: np.ndarray = choices[int(prices.argmin())]
    return best


STEP = '''
def step(self, action):
    """Answer with what is likeliest: the next state, the reward and the end, each by itself."""
    states, rewards, ends = {{}}, {{}}, {{}}
    for (*state, reward, terminated), chance in self.chances(action).items():
        worth = chance{worth}
        rewards[reward] = rewards.get(reward, 0) + worth
        ends[terminated] = ends.get(terminated, 0) + worth
        if not terminated:
            states[tuple(state)] = states.get(tuple(state), 0) + worth
    if states:
        {state} = max(states, key=states.get)
    return self.observation(), max(rewards, key=rewards.get), max(ends, key=ends.get)
'''


def outcomes_lines(
    chances: str, names: list[str], radices: list[int], rules: list[str], read: list[str]
) -> list[str]:
    """Write the function that lists what may follow."""
    subject = as_one([f"{name}_step" for name in names])
    landings = [
        f"    new_{name} = min(max({name} + {name}_step, 0), {radix - 1})"
        for name, radix in zip(names, radices, strict=True)
    ]
    new = listed(names, "new_")
    return [
        "def chances(self, action):",
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


def likeliest_lines(constants: Constants, names: list[str], worth: dict[str, float]) -> list[str]:
    """Write the function that answers with the likeliest outcome."""
    factor = ""
    if len(worth) > 1:
        display = "{" + ", ".join(f"{reward}: {value:.3g}" for reward, value in worth.items()) + "}"
        name = constants.add("WORTH", display, "what a prediction weighs: rare rewards more")
        factor = f" * {name}[reward]"
    return STEP.format(worth=factor, state=targets(names, "self.")).strip().split("\n")
