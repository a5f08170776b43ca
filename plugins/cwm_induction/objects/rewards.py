"""Rules for the reward and the end of an episode, over objects and words of the mission."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from cwm_induction.decision_list import Spend
from cwm_induction.objects.deciding import DecidingCases, DecidingCondition
from cwm_induction.objects.effects import needed
from cwm_induction.objects.experience import Experience


class RewardAndEnd(NamedTuple):
    """The reward of a step, and whether it ends the episode."""

    reward: float
    done: bool


class RewardRules(NamedTuple):
    """Outcomes with their conditions, and the outcome if no condition holds."""

    rules: list[tuple[DecidingCondition, RewardAndEnd]]
    otherwise: RewardAndEnd


def fit_outcomes(seen: Experience, spend: Spend) -> RewardRules:
    """Return rules for rewards and ends, the rarest outcomes first.

    The rules test the state after a step and the objects that the mission names, so that they
    also hold for other missions.
    """
    outcomes = [RewardAndEnd(row.reward, row.done) for row in seen.rows]
    [(otherwise, _), *others] = Counter(outcomes).most_common() or [(RewardAndEnd(0.0, False), 0)]
    if not others:
        return RewardRules([], otherwise)
    situations = DecidingCases(seen.columns(seen.of_outcomes(), seen.scenes(after=True)), spend)
    rules = []
    for outcome, _ in reversed(others):
        wanted = np.array([each == outcome for each in outcomes])
        condition = situations.condition(wanted, ~wanted)
        if condition.products:
            rules.append((condition, outcome))
    return RewardRules(rules, otherwise)


def write_reward(seen: Experience, outcomes: RewardRules) -> str:
    """Write the rules as a function of a mission, two states and the action between them."""
    lines = []
    for condition, outcome in outcomes.rules:
        lines += [f"    if {condition}:", f"        return {outcome.reward!r}, {outcome.done!r}"]
    roles = needed(seen.roles, "\n".join(lines))
    head = [
        "def reward(mission, state, action, after):",
        '    """Return the reward of a step, and whether it ends the episode."""',
    ]
    if roles:
        head.append("    agent = after[0]")
    if any("dx" in text for text in roles.values()):
        faces = seen.language.faces
        way = "DIRECTIONS.get(agent.direction" if faces else "MOVES.get(action"
        head.append(f"    dx, dy = {way}, (0, 0))")
    head += [
        f"    {name} = {text.replace('state', 'after')}"
        for name, text in roles.items()
        if name != "agent"
    ]
    last = f"    return {outcomes.otherwise.reward!r}, {outcomes.otherwise.done!r}"
    return "\n".join([*head, *lines, last, ""])
