"""What a program says about the data that it was induced from."""

import textwrap

import numpy as np

from cwm_induction.discrete.names import factor_names
from cwm_induction.discrete.transitions import Transitions
from cwm_induction.discrete.wording import Model

WIDTH = 92
MOST_REWARDS = 8


def title(model: Model) -> str:
    """Say in one line how the state is read."""
    names, radices = factor_names(model.dynamics), model.dynamics.sizes.radices
    parts = [f"{name} 0 to {radix - 1}" for name, radix in zip(names, radices, strict=True)]
    if len(parts) == 1:
        return f"A state is one number from 0 to {radices[0] - 1}."
    text = f"A state is {_listed(parts)}."
    return text if len(text) <= WIDTH else f"A state has {len(parts)} parts."


def findings(seen: Transitions, model: Model, *more: str) -> list[str]:
    """Say what was seen and what was not, and whatever more there is to say."""
    sentences = [*_seen(seen)]
    if seen.contradicts:
        sentences.append("Equal situations had different outcomes: the likeliest is given.")
    names = factor_names(model.dynamics)
    first = seen.frame.action_lows[0] if seen.frame.action_space.kind == "discrete" else 0
    for action, factor in model.dynamics.assumed:
        sentences.append(
            f"Action {first + action} was only seen where it changes nothing; it is assumed to "
            f"be the opposite of the other move of the {names[factor]}."
        )
    landmarks = model.dynamics.sizes.landmarks
    if landmarks and landmarks.possible and landmarks.optimistic:
        values = _listed([str(value) for value in landmarks.possible])
        sentences.append(
            f"Which cell {names[landmarks.item]} {values} stands for was not seen: what is brought "
            "there is taken to arrive in every cell that nothing ruled out."
        )
    return textwrap.wrap(" ".join([*sentences, *more]), WIDTH)


def seen_findings(seen: Transitions) -> list[str]:
    """Say what was seen and what was not, in lines."""
    return textwrap.wrap(" ".join(_seen(seen)), WIDTH)


def _seen(seen: Transitions) -> list[str]:
    """Say what was seen and what was not."""
    return [
        f"Induced from {_count(int(seen.count.sum()), 'transition')} of "
        f"{_count(seen.episodes, 'episode')}.",
        _coverage(seen),
        _endings(seen),
        _rewards(seen),
    ]


def _coverage(seen: Transitions) -> str:
    """Say how many situations were seen."""
    pairs = len(np.unique(np.column_stack([seen.before, seen.action]), axis=0))
    if len(seen.frame.sizes) > 1:
        return f"{pairs} different (observation, action) pairs were observed."
    total = seen.frame.sizes[0] * seen.frame.actions
    return f"{pairs} of {total} (observation, action) pairs were observed."


def _endings(seen: Transitions) -> str:
    """Say how often an episode was seen to end."""
    ends = int(seen.count[seen.done == 1].sum())
    if not ends:
        return "No terminal transition was seen, so no episode ends here."
    return f"{_count(ends, 'terminal transition')} {'was' if ends == 1 else 'were'} seen."


def _rewards(seen: Transitions) -> str:
    """Say which rewards were seen and how often."""
    counts = np.bincount(seen.codes, weights=seen.count).astype(int).tolist()
    if len(counts) == 1:
        return f"The reward was always {seen.rewards[0]}."
    if len(counts) > MOST_REWARDS:
        return f"{len(counts)} different rewards were seen."
    parts = [
        f"{reward} ({_times(count)})" for reward, count in zip(seen.rewards, counts, strict=True)
    ]
    return f"Rewards seen: {_listed(parts)}."


def _times(count: int) -> str:
    """Say how often."""
    return "once" if count == 1 else f"{count} times"


def _count(number: int, noun: str) -> str:
    """Write a number and its noun."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _listed(parts: list[str]) -> str:
    """Join parts with commas and a last `and`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
