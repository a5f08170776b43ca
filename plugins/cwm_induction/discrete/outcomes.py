"""When episodes end and what is rewarded, as rules about the next state."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete.claims import fit_claims, table_bits
from cwm_induction.discrete.dynamics import Dynamics
from cwm_induction.discrete.exceptions import MOST_WEIGHT, Options, choose_rules
from cwm_induction.discrete.factors import split
from cwm_induction.discrete.scene import Scene, Sizes
from cwm_induction.discrete.tables import KEY_BITS, Column, Examples, Rules, error_bits
from cwm_induction.discrete.transitions import Transitions

RARITY = 0.4
RARE = 0.005
BOLD = 0.05
"""Share of the price of a claim that is paid for outcomes so rare that missing one is worse."""

CLAIMED = ("change", "gap", "run")
MOST_KINDS = 16


class Rule(NamedTuple):
    """Rules and the columns that they look at."""

    columns: tuple[Column, ...]
    rules: Rules

    def predict(self, scene: Scene, sizes: Sizes) -> np.ndarray:
        """Return the label of every row."""
        return self.rules.apply(scene.pool(self.columns, sizes))


class Outcomes(NamedTuple):
    """The rules of termination and of reward, and which of them comes first.

    Label 0 of the termination is the usual case `always`, label i of the reward the i-th
    reward. The rule that comes second may look at the result of the first.
    """

    always: bool
    done: Rule
    reward: Rule
    reward_first: bool

    @property
    def bits(self) -> float:
        """Description length."""
        return self.done.rules.bits + self.reward.rules.bits

    def predict(self, scene: Scene, sizes: Sizes) -> Scene:
        """Foresee the end and the reward of transitions whose next state is known."""
        for what in ("reward", "done") if self.reward_first else ("done", "reward"):
            if what == "done":
                scene = scene._replace(done=self.done.predict(scene, sizes) ^ int(self.always))
            else:
                scene = scene._replace(reward=self.reward.predict(scene, sizes))
        return scene


def scene_of(seen: Transitions, dynamics: Dynamics) -> tuple[Scene, float]:
    """Return what outcomes depend on and how often they disagree by nature.

    The next states are the observed ones, or the predicted ones where those are uncertain.
    """
    scene = dynamics.predict(seen.before, seen.action)
    if not seen.is_noisy:
        scene = scene._replace(new=split(seen.after, dynamics.layout))
    return scene, seen.disagreement(after=not seen.is_noisy)


def fit_outcomes(
    seen: Transitions, scene: Scene, sizes: Sizes, options: Options, noise: float
) -> Outcomes:
    """Fit both rules in the order that is shorter to describe."""
    fitting = _Fitting(seen, sizes, options, noise)
    always = bool(2 * seen.count[seen.done == 1].sum() > seen.count.sum())
    labels = seen.done ^ int(always)
    done, reward = fitting.rule(scene, labels), fitting.rule(scene, seen.codes)
    ended = scene._replace(done=done.predict(scene, sizes) ^ int(always))
    paid = scene._replace(reward=reward.predict(scene, sizes))
    after_done = fitting.rule(ended, seen.codes, "done")
    after_reward = fitting.rule(paid, labels, "reward")
    if done.rules.bits + after_done.rules.bits <= reward.rules.bits + after_reward.rules.bits:
        return Outcomes(always, done, after_done, reward_first=False)
    return Outcomes(always, after_reward, reward, reward_first=True)


@dataclass(frozen=True)
class _Fitting:
    """Transitions to which rules are fitted."""

    seen: Transitions
    sizes: Sizes
    options: Options
    noise: float

    def rule(self, scene: Scene, labels: np.ndarray, *more: str) -> Rule:
        """Fit rules; rare labels weigh more, as they do in the score."""
        weights = np.minimum(self.seen.count, MOST_WEIGHT).astype(float)
        counts = np.bincount(labels, weights=self.seen.count)
        rarity = np.maximum(1.0, RARITY * np.log2(counts.sum() / np.maximum(counts, 1)))
        kinds = (
            "new",
            "action",
            "part",
            "old",
            "aimed",
            "same",
            "meets",
            "goal",
            "total",
            "pick",
            *more,
        )
        columns = self.sizes.columns(scene, *kinds)
        price = error_bits(self.noise, max(2, len(counts)))
        rare = counts[counts > 0].min() < RARE * counts.sum()
        pool = replace(scene.pool(columns, self.sizes), caution=BOLD if rare else 1.0)
        examples = Examples(pool, labels, weights * rarity[labels], price)
        usual = Rule(columns, choose_rules(examples, self.options))
        return self._general(scene, usual, examples)

    def _general(self, scene: Scene, usual: Rule, examples: Examples) -> Rule:
        """Return general claims where these are shorter and explain no less than the usual rule."""
        if not self.options.shapes or not examples.labels.any() or examples.kinds > MOST_KINDS:
            return usual
        more = self.sizes.columns(scene, *CLAIMED) if self.sizes.named else ()
        columns = usual.columns + more
        pool = scene.pool(columns, self.sizes)
        claims = fit_claims(replace(examples, pool=pool))
        if claims is None or claims.bits >= table_bits(usual.rules, KEY_BITS):
            return usual
        if examples.loss(claims.apply(pool)) > examples.loss(usual.rules.apply(examples.pool)):
            return usual
        return Rule(columns, claims)
