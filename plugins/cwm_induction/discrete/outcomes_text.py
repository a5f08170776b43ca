"""The text of when episodes end and what is rewarded."""

from cwm_induction.discrete.conditions import WIDTH, broken, either
from cwm_induction.discrete.formula_text import formula_lines
from cwm_induction.discrete.tables import Table
from cwm_induction.discrete.wording import Wording, chain, mentions


def outcome_lines(wording: Wording) -> list[str]:
    """Write when the episode ends and what is rewarded, in the order that was found."""
    parts = [_end(wording), _reward(wording)]
    if wording.model.outcomes.reward_first:
        parts.reverse()
    lines = [line for part in parts for line in part]
    flags, text = wording.dynamics.sizes.flags, "\n".join(lines)
    if mentions(text, "total_before"):
        names = [wording.names[flag] for flag in flags]
        lines = [*broken("total_before = ", " + ".join(names)), *lines]
    if mentions(text, "total"):
        lines = [*broken("total = ", " + ".join(map(wording.after, flags))), *lines]
    return lines


def _end(wording: Wording) -> list[str]:
    """Write when the episode ends."""
    found = wording.model.outcomes
    ends = either(wording.speaker.conditions(found.done.rules, "TERMINAL"))
    if found.always:
        ends = "True" if ends == "False" else f"not ({ends})"
    return broken("terminated = ", ends)


def _reward(wording: Wording) -> list[str]:
    """Write what is rewarded: a rule, a sum, or a sum and a bonus by a rule."""
    formula, rewards = wording.model.formula, wording.rewards
    if formula is None:
        return _rewarded(wording, "reward")
    nothing = len(rewards) == 1 and not float(rewards[0])
    lines = [] if nothing else _rewarded(wording, "bonus")
    start = "bonus" if lines else ""
    return [*lines, *formula_lines(formula, start, wording.names.__getitem__, wording.after)]


def _rewarded(wording: Wording, target: str) -> list[str]:
    """Write the rule that gives a reward or bonus."""
    rules, values = wording.model.outcomes.reward.rules, dict(enumerate(wording.rewards))
    if len(rules.layers) == 1 and isinstance(rules.layers[0], Table):
        table = rules.layers[0]
        if len(table.labels) > 1 and len(set(table.labels.values())) > 1:
            found = wording.speaker.lookup(table, values, target.upper(), values[0])
            return [f"{target} = {found}"]
    conditions = wording.speaker.conditions(rules, "REWARDED")
    if len(conditions) == 1:
        expression, label = conditions[0]
        line = f"{target} = {values[label]} if {expression} else {values[0]}"
        if len(line) <= WIDTH:
            return [line]
    return chain(conditions, target, values, default=values[0])
