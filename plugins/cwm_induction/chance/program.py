"""Programs of random models: `outcomes` combines the distributions of all outputs."""

from collections.abc import Iterator
from functools import cached_property
from math import prod

import numpy as np

from cwm_induction.chance.model import Output, RandomModel
from cwm_induction.chance.quantities import is_whole, number
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

MAX_RANDOM = 5
"""A program lists its outcomes up to this number of random parts: with seven, the loops over all
combinations took more than 10 s per step."""

MAX_COMBINATIONS = 1_000
"""A program lists its outcomes up to this number of combinations of values, which it loops over:
with 1,500 combinations, some hundred steps took more than 10 s."""

MAX_PAIRS = 5_000
"""A program lists its outcomes up to this number of pairs of count and probability in all loops:
a car park with two binomial counts of up to 87 cars needed more than the time limit."""

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
'''

DRAW = '''
    def draw(self, pairs):
        """Draw one of several values, given pairs of probability and value."""
        left = self.rng.random() * sum(chance for chance, _ in pairs)
        for chance, value in pairs:
            left -= chance
            if left < 0:
                return value
        return pairs[-1][1]
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
        functions = [] if self.draws else functions
        if self.model.has_counts and not self.draws:
            functions.append(COMBINED)
        names = ("comb", "erf", "exp", "lgamma", "log")
        needed = [name for name in names if any(f"{name}(" in source for source in functions)]
        imports = [f"from math import {', '.join(needed)}", ""] if needed else []
        methods = [line for output in self.model.outputs for line in self._method(output)]
        state = ", ".join(self.states)
        state = state if len(self.states) > 1 else f"[{state}]"
        head = HEAD.format(
            imports="\n".join([*imports, "import numpy as np"]),
            functions="".join(f"\n{source}\n\n" for source in functions),
            title="Draws the next outcome." if self.draws else PROBABILITIES,
            summary="\n    ".join(self._summary()),
            kind="int" if self._is_whole else "float",
        )
        body = "\n".join(
            f"        {line}" for line in (self._drawn if self.draws else self._loops)()
        )
        after = ", ".join(f"{name}_next" for name in self.states)
        step = (STEP if self.draws else OUTCOMES).format(body=body, after=after, state=state)
        step += DRAW if any("self.draw(" in line for line in methods) else ""
        return head + step + "\n".join([*methods, ""])

    @cached_property
    def draws(self) -> bool:
        """Whether the program draws outcomes, because there are too many to list."""
        surprise = self.model.bits / max(int(self.model.learn.sum()), 1)
        kinds = [output.kinds for output in self.model.outputs if not output.is_certain]
        is_large = surprise > MAX_BITS or len(kinds) > MAX_RANDOM
        is_large = is_large or prod(kinds) > MAX_COMBINATIONS
        trees = [output.tree.leaves() for output in self.model.outputs]
        is_large = is_large or prod(max(leaf.pairs for leaf in tree) for tree in trees) > MAX_PAIRS
        draws = any(leaf.draws for tree in trees for leaf in tree)
        return is_large or draws or not self._is_whole

    @property
    def _is_whole(self) -> bool:
        return not any(map(self._is_real, self.model.outputs))

    def _is_real(self, output: Output) -> bool:
        return not is_whole(output.target.values)

    def _drawn(self) -> list[str]:
        """Write the draws of all outputs, one after the other."""
        lines = []
        for output in self.model.outputs:
            value, is_real = self._value(output), self._is_real(output)
            if (bounds := self._bounds(output)) and (is_real or output.has_counts):
                value = "min(max({}, {}), {})".format(value, *bounds)
            lines.append(f"{output.target.name} = {value}")
        return [*lines, *self._ending()]

    def _summary(self) -> Iterator[str]:
        random = [o for o in self.model.outputs if not o.is_certain]
        yield f"Random: {', '.join(o.target.name for o in random) or 'nothing'}."
        kinds = {
            "Drawn with their recorded frequencies": [o for o in random if o.is_choice],
            "Approximated by regressions with normal noise": [o for o in random if o.is_regression],
        }
        for text, outputs in kinds.items():
            if outputs:
                yield f"{text}: {', '.join(o.target.name for o in outputs)}."
        if any(output.target.name == "extra" for output in random):
            yield "The count `extra` shows in the reward only."

    def _loops(self) -> list[str]:
        """Write the nested loops over all outputs, and the sum of the probabilities."""
        outputs = [output.target.name for output in self.model.outputs]
        before: list[str] = []
        lines: list[str] = []
        chances: list[str] = []
        for output in self.model.outputs:
            name, value = output.target.name, self._value(output)
            indent = "    " * len(chances)
            if self._is_plain(output):
                lines.append(f"{indent}{name} = {value}")
                continue
            if output.has_counts:
                value = f"combined({', '.join([value, *self._bounds(output)])})"
            short = name.removesuffix("_next")
            if chances and not {*outputs} & {*self._arguments(output)}:
                before.append(f"{short}_options = {value}")
                value = f"{short}_options"
            chances.append(f"{short}_chance")
            lines.append(f"{indent}for {short}_chance, {name} in {value}:")
        after = ", ".join(f"{name}_next" for name in self.states)
        after = f"({after})" if len(self.states) > 1 else f"({after},)"
        inner = [
            *self._ending(),
            f"outcome = {after}, round(reward, 9), bool(terminated)",
            f"total[outcome] = total.get(outcome, 0.0) + {' * '.join(chances) or '1.0'}",
        ]
        return [*before, *lines, *("    " * len(chances) + line for line in inner)]

    def _ending(self) -> list[str]:
        """Write the reward, and the end if it is no output."""
        is_drawn = any(output.target.name == "terminated" for output in self.model.outputs)
        reward = f"reward = {self.model.reward.text()}"
        return [reward] if is_drawn else ["terminated = False", reward]

    def _value(self, output: Output) -> str:
        """Write the value of a certain output, or the call that returns or draws values."""
        if not self._is_plain(output):
            return f"self.{self._method_name(output)}({', '.join(self._arguments(output))})"
        [line] = output.tree.lines()
        value = line.removeprefix("return ")
        return value if self._is_real(output) else value.removeprefix("[(1, ").removesuffix(")]")

    def _bounds(self, output: Output) -> list[str]:
        bounds = [float(output.target.low[0]), float(output.target.high[0])]
        return [number(bound) for bound in bounds] if np.isfinite(bounds).all() else []

    def _is_plain(self, output: Output) -> bool:
        return output.tree.leaf is not None and output.tree.leaf.is_certain

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
        yield f"    def {self._method_name(output)}({arguments}):"
        what = "Draw" if self.draws else "Return probability and value of"
        what = "Return" if self.draws and output.is_certain else what
        yield f'        """{what} `{name}`."""'
        yield from (f"        {line}" for line in output.tree.lines(draws=self.draws))

    def _method_name(self, output: Output) -> str:
        short = output.target.name.removesuffix("_next")
        return f"{short}_draw" if self.draws else f"{short}_chances"
