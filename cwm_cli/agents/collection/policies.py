"""How episodes are played, from place to place of a split."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

Aim = Literal["reward", "novelty"]


class Way(NamedTuple):
    """What the actions of an episode are planned for, and how well.

    `reward` is as much of it as possible, `novelty` is to see what no earlier
    episode of the split has seen. `effort` is the share of the budget that is
    spent. A share `chance` of the actions is random. As long as no episode of
    the split has come to an end, up to so many `starts` are tried for one that does.
    """

    aim: Aim
    effort: float = 1.0
    chance: float = 0.0
    starts: int = 1


Ways = Sequence[Way | None]
"""The way of each place, over and over; None is at random."""

POLICIES: Mapping[str, Ways] = {
    "random": (None,),
    "planner": (Way("reward"),),
    "curated": (
        None,
        Way("reward", effort=0.02, chance=0.2),
        None,
        Way("reward", effort=0.1, chance=0.1),
        None,
        Way("reward"),
        None,
        Way("novelty", starts=3),
        None,
        Way("novelty", starts=3),
    ),
}
"""`curated` goes from random to good: budgets rise, and what is rare is looked for.

Random actions alone hardly meet goals, and good ones hardly failures; who looks for what was
not seen yet meets both, at the edges of what can be reached. Of ten trajectories the fourth, the
seventh and the tenth are never fitted to: there is a good one and a novel one among the others.
"""
