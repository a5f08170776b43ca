"""Balances: sums of whole numbers with whole weights, such as `stock + due - demand_next`."""

from collections.abc import Sequence

import numpy as np

from cwm_induction.chance.quantities import (
    KnownQuantity,
    OutcomeRows,
    clipped,
    constant,
    is_whole,
    plus,
    shifted,
)

Array = np.ndarray

MAX_WEIGHT = 9
"""Largest weight; larger ones are rates, not counts per item."""

MAX_PARTS = 6
"""Maximum number of quantities in a balance: more would fit by chance."""

NEAR_WHOLE = 0.2
"""Maximum distance of a fitted weight from a whole number, as noise moves weights."""

FEWEST_AT_LIMIT, STAYS = 3, 0.9
"""A limit needs this many rows beyond it, and this share of the rows there must have its value."""

ROUNDS = 6
"""Rounds of reweighted least squares, which approximate the least sum of absolute errors."""


def balances(
    values: Array, limits: tuple[float, float], rows: OutcomeRows, groups: Sequence[Array]
) -> list[KnownQuantity]:
    """Return sums of known quantities that an output equals, or follows up to noise.

    Args:
        values: The output in every row.
        limits: Lower and upper bound of the output; rows at a bound show no balance.
        rows: The known quantities.
        groups: Masks of rows that may share a balance.
    """
    parts = [part for part in rows.known if is_whole(part.values) and np.ptp(part.values) > 0]
    if not parts:
        return []
    free = (values > limits[0]) & (values < limits[1])
    found: dict[str, KnownQuantity] = {}
    for group in groups:
        for least in (group & free, group):
            balance = _fitted(values, parts, least)
            if balance is not None:
                balance = _limited(balance, values, group)
                found.setdefault(balance.text, balance)
    return list(found.values())


def _fitted(values: Array, parts: Sequence[KnownQuantity], group: Array) -> KnownQuantity | None:
    """Return the sum with rounded weights, or None if the weights are not near whole numbers."""
    parts = [part for part in parts if np.ptp(part.values[group]) > 0] if group.any() else []
    if not parts or group.sum() < 5 * (len(parts) + 1):
        return None
    table = np.stack([*(part.values[group] for part in parts), np.ones(int(group.sum()))], axis=1)
    sizes = np.maximum(np.abs(table).max(axis=0), 1e-9)
    scaled, goal = table / sizes, values[group]
    trust = np.ones(len(goal))
    for _ in range(ROUNDS):
        weights = np.linalg.lstsq(scaled * trust[:, None], goal * trust, rcond=1e-9)[0]
        error = np.abs(goal - scaled @ weights)
        trust = 1 / np.sqrt(error + 1e-2 * np.abs(goal).max() * 1e-2 + 1e-6)
    weights = weights / sizes
    whole = np.rint(weights[:-1])
    used = np.flatnonzero(whole)
    if not 1 <= len(used) <= MAX_PARTS or np.abs(whole).max() > MAX_WEIGHT:
        return None
    if np.abs(weights[:-1] - whole).max() > NEAR_WHOLE:
        return None
    return _written(parts, whole, float(np.median(goal - table[:, :-1] @ whole).round()))


def _limited(balance: KnownQuantity, values: Array, group: Array) -> KnownQuantity:
    """Limit a sum to the extreme values of the output, if the output stays there beyond them."""
    low, high = float(values[group].min()), float(values[group].max())
    under, over = balance.values < low, balance.values > high
    below, above = (values[group & under] == low), (values[group & over] == high)
    return clipped(
        balance,
        low if below.sum() >= FEWEST_AT_LIMIT and below.mean() > STAYS else -np.inf,
        high if above.sum() >= FEWEST_AT_LIMIT and above.mean() > STAYS else np.inf,
    )


def _written(parts: Sequence[KnownQuantity], whole: Array, rest: float) -> KnownQuantity:
    """Write a sum, positive parts first."""
    total = constant(0, parts[0].values)
    for place in sorted(np.flatnonzero(whole).tolist(), key=lambda n: (whole[n] < 0, n)):
        size = abs(int(whole[place]))
        text = parts[place].text if size == 1 else f"{size} * {parts[place].text}"
        amount = KnownQuantity(text, size * parts[place].values)
        total = plus(total, 1 if whole[place] > 0 else -1, amount)
    return shifted(total, rest)
