"""Environments in which chance decides: what is drawn, what follows each draw, how likely it is."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete.chance_tables import ChanceTable, Shares
from cwm_induction.discrete.draws import DrawnTransitions, Steps
from cwm_induction.discrete.program_text import DiscreteModel
from cwm_induction.discrete.transitions import Transitions

NOISY = 0.02
"""Share of equal draws with unusual rewards or ends from which on chance decides these too."""

TURNS = 6
"""Turns of asking what explains rows, and how likely it is: each brings them nearer."""

STUCK = "stuck"
"""The condition that the step which an action intends leads nowhere."""


class Aside(NamedTuple):
    """A factor that changes by chance of its own: its steps, and how likely they are."""

    factor: int
    steps: Steps
    table: ChanceTable


class Payment(NamedTuple):
    """Rewards and ends that chance decides: the pairs there are, and how likely they are."""

    pairs: tuple[tuple[float, bool], ...]
    table: ChanceTable


@dataclass(frozen=True)
class ChanceModel:
    """What was found: `model` says what follows a draw, and `table` how likely each draw is.

    With `roles` the table is about what a step is to the one that an action intends, the same
    for all actions: `roles` has the number of that for every action and step, or -1.
    """

    drawn: DrawnTransitions
    model: DiscreteModel
    table: ChanceTable
    roles: np.ndarray | None
    asides: tuple[Aside, ...]
    payment: Payment | None
    kinds: tuple[str, ...] = ()

    def chances(self, shares: Shares, action: int) -> dict[int, Fraction]:
        """Return how likely each draw is for an action, at the end of the conditions."""
        draws = self.drawn.draws
        if self.roles is None:
            pairs = zip(draws.numbers, shares, strict=True)
            return {number: share for number, share in pairs if share}
        roles = self.roles[action].tolist()
        found = {
            number: shares[role] / roles.count(role)
            for number, role in zip(draws.numbers, roles, strict=True)
            if role >= 0 and shares[role]
        }
        whole = sum(found.values(), Fraction(0))
        return {number: share / whole for number, share in found.items()}

    def words(self, shares: Shares) -> str:
        """Say in words how likely an action is done as intended, or how else."""
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
        """Return how many values a factor has."""
        return self.model.dynamics.sizes.radices[factor]


def chance_model(drawn: DrawnTransitions, model: DiscreteModel, by_chance: bool) -> ChanceModel:
    """Say how likely draws are, once it is known what follows them."""
    seen, draws = drawn.seen, drawn.draws
    sure = np.isin(seen.action, draws.certain)
    old, after = seen.in_factors(drawn.layout)
    lands = drawn.landing | _foreseen(drawn, model, by_chance)
    columns = {"action": seen.action, **{f"old {n}": values for n, values in enumerate(old.T)}}
    drawing = {name: values[~sure] for name, values in columns.items()}
    inner, count = lands[~sure], seen.count[~sure]
    shares = draws.shares[seen.action[~sure]]
    table = _table(drawing, inner, shares, count)
    roles: np.ndarray | None = None
    kinds: tuple[str, ...] = ()
    if (read := _roles(drawn)) is not None:
        drawing[STUCK] = _stuck(drawn, model)[~sure]
        each = np.eye(len(read[1]))[read[0][seen.action[~sure]]]
        possible = (inner[:, :, None] * each * (shares > 0)[:, :, None]).max(axis=1)
        first = (shares[:, :, None] * each).sum(axis=1)
        alike = _table(drawing, possible > 0, first, count)
        if alike.bits <= table.bits:
            table, (roles, kinds) = alike, read
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
    """Grow a table of what may explain each row, as likely as the table before says it is."""
    table = ChanceTable.of(columns, np.zeros(lands.shape))
    for _ in range(TURNS):
        belief = lands * shares
        belief = belief / np.maximum(belief.sum(1, keepdims=True), 1e-12)
        table = ChanceTable.of(columns, belief * count[:, None])
        shares = table.chances(columns, len(count))
    return table


def is_paid_by_chance(drawn: Transitions) -> bool:
    """Whether equal draws that lead to equal states differ in reward or end."""
    return drawn.contradicts and drawn.disagreement(after=True) >= NOISY


def unpaid(drawn: Transitions) -> Transitions:
    """Return transitions of which neither reward nor end is known."""
    table = np.column_stack([drawn.before, drawn.action, drawn.after])
    unique, index = np.unique(table, axis=0, return_inverse=True)
    width = drawn.before.shape[1]
    nothing = np.zeros(len(unique), dtype=np.int64)
    return replace(
        drawn,
        before=unique[:, :width],
        action=unique[:, width],
        after=unique[:, width + 1 :],
        codes=nothing,
        done=nothing,
        count=np.bincount(index.reshape(-1), weights=drawn.count).astype(np.int64),
        rewards=(0.0,),
    )


def _foreseen(drawn: DrawnTransitions, model: DiscreteModel, by_chance: bool) -> np.ndarray:
    """Say which draws lead where each row led, by the rules that were found."""
    seen, axes = drawn.seen, list(drawn.draws.axes)
    after = seen.in_factors(drawn.layout)[1][:, axes]
    found = np.zeros(drawn.landing.shape, dtype=bool)
    for step in range(len(drawn.draws.numbers)):
        number = drawn.draws.follow(seen.action, np.full(len(after), step))
        moved, rewards, done = model.predict(seen.before, number)
        ends = replace(seen, after=moved).in_factors(drawn.layout)[1][:, axes]
        same = (ends == after).all(axis=1)
        if not by_chance:
            same &= (np.abs(rewards - seen.paid) < 1e-6) & (done == seen.done)
        found[:, step] = same
    return found


def _stuck(drawn: DrawnTransitions, model: DiscreteModel) -> np.ndarray:
    """Say where the step that the action intends leads nowhere."""
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
    """Return numbers of what steps are to the intended ones: the same, to a side, back.

    0 is the intended step itself. Also return words for them. None where there is no such thing.
    """
    draws = drawn.draws
    values = draws.steps.values
    if draws.both or len(draws.intended) < 2 or not draws.steps.added.all() or values.shape[1] > 2:
        return None
    found: dict[tuple[int, ...], int] = {(0,): 0}
    roles = np.full(draws.shares.shape, -1)
    for action, meant in draws.intended.items():
        ahead = values[meant]
        for step, value in enumerate(values):
            if draws.shares[action, step] > 0 or step == meant:
                along = int(ahead @ value), int(value @ value)
                across = ahead[:-1] * value[1:] - ahead[1:] * value[:-1]
                key = (0,) if step == meant else (*along, *across.tolist())
                roles[action, step] = found.setdefault(key, len(found))
    return roles, tuple(map(_kind, found))


def _kind(key: tuple[int, ...]) -> str:
    """Say what a step is to the intended one."""
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
    """Say how a factor changes by chance of its own."""
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
    """Say how likely rewards and ends are."""
    pairs, index = np.unique(np.stack([seen.codes, seen.done], axis=1), axis=0, return_inverse=True)
    counts = np.zeros((len(seen.count), len(pairs)))
    counts[np.arange(len(counts)), index.reshape(-1)] = seen.count
    found = tuple((seen.rewards[code], bool(done)) for code, done in pairs.tolist())
    return Payment(found, ChanceTable.of(columns, counts))
