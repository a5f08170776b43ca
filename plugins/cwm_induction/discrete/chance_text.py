"""Programs of random environments: `outcomes`, and a `step` that draws one outcome."""

from fractions import Fraction

from cwm_induction.discrete.chance_tables import (
    ChanceTable,
    ShareCondition,
    Shares,
    fraction_text,
)
from cwm_induction.discrete.chances import STUCK, Aside, ChanceModel, Payment
from cwm_induction.discrete.expressions import action_lines, as_one, bracketed, listed
from cwm_induction.discrete.program_text import RuleWriter, write_program

STEP = '''
def step(self, action):
    """Draw one of the outcomes."""
    outcomes = self.outcomes(action)
    number = self.rng.choice(len(outcomes), p=[chance for chance, *_ in outcomes])
    _, observation, reward, terminated = outcomes[number]
    self.set_state(observation)
    return observation, reward, terminated
'''


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
        if any(leaf.name == STUCK for leaf in _conditions(self.found.table)):
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


def _conditions(table: ChanceTable) -> list[ShareCondition]:
    """Return all conditions of a table."""
    if table.condition is None or table.held is None or table.otherwise is None:
        return []
    return [table.condition, *_conditions(table.held), *_conditions(table.otherwise)]


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
        if any(condition.name == STUCK for condition in _conditions(found.table)):
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
