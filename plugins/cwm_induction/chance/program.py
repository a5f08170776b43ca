"""Programs of random models: `outcomes` combines the distributions of all outputs."""

from collections.abc import Iterator

import numpy as np

from cwm_induction.chance.kernels import CountKernel
from cwm_induction.chance.learning import Output, RandomModel, is_certain
from cwm_induction.chance.quantities import number
from cwm_induction.chance.regressions import RegressionLeaf
from cwm_induction.writing.statements import mentioned

COMBINED = '''def combined(pairs, low=-1e9, high=1e9):
    """Limit values to a range, add up the chances of equal ones, and drop tiny chances."""
    total = {}
    for chance, value in pairs:
        value = min(max(value, low), high)
        total[value] = total.get(value, 0.0) + chance
    return [(chance, value) for value, chance in total.items() if chance > 1e-5]'''
"""Helper of the program: random counts have many unlikely values."""

MAX_BITS = 8.5
"""A program lists its outcomes up to this number of bits per transition: at most 256 outcomes."""

PROBABILITIES = "Predicts the probabilities of all outcomes."

HEAD = '''{imports}

{functions}
class Environment:
    """{title}

    {summary}
    """

    def set_state(self, observation):
        """Set the observation to predict from."""
        self.observation = [{kind}(value) for value in np.ravel(observation)]
'''

OUTCOMES = '''
    def outcomes(self, action):
        """Return outcomes: probability, observation, reward, terminated."""
        {state} = self.observation
        total = {{}}
{body}
        most = sorted(total.items(), key=lambda item: -item[1])[:256]
        return [
            (chance, np.array(observation), reward, terminated)
            for (observation, reward, terminated), chance in most
        ]

    def step(self, action):
        """Draw one of the outcomes."""
        outcomes = self.outcomes(action)
        chances = np.array([chance for chance, *_ in outcomes])
        number = self.rng.choice(len(outcomes), p=chances / chances.sum())
        _, observation, reward, terminated = outcomes[number]
        self.set_state(observation)
        return observation, reward, terminated
'''

STEP = '''
    def step(self, action):
        """Draw an outcome."""
        {state} = self.observation
{body}
        self.observation = [{after}]
        return np.array(self.observation), reward, bool(terminated)

    def draw(self, pairs):
        """Draw one of several values, given pairs of probability and value."""
        chances = np.array([chance for chance, _ in pairs])
        return pairs[self.rng.choice(len(pairs), p=chances / chances.sum())][1]
'''


def write(model: RandomModel) -> str:
    """Return the program of a model."""
    return _Writer(model).text()


