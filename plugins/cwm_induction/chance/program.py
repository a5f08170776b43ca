"""Programs of random models: `outcomes` combines the distributions of all outputs."""

from collections.abc import Iterator

import numpy as np

from cwm_induction.chance.kernels import CountKernel
from cwm_induction.chance.learning import Output, RandomModel
from cwm_induction.chance.quantities import number
from cwm_induction.writing.statements import mentioned

COMBINED = '''def combined(pairs, low=-1e9, high=1e9):
    """Limit values to a range, add up the chances of equal ones, and drop tiny chances."""
    total = {}
    for chance, value in pairs:
        value = min(max(value, low), high)
        total[value] = total.get(value, 0.0) + chance
    return [(chance, value) for value, chance in total.items() if chance > 1e-5]'''
"""Helper of the program: random counts have many values of which most are unlikely."""

PROGRAM = '''{imports}

{functions}
class Environment:
    """Predicts the probabilities of all outcomes.

    {summary}
    """

    def set_state(self, observation):
        """Set the observation to predict from."""
        self.observation = [int(value) for value in np.ravel(observation)]

    def outcomes(self, action):
        """Return outcomes: probability, observation, reward, terminated."""
        {state} = self.observation
        total = {{}}
{loops}
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
{methods}'''


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
        needed = [name for name in ("comb", "exp", "factorial") if _used(name, functions)]
        imports = [f"from math import {', '.join(needed)}", ""] if needed else []
        methods = [line for output in self.model.outputs for line in self._method(output)]
        state = ", ".join(self.states)
        return PROGRAM.format(
            imports="\n".join([*imports, "import numpy as np"]),
            functions="".join(f"\n{source}\n\n" for source in functions),
            summary="\n    ".join(self._summary()),
            state=state if len(self.states) > 1 else f"[{state}]",
            loops="\n".join(f"        {line}" for line in self._loops()),
            methods="\n".join(methods),
        )

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
        yield f'        """Return probability and value of `{name}`."""'
        yield from (f"        {line}" for line in output.tree.lines())
        if output is self.model.outputs[-1]:
            yield ""


def is_certain(output: Output) -> bool:
    """Whether every leaf of an output has one choice."""
    return all(getattr(leaf, "is_certain", False) for leaf in output.tree.leaves())


def _used(name: str, functions: list[str]) -> bool:
    return any(f"{name}(" in source for source in functions)
