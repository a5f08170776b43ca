"""When episodes end and what is rewarded, as rules about the next state."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete.dynamics import FactorDynamics
from cwm_induction.discrete.expressions import broken, part_of_action, picked
from cwm_induction.discrete.features import FactoredTransitions, Sizes, pick
from cwm_induction.discrete.rule_search import (
    MOST_WEIGHT,
    Variant,
    choose_rules,
    fit_claims,
    table_bits,
)
from cwm_induction.discrete.rules import KEY_BITS, DecisionList, Examples, RuleColumn, error_bits
from cwm_induction.discrete.transitions import Transitions, split

LEAST_REWARDS = 4
LEAST_EXACT = 0.5
REWEIGHTINGS = 40
EXACT = 1e-6
TERM_BITS = 6.0
REWARD_MISS_BITS = 10.0
MOST_TERMS = 40
MOST_PRODUCTS = 120


class RewardTerm(NamedTuple):
    """Something that a reward counts: the value of a factor before or after, how far it moved.

    With an action other than -1 it counts for that action alone; of kind "one" it is 1.
    Of kind "pick" it is the one of the factors in `flags` that `factor` points at before, of
    kind "part" the part `factor` of an action with parts of the sizes in `flags`.
    Of kinds "total" and "total_before" it is how many of the factors in `flags` are set.
    """

    kind: str
    factor: int
    action: int
    flags: tuple[int, ...] = ()

    def values(self, action: np.ndarray, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return what is counted in every row."""
        values = np.ones(len(old))
        if self.kind == "moved":
            values = (old != new).any(axis=1).astype(float)
        elif self.kind == "pick":
            values = pick(old, self.factor, self.flags).astype(float)
        elif self.kind == "part":
            values = np.unravel_index(action, self.flags)[self.factor].astype(float)
        elif self.flags:
            values = (new if self.kind == "total" else old)[:, self.flags].sum(axis=1).astype(float)
        elif self.kind == "far":
            values = np.abs(new - old)[:, self.factor].astype(float)
        elif self.kind != "one":
            values = {"old": old, "new": new}[self.kind][:, self.factor].astype(float)
        return values if self.action < 0 else values * (action == self.action)