class _Writer:
    def __init__(self, model: RandomModel) -> None:
        self.model = model
        self.states = [part.text for part in model.rows.now]

    def text(self) -> str:
        """Return the whole program."""
        leaves = [leaf for output in self.model.outputs for leaf in output.tree.leaves()]
        functions = sorted({source for leaf in leaves for source in leaf.sources})
        if any(map(self._has_counts, self.model.outputs)):
            functions.append(COMBINED)
        needed = [name for name in ("comb", "exp", "lgamma", "log") if _used(name, functions)]
        imports = [f"from math import {', '.join(needed)}", ""] if needed else []
        methods = [line for output in self.model.outputs for line in self._method(output)]
        state = ", ".join(self.states)
        parts = {"state": state if len(self.states) > 1 else f"[{state}]"}
        head = HEAD.format(
            imports="\n".join([*imports, "import numpy as np"]),
            functions="".join(f"\n{source}\n\n" for source in functions),
            title="Draws the next outcome." if self.draws else PROBABILITIES,
            summary="\n    ".join(self._summary()),
            kind="float" if self.draws else "int",
        )
        body = "\n".join(f"        {line}" for line in self._body())
        after = ", ".join(f"{name}_next" for name in self.states)
        step = (STEP if self.draws else OUTCOMES).format(body=body, after=after, **parts)
        return head + step + "\n".join(methods)

    @property
    def draws(self) -> bool:
        """Whether the program draws outcomes, because there are too many to list."""
        surprise = self.model.bits / max(int(self.model.learn.sum()), 1)
        return surprise > MAX_BITS or any(map(self._is_real, self.model.outputs))

    def _is_real(self, output: Output) -> bool:
        return any(isinstance(leaf, RegressionLeaf) for leaf in output.tree.leaves())

    def _body(self) -> list[str]:
        return self._drawn() if self.draws else self._loops()

    def _drawn(self) -> list[str]:
        """Write the draws of all outputs, one after the other."""
        lines = []
        for output in self.model.outputs:
            name = output.target.name
            short = name.removesuffix("_next")
            arguments = ", ".join(self._arguments(output))
            if self._is_plain(output) and not self._is_real(output):
                lines.append(f"{name} = {self._single(output)}")
                continue
            value = f"self.{short}_chances({arguments})"
            value = value if self._is_real(output) else f"self.draw({value})"
            limits = [float(output.target.low[0]), float(output.target.high[0])]
            if np.isfinite(limits).all() and (self._is_real(output) or self._has_counts(output)):
                value = f"min(max({value}, {number(limits[0])}), {number(limits[1])})"
            lines.append(f"{name} = {value}")
        if not any(output.target.name == "terminated" for output in self.model.outputs):
            lines.append("terminated = False")
        return [*lines, f"reward = {self.model.reward.text()}"]

    def _summary(self) -> Iterator[str]:
        random = [o.target.name for o in self.model.outputs if not is_certain(o)]
        yield f"Random: {', '.join(random) or 'nothing'}."
        if any(name == "extra" for name in random):
            yield "The count `extra` shows in the reward only."

    def _loops(self) -> list[str]:
        """Write the nested loops over all outputs, and the sum of the probabilities."""
        before, lines, depth, chances = [], [], 0, []
        for output in self.model.outputs:
            indent = "    " * depth
            name = output.target.name
            short = name.removesuffix("_next")
            if self._is_plain(output):
                lines.append(f"{indent}{name} = {self._single(output)}")
                continue
            arguments = self._arguments(output)
            call = f"self.{short}_chances({', '.join(arguments)})"
            if self._has_counts(output):
                call = f"combined({call}{self._bounds(output)})"
            if not {other.target.name for other in self.model.outputs} & set(arguments) and depth:
                before.append(f"{short}_options = {call}")
                call = f"{short}_options"
            chances.append(f"{short}_chance")
            lines.append(f"{indent}for {short}_chance, {name} in {call}:")
            depth += 1
        indent = "    " * depth
        if not any(o.target.name == "terminated" for o in self.model.outputs):
            lines.append(f"{indent}terminated = False")
        lines.append(f"{indent}reward = {self.model.reward.text()}")
        after = ", ".join(f"{name}_next" for name in self.states)
        after = f"({after})" if len(self.states) > 1 else f"({after},)"
        lines.append(f"{indent}outcome = {after}, round(reward, 9), bool(terminated)")
        chance = " * ".join(chances) or "1.0"
        return [*before, *lines, f"{indent}total[outcome] = total.get(outcome, 0.0) + {chance}"]

    def _has_counts(self, output: Output) -> bool:
        return any(isinstance(leaf.kernel, CountKernel) for leaf in output.tree.leaves())

    def _bounds(self, output: Output) -> str:
        low, high = float(output.target.low[0]), float(output.target.high[0])
        return f", {number(low)}, {number(high)}" if np.isfinite([low, high]).all() else ""

    def _is_plain(self, output: Output) -> bool:
        return output.tree.leaf is not None and is_certain(output)

    def _single(self, output: Output) -> str:
        [line] = output.tree.lines()
        return line.removeprefix("return [(1, ").removesuffix(")]")

    def _arguments(self, output: Output) -> list[str]:
        """Return the names that the method of an output reads."""
        names = mentioned("\n".join(output.tree.lines()))
        earlier = [other.target.name for other in self.model.outputs]
        return [name for name in ("action", *self.states, *earlier) if name in names]

    def _method(self, output: Output) -> Iterator[str]:
        """Write the method that returns the distribution of an output."""
        if self._is_plain(output):
            return
        name = output.target.name
        arguments = ", ".join(["self", *self._arguments(output)])
        yield ""
        yield f"    def {name.removesuffix('_next')}_chances({arguments}):"
        what = "Draw" if self._is_real(output) else "Return probability and value of"
        yield f'        """{what} `{name}`."""'
        yield from (f"        {line}" for line in output.tree.lines())
        if output is self.model.outputs[-1]:
            yield ""


def _used(name: str, functions: list[str]) -> bool:
    return any(f"{name}(" in source for source in functions)
