"""Write the laws of noisy components as a program, with the names of the columns."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cwm_induction.noisy.cases import case_lines, comparison
from cwm_induction.noisy.inducing import RecordedFindings
from cwm_induction.noisy.laws import LEAST_CHANCE, NoisyLaw, Relay
from cwm_induction.noisy.series import Column, GivenQuantity, label_name
from cwm_induction.writing.rounding import literal, rounded
from cwm_induction.writing.statements import approximations_line

_ERRORS = "Root mean squared errors of one step"

_EARLIER = '''

def earlier(values, steps):
    """Return the value some steps ago, or the oldest one if there are fewer."""
    return values[-min(steps + 1, len(values))]
'''

_CORRECTED = '''

def corrected(predicted, recorded, gain, jump):
    """Return an estimate between a prediction and a noisy recorded value.

    An error above `jump` shows that the prediction was of a wrong case.
    """
    error = recorded - predicted
    return predicted + (1.0 if abs(error) > jump else gain) * error
'''


_SWITCH = '''

def soft_step(excess, width):
    """Return the probability that an uncertain value exceeds a threshold."""
    return 1 / (1 + np.exp(-np.clip(excess / width, -500, 500)))


def switched(chance, value, low, high, width):
    """Return the probability of a hidden switch: on below `low`, off above `high`."""
    chance = chance + (1 - chance) * soft_step(low - value, width)
    return chance * soft_step(high - value, width)


def revised(chance, error_off, error_on, noise):
    """Return the probability of a hidden switch after an observation (Bayes' rule)."""
    chance = min(max(chance, {least}), 1 - {least})
    odds = np.log(chance / (1 - chance)) + (error_off**2 - error_on**2) / (2 * noise**2)
    return soft_step(odds, 1)
'''


def lists_errors(program: str) -> bool:
    """Return whether a program lists its errors, so that shares of exact rows say nothing."""
    return _ERRORS in program


@dataclass(frozen=True)
class Writer:
    """Writes findings as the text of a program."""

    found: RecordedFindings

    def text(self) -> str:
        """Return the program."""
        laws = [(self._columns[index].name, self.found.laws[index]) for index in self._computed]
        functions = [self._function(f"next_{name}", name, law) for name, law in laws]
        for name, law in self._outcomes.items():
            functions.append(self._function(f"{name}_of", name, law))
        body = "".join([*functions, self._environment()])
        helpers = _EARLIER if "earlier(" in body else ""
        helpers += _CORRECTED if "corrected(" in body else ""
        helpers += _SWITCH.format(least=LEAST_CHANCE) if "switched(" in body else ""
        constants = "\n".join(self._constants(body))
        imports = "import numpy as np\n"
        text = (
            f"{imports}\n{constants}\n{helpers}{body}" if constants else f"{imports}{helpers}{body}"
        )
        return re.sub(r"\n{4,}", "\n\n\n", text)

    @property
    def _columns(self) -> tuple[Column, ...]:
        return self.found.series.observed

    @property
    def _computed(self) -> list[int]:
        """Components in the order of their computation."""
        return self.found.order

    @property
    def _filters(self) -> bool:
        return any(law.gain < 1 for law in self.found.laws.values())

    def _constants(self, body: str) -> Iterator[str]:
        """Yield the constants of labels that the program reads, and the gains."""
        series = self.found.series
        for column in (*series.acted, *series.observed):
            for code in range(len(column.labels)):
                name = label_name(column, code)
                if re.search(rf"\b{name}\b", body):
                    yield f"{name} = {code}"
        if not self._filters and not self._relays:
            return
        yield "# Share of a prediction error that corrects an estimate, and the size of the error"
        yield "# that shows a wrong case."
        for index in self._computed:
            law, name = self.found.laws[index], self._columns[index].name.upper()
            if law.gain < 1:
                yield f"{name}_GAIN, {name}_JUMP = {law.gain:.3g}, {law.jump:.3g}"
        for index in self._computed:
            relay, name = self.found.laws[index].relay, self._columns[index].name.upper()
            if relay is not None:
                switch = f"The hidden switch of {name.lower()}"
                yield f"# {switch} turns on below a threshold, and off above another."
                yield f"{name}_ON_BELOW = {_table(relay.low)}"
                yield f"{name}_OFF_ABOVE = {_table(relay.high)}"
                yield f"{name}_SWITCH_WIDTH = {max(relay.width, 1e-9):.3g}"
                yield f"{name}_SWITCH_NOISE = {relay.noise:.3g}"

    @property
    def _outcomes(self) -> dict[str, NoisyLaw]:
        """The laws of the reward and of the end, if they are no constants."""
        laws = {"reward": self.found.reward, "terminated": self.found.ending}
        return {
            name: law
            for name, law in laws.items()
            if law is not None and (law.overrides or any(t.forms for t in law.terms))
        }

    def _function(self, function: str, name: str, law: NoisyLaw) -> str:
        """Return the function that computes the next value of a component, or an outcome."""
        lines = [f"def {function}({', '.join(self._arguments(name, law))}):"]
        units = {column.name: column.unit for column in self._columns}
        words = function.replace("_of", "").replace("_", " ")
        lines.append(f'    """Return the {words}."""')
        for rule in reversed(law.overrides):  # later overrides prevail
            tests = " and ".join(comparison(each, name) for each in rule.conditions)
            value = name if rule.value is None else literal(rule.value)
            lines += [f"    if {tests}:", f"        return {value}"]
        result = _sum(law, name)
        if np.isfinite(law.low):
            result = f"max({result}, {_short(law.low, units.get(name, 0.0))})"
        if np.isfinite(law.high):
            result = f"min({result}, {_short(law.high, units.get(name, 0.0))})"
        if law.cases is None:
            return "\n\n" + "\n".join([*lines, f"    return {result}"]) + "\n"
        lines.append("    # No law was found: numbers by case, chosen by errors on held-out rows.")
        adds_to = "usual" if law.terms or law.keeps else ""
        if adds_to:
            lines.append(f"    {adds_to} = {result}")
        lines += [f"    {line}" for line in case_lines(law.cases, name, adds_to)]
        return "\n\n" + "\n".join(lines) + "\n"

    def _arguments(self, name: str, law: NoisyLaw) -> list[str]:
        """Return the names that a law reads, itself first."""
        parts = [_sum(law, name)]
        parts += [comparison(c, name) for rule in law.overrides for c in rule.conditions]
        parts += [name for rule in law.overrides if rule.value is None]
        if law.cases is not None:
            parts += [comparison(each, name) for each in law.cases.conditions()]
        words = set(re.findall(r"[a-z_]\w*", " ".join(parts)))
        return [n for n in dict.fromkeys((name, *self._names, "switch")) if n in words]

    @property
    def _names(self) -> list[str]:
        """All names that laws may read, in the order of a step."""
        series = self.found.series
        names = [column.name for column in (*series.observed, *series.acted)]
        names += [f"{c.name}_{d}_ago" for c in series.acted for d in range(1, 6)]
        names += self._averages
        return names + [f"{column.name}_next" for column in series.observed]

    def _environment(self) -> str:
        """Return the class `Environment`."""
        lines = ["class Environment:", self._docstring(), ""]
        if approximations := self._approximations:
            lines += [f"    {approximations_line(approximations)}", ""]
        lines += self._start()
        lines += [
            "",
            "    def step(self, action):",
            '        """Predict the outcome of an action."""',
        ]
        lines += [f"        {line}" for line in self._step()]
        if self._remembers:
            lines += ["", *self._correct()]
        return "\n\n" + "\n".join(lines) + "\n"

    @property
    def _remembers(self) -> bool:
        return any((self._filters, self._delays, self._averages, self._relays))

    @property
    def _relays(self) -> dict[str, Relay]:
        """Hidden switches by the name of the component."""
        laws = ((self._columns[index].name, self.found.laws[index]) for index in self._computed)
        return {name: law.relay for name, law in laws if law.relay is not None}

    @property
    def _delays(self) -> dict[str, int]:
        """Longest delay of each action column that the laws read."""
        longest: dict[str, int] = {}
        for quantity in self._quantities():
            if quantity.delay:
                longest[quantity.source] = max(longest.get(quantity.source, 0), quantity.delay)
        return longest

    @property
    def _averages(self) -> dict[str, GivenQuantity]:
        """The averages of actions that the laws read, by name."""
        return {each.text: each for each in self._quantities() if each.averaged}

    def _quantities(self) -> Iterator[GivenQuantity]:
        """Yield the quantities that the laws read, possibly several times."""
        for law in self.found.laws.values():
            yield from (form.quantity for term in law.terms for form in term.forms)
            if law.cases is not None:
                yield from (c.quantity for c in law.cases.conditions() if c.quantity is not None)

    def _docstring(self) -> str:
        count = len(self.found.series)
        paragraphs = [f"A world model induced from {count:,} noisy transitions.", *self._remarks()]
        filled = [textwrap.indent(textwrap.fill(text, 92), "    ") for text in paragraphs]
        return '    """' + "\n\n".join(filled).strip() + '\n    """'

    def _remarks(self) -> Iterator[str]:
        """Yield sentences about errors and memory."""
        parts = []
        for index in self._computed:
            target = self.found.target(index)
            errors = target.errors(target.trace(self.found.laws[index]))[target.series.counted]
            still = (target.after - target.now)[target.series.counted]
            size, usual = (float(np.sqrt(np.mean(each**2))) for each in (errors, still))
            parts.append(f"{target.column.name} {size:.3g} (no change: {usual:.3g})")
        yield f"{_ERRORS}: {', '.join(parts)}."
        for index, kind in self._approximations.items():
            name = self._columns[index].name
            yield f"No law explains {name}: a {kind} predicts it, chosen by held-out errors."
        if self._filters:
            yield (
                "Recorded values are noisy, so the program predicts from estimates, and corrects "
                "them by a share of each prediction error."
            )
        if self._delays:
            delays = (f"{name} {delay} steps" for name, delay in self._delays.items())
            yield f"Earlier actions have an effect: {', '.join(delays)}."
        for name, quantity in self._averages.items():
            if quantity.window > 1:
                yield f"{name} is the mean of the last {quantity.window} values of an action."
            else:
                yield f"{name} is an action behind a first-order lag."
        if self._relays:
            yield f"A hidden switch acts on {', '.join(self._relays)}."

    @property
    def _approximations(self) -> dict[int, str]:
        """The components without a law, and how they are predicted."""
        trees = {index: self.found.laws[index].cases for index in self._computed}
        return {index: tree.words for index, tree in sorted(trees.items()) if tree is not None}

    def _start(self) -> Iterator[str]:
        """Yield the methods that begin an episode or set the state."""
        names = [column.name for column in self._columns]
        method = "reset" if self._remembers else "set_state"
        if not self._remembers:
            yield "    def __init__(self):"
            yield f"        self.observation = np.zeros({len(names)})"
            yield ""
        yield f"    def {method}(self, observation):"
        summary = "Start an episode" if self._remembers else "Set the observation to predict from"
        yield f'        """{summary}."""'
        if not self._remembers:
            yield "        self.observation = np.array(observation, dtype=float)"
            return
        yield f"        {_listed('self.', names)} = map(float, np.ravel(observation))"
        if self._filters:
            yield "        self.rows = 1"
        for name in self._relays:
            yield f"        self.{name}_switch = 0.5  # probability that it is on"
        for name in self._delays:
            yield f"        self.{name}_history = []"
        for name, quantity in self._averages.items():
            yield f"        self.{name} = {'[]' if quantity.window > 1 else 'None'}"

    def _step(self) -> Iterator[str]:
        """Yield the lines of `step`."""
        yield from self._read_action("action")
        names = [column.name for column in self._columns]
        if self._remembers:
            yield f"{', '.join(names)} = {', '.join(f'self.{n}' for n in names)}"
        else:
            yield f"{_listed('', names)} = map(float, self.observation)"
        for name, delay in self._delays.items():
            yield f"self.{name}_history = [*self.{name}_history[-{delay}:], {name}]"
            yield from self._read_history(name)
        for name, quantity in self._averages.items():
            value, window = quantity.averaged, quantity.window
            if window > 1:
                yield f"self.{name} = [*(self.{name} or [{value}] * {window})[1:], {value}]"
            else:
                moved = f"self.{name} + {quantity.pace:.5g} * ({value} - self.{name})"
                yield f"self.{name} = {value} if self.{name} is None else {moved}"
        yield from self._read_averages()
        for index in self._computed:
            name = self._columns[index].name
            if name not in self._relays:
                yield self._call(index, "_next")
                continue
            yield f"self.{name}_switch = {self._switching(name)}"
            yield self._call(index, "_off", "0")
            yield self._call(index, "_on", "1")
            yield f"{name}_next = {name}_off + self.{name}_switch * ({name}_on - {name}_off)"
        if self._filters or self._relays:
            inputs = [column.name for column in self.found.series.acted]
            yield f"self.before = {', '.join([*names, *inputs])}"
        following = [f"{name}_next" for name in names]
        if self._remembers:
            yield f"{', '.join(f'self.{n}' for n in names)} = {', '.join(following)}"
            answer = f"np.array([{', '.join(following)}])"
        else:
            yield f"self.observation = np.array([{', '.join(following)}])"
            answer = "self.observation.copy()"
        yield f"return {answer}, {self._outcome('reward')}, {self._outcome('terminated')}"

    def _outcome(self, name: str) -> str:
        """Return the expression of the reward or of the end."""
        if name in self._outcomes:
            arguments = ", ".join(self._arguments(name, self._outcomes[name]))
            call = f"{name}_of({arguments})"
            return call if name == "reward" else f"bool({call})"
        if name == "terminated":
            return "False"
        law = self.found.reward
        return literal(float(law.weights.sum())) if law is not None else "0.0"

    def _read_action(self, value: str) -> Iterator[str]:
        acted = self.found.series.acted
        if len(acted) == 1:
            number = f"np.ravel({value})[0]"
            yield f"{acted[0].name} = {'int' if acted[0].is_label else 'float'}({number})"
        else:
            yield f"{', '.join(c.name for c in acted)} = map(float, np.ravel({value}))"

    def _read_history(self, name: str) -> Iterator[str]:
        for delay in range(1, self._delays[name] + 1):
            called = [self._call(index, "") for index in self._computed]
            if any(f"{name}_{delay}_ago" in call for call in called):
                yield f"{name}_{delay}_ago = earlier(self.{name}_history, {delay})"

    def _read_averages(self) -> Iterator[str]:
        for name, quantity in self._averages.items():
            window = quantity.window
            yield f"{name} = " + (f"sum(self.{name}) / {window}" if window > 1 else f"self.{name}")

    def _call(self, index: int, suffix: str, switch: str = "") -> str:
        name, law = self._columns[index].name, self.found.laws[index]
        arguments = [*self._arguments(name, law)]
        if "switch" in arguments:
            arguments[arguments.index("switch")] = switch
        return f"{name}{suffix} = next_{name}({', '.join(arguments)})"

    def _switching(self, name: str) -> str:
        """Return the expression that advances a hidden switch."""
        relay = self._relays[name]
        value = name if relay.quantity is None else relay.quantity.text
        group = "" if relay.group is None else f"[{relay.group.text}]"
        upper = name.upper()
        low, high = f"{upper}_ON_BELOW{group}", f"{upper}_OFF_ABOVE{group}"
        return f"switched(self.{name}_switch, {value}, {low}, {high}, {upper}_SWITCH_WIDTH)"

    def _correct(self) -> Iterator[str]:
        """Yield the method `correct`."""
        names = [column.name for column in self._columns]
        yield "    def correct(self, observation, reward):"
        if not self._filters and not self._relays:
            yield '        """Continue from the recorded observation."""'
            yield f"        {_listed('self.', names)} = map(float, np.ravel(observation))"
            return
        yield '        """Correct the estimates of the last step by the recorded observation."""'
        inputs = [column.name for column in self.found.series.acted]
        yield f"        {', '.join([*names, *inputs])} = self.before"
        for name in self._delays:
            for line in self._read_history(name):
                yield f"        {line}"
        for line in self._read_averages():
            yield f"        {line}"
        recorded = [f"recorded_{name}" for name in names]
        yield f"        {_listed('', recorded)} = map(float, np.ravel(observation))"
        if self._filters:
            yield "        self.rows += 1"
        for index in self._computed:
            name, law = names[index], self.found.laws[index]
            if name in self._relays:
                yield f"        {self._call(index, '_off', '0')}"
                yield f"        {self._call(index, '_on', '1')}"
                chance = f"self.{name}_switch"
                yield f"        {chance} = revised("
                yield f"            {chance}, recorded_{name} - {name}_off,"
                yield f"            recorded_{name} - {name}_on, {name.upper()}_SWITCH_NOISE,"
                yield "        )"
            if law.gain >= 1:
                yield f"        self.{name} = {name}_next = recorded_{name}"
                continue
            if name in self._relays:
                yield f"        {name}_next = {name}_off + {chance} * ({name}_on - {name}_off)"
            else:
                yield f"        {self._call(index, '_next')}"
            values = f"{name}_next, recorded_{name}"
            weights = f"max({name.upper()}_GAIN, 1 / self.rows), {name.upper()}_JUMP"
            yield f"        self.{name} = {name}_next = corrected({values}, {weights})"


def _listed(prefix: str, names: Sequence[str]) -> str:
    """Return targets of an assignment from an iterator."""
    return ", ".join(f"{prefix}{name}" for name in names) + ("," if len(names) == 1 else "")


def _sum(law: NoisyLaw, name: str) -> str:
    """Return the weighted sum of a law, with the current value if it is kept."""
    pieces: list[tuple[float, str]] = []
    for term, weight in zip(law.terms, law.weights.tolist(), strict=True):
        if term.own == "x" and not term.forms and law.keeps:
            pieces.insert(0, (weight + 1.0, name))
        elif weight:
            pieces.append((weight, term.written(name)))
    if law.keeps and not any(t.own == "x" and not t.forms for t in law.terms):
        pieces.insert(0, (1.0, name))
    text = ""
    for weight, written in pieces:
        if abs(weight) < 1e-12:
            continue
        size = literal(abs(weight))
        product = size if not written else written if size == "1.0" else f"{size} * {written}"
        sign = "-" if weight < 0 else "+"
        text = f"{text} {sign} {product}" if text else (f"-{product}" if weight < 0 else product)
    return text or "0.0"


def _short(value: float, unit: float) -> str:
    """Write a limit with the digits of the recorded values and one more."""
    return literal(round(value, max(0, 1 - round(np.log10(unit)))) if unit else rounded(value, 7))


def _table(thresholds: Mapping[float, float]) -> str:
    """Write thresholds by group, or the only one."""
    if len(thresholds) == 1:
        return f"{next(iter(thresholds.values())):.6g}"
    return "{" + ", ".join(f"{key:g}: {value:.6g}" for key, value in thresholds.items()) + "}"
