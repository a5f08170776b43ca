"""Guesses about states that no transition led to."""

from dataclasses import replace
from typing import Any

import numpy as np

from cwm_induction.discrete.dynamics import Dynamics
from cwm_induction.discrete.factors import join
from cwm_induction.discrete.transitions import Transitions


def with_an_end(seen: Transitions, dynamics: Dynamics, rank: int) -> Transitions | None:
    """Return the transitions with those imagined that would lead to a state never seen.

    That state is taken to end the episode, as states do that nobody was ever
    seen in again. `rank` is its place among such states, those first that most
    of the known states lead to; None when there are not so many.
    """
    known = np.unique(np.concatenate([seen.before, seen.after]), axis=0)
    places = np.unique(seen.before, axis=0)
    actions = np.unique(seen.action)
    before = np.repeat(places, len(actions), axis=0)
    action = np.tile(actions, len(places))
    after = join(dynamics.predict(before, action).new, dynamics.layout)
    states, index, count = np.unique(after, axis=0, return_inverse=True, return_counts=True)
    fresh = ~(states[:, None] == known[None]).all(axis=2).any(axis=1)
    order = np.argsort(-count, kind="stable")
    candidates = order[fresh[order]]
    if rank >= len(candidates):
        return None
    rows = index.reshape(-1) == candidates[rank]
    return _extended(seen, before[rows], action[rows], after[rows])


def _extended(
    seen: Transitions, before: np.ndarray, action: np.ndarray, after: np.ndarray
) -> Transitions:
    """Add transitions that end the episode, with the reward that ends most often have."""
    ends = seen.codes[seen.done == 1]
    code = int(np.bincount(ends).argmax()) if len(ends) else 0
    new = {"before": before, "action": action, "after": after}
    new |= {name: np.full(len(action), value) for name, value in (("codes", code), ("done", 1))}
    new["count"] = np.ones(len(action), dtype=seen.count.dtype)
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(seen, name), column]) for name, column in new.items()
    }
    return replace(seen, **columns)