class RewardFormula(NamedTuple):
    """A sum of terms, each times a number."""

    terms: tuple[RewardTerm, ...]
    weights: tuple[float, ...]

    @property
    def bits(self) -> float:
        """Description length."""
        return TERM_BITS * (1 + len(self.terms))

    def values(self, action: np.ndarray, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return the sum in every row."""
        total = np.zeros(len(old))
        for term, weight in zip(self.terms, self.weights, strict=True):
            total += weight * term.values(action, old, new)
        return total


def fit_formula(
    action: np.ndarray,
    old: np.ndarray,
    new: np.ndarray,
    rewards: np.ndarray,
    sizes: Sizes,
) -> RewardFormula | None:
    """Find the shortest sum that gives the rewards of most rows."""
    if len(np.unique(rewards)) < LEAST_REWARDS:
        return None
    best, least = None, np.inf
    flags, parts = sizes.flags, sizes.parts
    totals = [RewardTerm(kind, -1, -1, flags) for kind in ("total", "total_before") if flags]
    totals += [RewardTerm("part", n, -1, parts) for n in range(len(parts)) if len(parts) > 1]
    actions = np.unique(action).tolist()
    if len(actions) * len(sizes.picks) <= MOST_PRODUCTS:
        totals += [RewardTerm("pick", p, number, c) for p, c in sizes.picks for number in actions]
    for family in _families(action, old, new):
        terms = totals + family
        columns = np.stack([term.values(action, old, new) for term in terms], axis=1)
        exact = np.abs(columns @ _most_exact(columns, rewards) - rewards) < EXACT
        found = _shortest(terms, columns[exact], rewards[exact]) if exact.any() else None
        if found and exact.mean() >= LEAST_EXACT:
            counts = any(term.factor >= 0 or term.flags for term in found.terms)
            bits = (
                found.bits + (0 if counts else np.inf) + REWARD_MISS_BITS * np.count_nonzero(~exact)
            )
            if bits < least:
                best, least = found, bits
    return best


def _families(action: np.ndarray, old: np.ndarray, new: np.ndarray) -> Iterator[list[RewardTerm]]:
    """Yield lists of what may be counted, the plainest first."""
    factors, actions = range(old.shape[1]), np.unique(action).tolist()
    changing = [factor for factor in factors if (old[:, factor] != new[:, factor]).any()]
    plain = [RewardTerm("one", -1, -1), RewardTerm("moved", -1, -1)]
    after, far = (
        [RewardTerm("new", f, -1) for f in factors],
        [RewardTerm("far", f, -1) for f in changing],
    )
    before = [RewardTerm("old", f, -1) for f in changing]
    each = [RewardTerm("one", -1, number) for number in actions]
    yield plain + far
    yield plain + after
    yield plain + before
    yield plain + after + before
    yield plain + each + after + before
    yield plain + each + after + far
    if len(actions) * len(factors) <= MOST_PRODUCTS:
        products = [RewardTerm("old", f, number) for number in actions for f in factors]
        yield plain + each + products
        yield plain + each + after + before + far + products


def _most_exact(columns: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return weights with the least sum of absolute errors, which few wrong rows do not move."""
    trust, weights = np.ones(len(target)), np.full(columns.shape[1], np.inf)
    for _ in range(REWEIGHTINGS):
        before = weights
        root = np.sqrt(trust)
        weights = np.linalg.lstsq(columns * root[:, None], target * root, rcond=1e-10)[0]
        if np.abs(weights - before).max() < EXACT / 100:
            break
        trust = 1 / np.maximum(np.abs(columns @ weights - target), EXACT)
    solved: np.ndarray = weights
    return solved


def _shortest(
    terms: list[RewardTerm], columns: np.ndarray, target: np.ndarray
) -> RewardFormula | None:
    """Add terms until all rows are exact, then leave out what is not needed."""
    chosen: list[int] = []
    left = target
    norms = np.maximum(np.linalg.norm(columns, axis=0), 1e-12)
    handicap = np.array([0.9 if term.action >= 0 and term.kind != "one" else 1.0 for term in terms])
    while np.abs(left).max(initial=0) > EXACT and len(chosen) < MOST_TERMS:
        gain = np.abs(left @ columns) / norms * handicap
        gain[chosen] = 0
        chosen.append(int(gain.argmax()))
        weights = np.linalg.lstsq(columns[:, chosen], target, rcond=1e-10)[0]
        left = target - columns[:, chosen] @ weights
    for term in list(chosen):
        fewer = [other for other in chosen if other != term]
        if fewer and np.abs(_rest(columns[:, fewer], target)).max() < EXACT:
            chosen = fewer
    rest = _rest(columns[:, chosen], target)
    if not chosen or np.abs(rest).max() > EXACT:
        return None
    weights = np.linalg.lstsq(columns[:, chosen], target, rcond=1e-10)[0].round(9)
    kept = [(terms[n], w) for n, w in zip(chosen, weights.tolist(), strict=True) if w]
    return (
        RewardFormula(tuple(term for term, _ in kept), tuple(w for _, w in kept)) if kept else None
    )


def _rest(columns: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return what the best sum of some columns leaves."""
    weights = np.linalg.lstsq(columns, target, rcond=1e-10)[0]
    rest: np.ndarray = target - columns @ weights
    return rest


DENOMINATORS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 20, 25, 32, 40, 50, 64, 100, 1000, 10000)


def formula_lines(
    formula: RewardFormula, start: str, now: Callable[[int], str], after: Callable[[int], str]
) -> list[str]:
    """Write an assignment to the reward; `now` and `after` name factors before and after a step."""
    groups: dict[tuple[int, float], str] = {}
    for term, weight in zip(formula.terms, formula.weights, strict=True):
        known = (term.action, -weight) in groups
        key = (term.action, -weight if known else weight)
        text = _term(term, now, after)
        if key in groups:
            groups[key] += f" {'-' if known else '+'} {text}"
        else:
            groups[key] = text
    total = start
    for (action, weight), text in groups.items():
        sign = "-" if weight < 0 else "+"
        part = _product(abs(weight), text)
        if action >= 0:
            part = f"(action == {action})" + (f" * {part}" if part != "1" else "")
        total = f"{total} {sign} {part}" if total else f"-{part}" if weight < 0 else part
    return broken("reward = ", total)


def number(value: float) -> str:
    """Write a number shortly, as a fraction where that is exact."""
    for denominator in DENOMINATORS:
        whole = round(value * denominator)
        if whole and abs(whole / denominator - value) < 1e-8:
            plain = repr(whole / denominator)
            return plain if len(plain) < 8 else f"{whole} / {denominator}"
    return repr(value)


def _product(weight: float, text: str) -> str:
    """Write a weight times a sum."""
    if text == "1":
        return number(weight)
    inner = f"({text})" if " + " in text or " - " in text else text
    return inner if weight == 1 else f"{number(weight)} * {inner}"


def _term(term: RewardTerm, now: Callable[[int], str], after: Callable[[int], str]) -> str:
    """Write what a term counts."""
    plain = {"one": "1", "moved": "(not unchanged)"}
    if term.kind == "part":
        return f"({part_of_action(term.flags, term.factor)})"
    if term.kind == "pick":
        return picked([now(cell) for cell in term.flags], now(term.factor))
    if term.kind in plain or term.flags:
        return plain.get(term.kind, term.kind)
    if term.kind == "far":
        return f"abs({after(term.factor)} - {now(term.factor)})"
    return (now if term.kind == "old" else after)(term.factor)


RARITY = 0.4
RARE = 0.005
BOLD = 0.05
"""Share of the price of a claim that is paid for outcomes so rare that missing one is worse."""

CLAIMED = ("change", "gap", "run")
MOST_KINDS = 16


class Rule(NamedTuple):
    """Rules and the columns that they look at."""

    columns: tuple[RuleColumn, ...]
    rules: DecisionList

    def predict(self, scene: FactoredTransitions, sizes: Sizes) -> np.ndarray:
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

    def predict(self, scene: FactoredTransitions, sizes: Sizes) -> FactoredTransitions:
        """Foresee the end and the reward of transitions whose next state is known."""
        for what in ("reward", "done") if self.reward_first else ("done", "reward"):
            if what == "done":
                scene = scene._replace(done=self.done.predict(scene, sizes) ^ int(self.always))
            else:
                scene = scene._replace(reward=self.reward.predict(scene, sizes))
        return scene


def scene_of(seen: Transitions, dynamics: FactorDynamics) -> tuple[FactoredTransitions, float]:
    """Return what outcomes depend on and how often they disagree by nature.

    The next states are the observed ones, or the predicted ones where those are uncertain.
    """
    scene = dynamics.predict(seen.before, seen.action)
    if not seen.is_noisy:
        scene = scene._replace(new=split(seen.after, dynamics.layout))
    return scene, seen.disagreement(after=not seen.is_noisy)


def fit_outcomes(
    seen: Transitions, scene: FactoredTransitions, sizes: Sizes, options: Variant, noise: float
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
    options: Variant
    noise: float

    def rule(self, scene: FactoredTransitions, labels: np.ndarray, *more: str) -> Rule:
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

    def _general(self, scene: FactoredTransitions, usual: Rule, examples: Examples) -> Rule:
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
