"""Models of random environments: the draws, their results, and their probabilities.

The program of a model has a method `outcomes`, and a `step` that draws one outcome.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from cwm_induction.discrete.chance_tables import (
    ChanceTable,
    ShareCondition,
    Shares,
    fraction_text,
)
from cwm_induction.discrete.draws import DrawnTransitions, Steps, merged
from cwm_induction.discrete.expressions import action_lines, as_one, bracketed, listed
from cwm_induction.discrete.program_text import DiscreteModel, RuleWriter, write_program
from cwm_induction.discrete.transitions import Transitions

NOISY = 0.02
"""Rewards and ends are random if this share of equal draws has uncommon ones."""

TURNS = 6
"""Iterations that alternate between the explanation of rows and its probabilities."""

STUCK = "stuck"
"""Name of the condition that the intended step of an action changes nothing."""

STEP = '''
def step(self, action):
    """Draw one of the outcomes."""
    outcomes = self.outcomes(action)
    number = self.rng.choice(len(outcomes), p=[chance for chance, *_ in outcomes])
    _, observation, reward, terminated = outcomes[number]
    self.set_state(observation)
    return observation, reward, terminated
'''


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


def write_chances(found: ChanceModel) -> str:
    """Write the program of a random model."""
    return write_program(
        found.model,
        found.drawn.seen,
        *_sentences(found),
        methods=lambda writer: _ChanceWriter(found, writer).methods(),
    )


class _ChanceWriter:
    """A writer of the draws of an action and of the rules for the result of a draw."""

    def __init__(self, found: ChanceModel, writer: RuleWriter) -> None:
        self.found, self.writer = found, writer
        self.names = writer.names
        draws = found.drawn.draws
        self._followed = f"action * {len(draws.numbers)} + draw" if draws.both else "draw"
        self._back = f"{listed(self.names, 'self.')} = {listed(self.names)}"

    def methods(self) -> list[str]:
        """Write `outcomes`, `step` and the rules."""
        body = [
            *action_lines(self.found.drawn.seen.encoding),
            f"{listed(self.names)} = {listed(self.names, 'self.')}",
            *self._draws(),
            *(line for aside in self.found.asides for line in self._aside(aside)),
            "total = {}",
            *self._outcome_loop(),
            "outcomes = []",
            "for (state, reward, terminated), chance in total.items():",
            f"    {listed(self.names, 'self.')} = state",
            "    outcomes.append((chance, self.observation(), reward, terminated))",
            self._back,
            "return outcomes",
        ]
        title = '"""Return all outcomes: probability, observation, reward, terminated."""'
        return [
            "def outcomes(self, action):",
            *[f"    {line}" for line in [title, *body]],
            "",
            *STEP.strip().split("\n"),
            "",
            *self._rules(),
        ]

    def _rules(self) -> list[str]:
        """Write the method `follow`, which applies a draw."""
        first, *rest = self.writer.step()
        plain = set(self.found.drawn.draws.numbers) <= set(self.found.drawn.draws.intended)
        title = "an executed action" if plain else "a draw, which is numbered like an action"
        if self.found.drawn.draws.both:
            title = f"an action and a draw: action * {len(self.found.drawn.draws.numbers)} + draw"
        return [
            first.replace("step", "follow"),
            f'    """Return the outcome of {title}."""',
            *rest,
        ]

    def _draws(self) -> list[str]:
        """Write the probability of each draw."""
        draws = self.found.drawn.draws
        drawing = [n for n in range(len(draws.shares)) if n not in draws.certain]
        alone = "chances = {0: 1}" if draws.both else "chances = {action: 1}"
        if not drawing:
            return [alone]
        lines = self.found.table.lines(self._spell, self._leaf_lines)
        if any(test.name == STUCK for test in self.found.table.conditions):
            axes = [self.names[axis] for axis in draws.axes]
            lines = [
                "self.follow(action)",
                *bracketed("stuck = ", f"{as_one([f'self.{n}' for n in axes])} == {as_one(axes)}"),
                self._back,
                *lines,
            ]
        if not draws.certain:
            return lines
        chosen = f"action == {drawing[0]}" if len(drawing) == 1 else f"action in {tuple(drawing)}"
        return [alone, f"if {chosen}:", *[f"    {line}" for line in lines]]

    def _leaf_lines(self, shares: Shares) -> list[str]:
        """Write the probability of each draw for one leaf of the table."""
        found, draws = self.found, self.found.drawn.draws
        constants = self.writer.constants
        if found.roles is None:
            display = _display({str(n): share for n, share in found.chances(shares, 0).items()})
            return [f"chances = {constants.add('CHANCES', display, 'probability of each draw')}"]
        if shares[0] == 1:
            return ["chances = {action: 1}"]
        rows = [
            f"{action}: {_display({str(n): s for n, s in found.chances(shares, action).items()})}"
            for action in range(len(draws.shares))
            if action not in draws.certain
        ]
        comment = f"by action: probability of each executed action; {found.words(shares)}"
        return [
            f"chances = {constants.add('CHANCES', '{' + ', '.join(rows) + '}', comment)}[action]"
        ]

    def _aside(self, aside: Aside) -> list[str]:
        """Write the probabilities of the changes of an independent random factor."""
        name = self.names[aside.factor]
        values = [str(value) for value in aside.steps.values[:, 0].tolist()]
        comment = "probability of each " + (
            f"change of {name}" if aside.steps.added[0] else f"next {name}"
        )
        return self._table(aside.table, values, f"{name}_chances", comment)

    def _table(self, table: ChanceTable, values: list[str], target: str, comment: str) -> list[str]:
        """Write the choice of a leaf of a table."""

        def chosen(shares: Shares) -> list[str]:
            display = _display(dict(zip(values, shares, strict=True)))
            return [f"{target} = {self.writer.constants.add(target.upper(), display, comment)}"]

        return table.lines(self._spell, chosen)

    def _outcome_loop(self) -> list[str]:
        """Write the loop that adds the probabilities of all draws by outcome."""
        outcome = f"{as_one([f'self.{name}' for name in self.names])}, reward, terminated"
        factors = ["chance"]
        body: list[str] = []
        for aside in self.found.asides:
            factors.append(f"{self.names[aside.factor]}_share")
        if self.found.payment:
            factors.append("share")
        inner = [
            f"outcome = {outcome}",
            f"total[outcome] = total.get(outcome, 0) + {' * '.join(factors)}",
        ]
        if self.found.payment:
            inner = [*self._paid(self.found.payment), *[f"    {line}" for line in inner]]
        for aside in reversed(self.found.asides):
            name, radix = self.names[aside.factor], self.found.drawn_radix(aside.factor)
            value = f"min(max({name} + step, 0), {radix - 1})" if aside.steps.added[0] else "step"
            inner = [
                f"for step, {name}_share in {name}_chances.items():",
                f"    self.{name} = {value}",
                *[f"    {line}" for line in inner],
            ]
        body = [
            self._back,
            f"_, reward, terminated = self.follow({self._followed})",
            *inner,
        ]
        return ["for draw, chance in chances.items():", *[f"    {line}" for line in body]]

    def _paid(self, payment: Payment) -> list[str]:
        """Write the loop over random pairs of reward and end."""
        values = [f"({reward}, {done})" for reward, done in payment.pairs]
        comment = "probability of each (reward, terminated)"
        lines = self._table(payment.table, values, "payments", comment)
        return [*lines, "for (reward, terminated), share in payments.items():"]

    def _spell(self, condition: ShareCondition) -> str:
        """Write a condition."""
        kind, _, factor = condition.name.partition(" ")
        if kind == STUCK:
            return STUCK if condition.value else f"not {STUCK}"
        name = self.names[int(factor)] if factor else kind
        text = {"new": f"self.{name}", "change": f"self.{name} - {name}"}.get(kind, name)
        return f"{text} {'<=' if condition.most else '=='} {condition.value}"


def _display(shares: dict[str, Fraction]) -> str:
    """Write a dict display of shares."""
    return "{" + ", ".join(f"{key}: {fraction_text(s)}" for key, s in shares.items() if s) + "}"


def _sentences(found: ChanceModel) -> list[str]:
    """Describe the random and the certain parts of outcomes."""
    draws, sentences = found.drawn.draws, ["Outcomes are random."]
    if found.roles is not None:
        plain = {leaf.shares for leaf in found.table.leaves()}
        words = sorted({found.words(shares) for shares in plain if shares[0] != 1})
        sentences += [f"Probabilities of the executed action: {text}." for text in words]
        if any(test.name == STUCK for test in found.table.conditions):
            sentences.append("If the intended move is blocked, no other move is drawn.")
    elif draws.numbers:
        sentences.append("Draws are numbered like actions; `follow` applies one.")
    if draws.certain and draws.numbers:
        actions = ", ".join(map(str, draws.certain))
        sentences.append(f"The next state is certain after action {actions}.")
    if found.asides:
        sentences.append("Some parts of the state are drawn independently.")
    sentences.append(
        "Rewards and ends are random as well."
        if found.payment
        else "Rewards and ends are determined by the draw."
    )
    return sentences
