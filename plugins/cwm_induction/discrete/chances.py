"""Models of random environments: the draws, their results, and their probabilities."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete.chance_tables import ChanceTable, Shares
from cwm_induction.discrete.draws import DrawnTransitions, Steps, merged
from cwm_induction.discrete.program_text import DiscreteModel
from cwm_induction.discrete.transitions import Transitions

NOISY = 0.02
"""Rewards and ends are random if this share of equal draws has uncommon ones."""

TURNS = 6
"""Iterations that alternate between the explanation of rows and its probabilities."""

STUCK = "stuck"
"""Name of the condition that the intended step of an action changes nothing."""


class Aside(NamedTuple):
    """A factor with independent random steps, and a table of their probabilities."""

    factor: int
    steps: Steps
    table: ChanceTable


class Payment(NamedTuple):
    """Random pairs of reward and end, and a table of their probabilities."""

    pairs: tuple[tuple[float, bool], ...]
    table: ChanceTable


@dataclass(frozen=True)
class ChanceModel:
    """A random model: `model` predicts the result of a draw, `table` its probability.

    If `roles` is set, the table has the probabilities of roles, which are the same for all
    actions. The role of a step is its direction relative to the intended step, as described by
    `kinds`. `roles` (actions, steps) contains indices of roles, or -1 for steps without a role.
    """

    drawn: DrawnTransitions
    model: DiscreteModel
    table: ChanceTable
    roles: np.ndarray | None
    asides: tuple[Aside, ...]
    payment: Payment | None
    kinds: tuple[str, ...] = ()

    def chances(self, shares: Shares, action: int) -> dict[int, Fraction]:
        """Return the probability of each draw of an action, given the shares of a leaf."""
        draws = self.drawn.draws
        if self.roles is None:
            pairs = zip(draws.numbers, shares, strict=True)
            return {number: share for number, share in pairs if share}
        roles = self.roles[action].tolist()
        probabilities = {
            number: shares[role] / roles.count(role)
            for number, role in zip(draws.numbers, roles, strict=True)
            if role >= 0 and shares[role]
        }
        total = sum(probabilities.values(), Fraction(0))
        return {number: share / total for number, share in probabilities.items()}

    def words(self, shares: Shares) -> str:
        """Describe the probabilities of the roles of steps in words."""
        kinds = dict.fromkeys(self.kinds, Fraction(0))
        counts = dict.fromkeys(self.kinds, 0)
        roles = self.roles if self.roles is not None else np.zeros((0, 0), np.int64)
        most = [
            max((row.tolist().count(role) for row in roles), default=1)
            for role in range(len(self.kinds))
        ]
        for role, kind in enumerate(self.kinds):
            kinds[kind] += shares[role]
            counts[kind] += most[role]
        parts = [
            f"{kind} {share / counts[kind]}{' each' if counts[kind] > 1 else ''}"
            for kind, share in kinds.items()
            if share
        ]
        return ", ".join(parts)

    def drawn_radix(self, factor: int) -> int:
        """Return the number of values of a factor."""
        return self.model.dynamics.sizes.radices[factor]


def chance_model(drawn: DrawnTransitions, model: DiscreteModel, by_chance: bool) -> ChanceModel:
    """Fit the probabilities of draws, given a model of their results."""
    seen, draws = drawn.seen, drawn.draws
    sure = np.isin(seen.action, draws.certain)
    old, after = seen.in_factors(drawn.layout)
    lands = drawn.landing | _predicted(drawn, model, by_chance)
    columns = {"action": seen.action, **{f"old {n}": values for n, values in enumerate(old.T)}}
    drawing = {name: values[~sure] for name, values in columns.items()}
    inner, count = lands[~sure], seen.count[~sure]
    shares = draws.shares[seen.action[~sure]]
    table = _table(drawing, inner, shares, count)
    roles: np.ndarray | None = None
    kinds: tuple[str, ...] = ()
    if (named_roles := _roles(drawn)) is not None:
        drawing[STUCK] = _stuck(drawn, model)[~sure]
        of_role = np.eye(len(named_roles[1]))[named_roles[0][seen.action[~sure]]]
        possible = (inner[:, :, None] * of_role * (shares > 0)[:, :, None]).max(axis=1)
        first = (shares[:, :, None] * of_role).sum(axis=1)
        role_table = _table(drawing, possible > 0, first, count)
        if role_table.bits <= table.bits:
            table, (roles, kinds) = role_table, named_roles
    asides = tuple(_aside(factor, columns, old, after, seen) for factor in drawn.aside)
    asides = tuple(one for one in asides if len(one.steps.values) > 1)
    payment = None
    if by_chance:
        payment = _payment(
            {
                **columns,
                **{f"new {n}": values for n, values in enumerate(after.T)},
                **{f"change {n}": values for n, values in enumerate((after - old).T)},
            },
            seen,
        )
    return ChanceModel(drawn, model, table, roles, asides, payment, kinds)


def _table(
    columns: Mapping[str, np.ndarray], lands: np.ndarray, shares: np.ndarray, count: np.ndarray
) -> ChanceTable:
    """Fit a table of the draws that explain each row by expectation maximisation."""
    table = ChanceTable.of(columns, np.zeros(lands.shape))
    for _ in range(TURNS):
        belief = lands * shares
        belief = belief / np.maximum(belief.sum(1, keepdims=True), 1e-12)
        table = ChanceTable.of(columns, belief * count[:, None])
        shares = table.chances(columns, len(count))
    return table


def is_paid_by_chance(drawn: Transitions) -> bool:
    """Return whether equal draws with equal next states often differ in reward or end."""
    return drawn.contradicts and drawn.disagreement(after=True) >= NOISY


def unpaid(drawn: Transitions) -> Transitions:
    """Return transitions without rewards and ends."""
    nothing = np.zeros(len(drawn.count), dtype=np.int64)
    return merged(replace(drawn, codes=nothing, done=nothing, rewards=(0.0,)))


def _predicted(drawn: DrawnTransitions, model: DiscreteModel, by_chance: bool) -> np.ndarray:
    """Return a mask (rows, draws) of the draws whose predicted result agrees with each row."""
    seen, axes = drawn.seen, list(drawn.draws.axes)
    after = seen.in_factors(drawn.layout)[1][:, axes]
    explains = np.zeros(drawn.landing.shape, dtype=bool)
    for step in range(len(drawn.draws.numbers)):
        number = drawn.draws.follow(seen.action, np.full(len(after), step))
        moved, rewards, done = model.predict(seen.before, number)
        ends = replace(seen, after=moved).in_factors(drawn.layout)[1][:, axes]
        agrees = (ends == after).all(axis=1)
        if not by_chance:
            agrees &= (np.abs(rewards - seen.paid) < 1e-6) & (done == seen.done)
        explains[:, step] = agrees
    return explains


def _stuck(drawn: DrawnTransitions, model: DiscreteModel) -> np.ndarray:
    """Return 1 for rows whose intended step changes nothing, and 0 for other rows."""
    seen, draws = drawn.seen, drawn.draws
    meant = np.zeros(seen.encoding.actions, dtype=np.int64)
    for action, step in draws.intended.items():
        meant[action] = draws.numbers[step]
    moved = model.predict(seen.before, meant[seen.action])[0]
    ends = replace(seen, after=moved).in_factors(drawn.layout)
    axes = list(draws.axes)
    same: np.ndarray = (ends[0][:, axes] == ends[1][:, axes]).all(axis=1)
    return same.astype(np.int64)


def _roles(drawn: DrawnTransitions) -> tuple[np.ndarray, tuple[str, ...]] | None:
    """Return the roles of steps (actions, steps), such as sideways or back, and their names.

    Role 0 is the intended step. Return None if steps have no direction.
    """
    draws = drawn.draws
    values = draws.steps.values
    if draws.both or len(draws.intended) < 2 or not draws.steps.added.all() or values.shape[1] > 2:
        return None
    role_numbers: dict[tuple[int, ...], int] = {(0,): 0}
    roles = np.full(draws.shares.shape, -1)
    for action, meant in draws.intended.items():
        ahead = values[meant]
        for step, value in enumerate(values):
            if draws.shares[action, step] > 0 or step == meant:
                along = int(ahead @ value), int(value @ value)
                across = ahead[:-1] * value[1:] - ahead[1:] * value[:-1]
                key = (0,) if step == meant else (*along, *across.tolist())
                roles[action, step] = role_numbers.setdefault(key, len(role_numbers))
    return roles, tuple(map(_kind, role_numbers))


def _kind(key: tuple[int, ...]) -> str:
    """Return the name of a role."""
    if len(key) == 1:
        return "as intended"
    along, length = key[:2]
    if not length:
        return "not at all"
    return "further" if along > 0 else "backwards" if along < 0 else "to either side"


def _aside(
    factor: int,
    columns: Mapping[str, np.ndarray],
    old: np.ndarray,
    after: np.ndarray,
    seen: Transitions,
) -> Aside:
    """Fit the independent random steps of a factor."""
    before, ends = old[:, factor], after[:, factor]
    rows = seen.done == 0
    kinds = [np.unique(part[rows]) for part in (ends - before, ends)]
    added = len(kinds[0]) <= 3
    values = kinds[0] if added else kinds[1]
    steps = Steps(values[:, None], np.array([added]))
    chosen = np.searchsorted(values, (ends - before if added else ends)[rows])
    counts = np.zeros((int(rows.sum()), len(values)))
    counts[np.arange(len(counts)), chosen] = seen.count[rows]
    table = ChanceTable.of({name: part[rows] for name, part in columns.items()}, counts)
    return Aside(factor, steps, table)


def _payment(columns: Mapping[str, np.ndarray], seen: Transitions) -> Payment:
    """Fit the probabilities of pairs of reward and end."""
    pairs, index = np.unique(np.stack([seen.codes, seen.done], axis=1), axis=0, return_inverse=True)
    counts = np.zeros((len(seen.count), len(pairs)))
    counts[np.arange(len(counts)), index.reshape(-1)] = seen.count
    reward_ends = tuple((seen.rewards[code], bool(done)) for code, done in pairs.tolist())
    return Payment(reward_ends, ChanceTable.of(columns, counts))
