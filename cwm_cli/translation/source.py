"""A traced program as a readable module with the function `step`, for use without `cwm`.

`step(state, action)` returns the next state, the reward and whether the episode ended. The state is
the observation in the types of programs: float64 or int64. There are three forms:

- `python` computes a single environment with plain numbers; a state is a list of numbers.
- `numpy` computes many environments; states are (environments, components), or (environments,) for
  single whole numbers.
- `jax` computes a single environment with arrays of JAX, under `jit`, `vmap` and `grad`.

Variables and constants have the names that the program gives them. Rarely, only the program itself
can compute a step, for instance because its loop takes too many rounds. Then the reward is NaN; the
form `python` raises OverflowError.
"""

import ast
import builtins
import keyword
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from textwrap import indent, wrap
from typing import Literal

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.translation.emission import CodeWriter
from cwm_cli.translation.expressions import FUNCTIONS, TraceNode, Unsupported, topological_order
from cwm_cli.translation.states import Trace

SourceForm = Literal["python", "numpy", "jax"]

Constants = dict[float, tuple[str, float]]
"""Names and values of constants, by absolute value."""

MAX_LENGTH = 60
"""Maximum length of an expression inside another one, in characters."""

MAX_LINE_LENGTH = 96
"""Maximum length of a line, without the indentation of the function, in characters."""

MAX_COMPONENTS = 100
"""Maximum number of components of an observation; each one is a variable."""

_MODULES = {"python": "math", "numpy": "numpy as np", "jax": "jax.numpy as jnp"}
_MATH = {name for name in vars(math) if not name.startswith("_")}


class SourceWriter(CodeWriter):
    """A writer of nodes as lines with short expressions and the names of the program.

    Args:
        outputs: The nodes that will be written.
        inputs: Variables of the inputs.
        trace: The trace of the nodes.
        constants: Names and values of constants, by absolute value.
        form: The form of the module.
    """

    def __init__(
        self,
        outputs: Sequence[TraceNode],
        inputs: dict[TraceNode, str],
        trace: Trace,
        constants: Constants,
        form: SourceForm,
    ) -> None:
        self.rounds = False
        self.used_constants: dict[str, float] = {}
        self._noted, self._constants, self._form = trace.tracer.graph.names, constants, form
        self._taken = {*inputs.values(), *_MATH, *vars(builtins), "np", "jnp", "state", "step"}
        self._taken |= {name for name, _ in constants.values()}
        self._table_names: dict[TraceNode, str] = {}
        super().__init__(outputs, inputs, trace.tracer, lanes=form != "python")

    def text(self, root: TraceNode) -> str:
        """Return an expression for a node, after writing the lines that it depends on."""
        for node in topological_order([root], self._names):
            if node.op == "const":
                self._names[node] = self._constant(node)
                continue
            text = self._template(node).format(*[self._names[arg] for arg in node.args])
            text = self.tidy(text)
            if self._uses[node] > 1 or node in self._noted or len(text) > MAX_LENGTH:
                name = self.variable(self._noted.get(node) or self._describe(node))
                self.lines.append(f"{name} = {text}")
                text = name
            self._names[node] = text if text.isidentifier() else f"({text})"
        return self._names[root]

    def expression(self, node: TraceNode) -> str:
        """Return an expression as `text` does, without superfluous brackets."""
        return self.tidy(self.text(node))

    def bind(self, symbol: TraceNode, value: TraceNode, name: str) -> None:
        """Write a symbol as a value, or as a variable with the value if that is an expression."""
        text = self.expression(value)
        if not text.isidentifier() or value.op == "const":
            text, written = self.variable(name), text
            self.lines.append(f"{text} = {written}")
            self._names[value] = text
        self._names[symbol] = text

    def variable(self, name: str) -> str:
        """Return the name of a new variable, with a number if the name is taken."""
        base = name if name.isidentifier() and not keyword.iskeyword(name) else "value"
        number, made = 1, base
        while made in self._taken:
            number += 1
            made = f"{base}_{number}"
        self._taken.add(made)
        return made

    def _describe(self, node: TraceNode) -> str:
        """Return a name for a node without a name in the program, such as `sin_angle`."""
        names = [self._names[arg] for arg in node.args]
        if len(names) == 1 and node.op in FUNCTIONS and names[0].isidentifier():
            return f"{node.op}_{names[0]}"
        return "is_case" if node.kind == "b" else "part"

    def tidy(self, text: str) -> str:
        """Remove superfluous brackets, and name the modules of functions."""
        tree = ast.parse(text, mode="eval")
        if self._form == "python":
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") in _MATH:
                    node.func = ast.parse(f"math.{ast.unparse(node.func)}", mode="eval").body
        if self._form == "jax":
            for node in ast.walk(tree):
                if isinstance(node, ast.Name) and node.id == "np":
                    node.id = "jnp"
        return ast.unparse(tree)

    def _template(self, node: TraceNode) -> str:
        text = super()._template(node)
        if text.startswith("unpack(pack("):  # rounding to single precision
            self.rounds = True
            return f"single({text.removeprefix('unpack(pack(').removesuffix('))[0]')})"
        return text

    def _constant(self, node: TraceNode) -> str:
        value, text = node.value, self._literal(node)
        if text in ("INF", "(-INF)", "NAN"):
            text = text.replace("INF", "math.inf").replace("NAN", "math.nan")
            return text if self._form == "python" else text.replace("math.", "np.")
        known = self._constants.get(abs(value)) if node.kind == "f" else None
        if known is None:
            return text
        name, own = known
        self.used_constants[name] = own
        return name if value == own else f"(-{name})"

    def _lookup_template(self, node: TraceNode) -> str:
        """Return the lookup in a table, which is named after its value or its first use."""
        plain = super()._lookup_template(node)
        table = f"T{node.number}"
        base = (self._noted.get(node) or "table").upper()
        place = node.args[0]
        index = place.args[0] if place.op == "subtract" else place
        if table not in self._table_names.values() and node not in self._table_names:
            by = "_BY_ACTION" if index.op == "action" else ""
            self._table_names[node] = self.variable(base + by)
        self.tables[self._table_names[node]] = self.tables.pop(table)
        return plain.replace(table, self._table_names[node])


def write_module(trace: Trace, program: str, spaces: tuple[Space, Space], form: SourceForm) -> str:
    """Return the source text of a module with the function `step`.

    Args:
        trace: The trace of the program.
        program: The text of the program, whose constants keep their names.
        spaces: The observation and action spaces.
        form: The form of the module.

    Raises:
        Unsupported: An observation has too many components.
    """
    if len(trace.observation) > MAX_COMPONENTS:
        raise Unsupported(f"an observation has more than {MAX_COMPONENTS} components")
    return _ModuleWriter(trace, program, spaces, form).text()


class _ModuleWriter:
    """Writes the module of a trace: its constants and tables, and the function `step`."""

    def __init__(
        self, trace: Trace, program: str, spaces: tuple[Space, Space], form: SourceForm
    ) -> None:
        self._trace, self._form = trace, form
        self._observation_space, self._action_space = spaces
        self._is_number = self._observation_space.kind == "discrete"
        self._module = {"python": "math", "numpy": "np", "jax": "jnp"}[form]
        names = trace.tracer.graph.names
        slots = dict(zip(trace.slots, trace.entry_state, strict=True))
        # A slot that is a component of the observation shares its variable.
        for slot, entry in slots.items():
            if slot in names and entry.op == "symbol":
                names.setdefault(entry, names[slot])
        inputs = self._input_names(trace.observation, "x")
        if self._is_number:
            inputs = {trace.observation[0]: "state"}
        inputs |= self._action_names(inputs)
        graph = trace.tracer.graph
        self._failure = graph.apply("logical_or", trace.entry_failure, trace.failure)
        outputs = [*trace.entry_state, *trace.next_observation, trace.reward, trace.terminated]
        outputs.append(self._failure)
        self._can_fail = self._failure.op != "const"
        self._writer = SourceWriter(outputs, inputs, trace, _constants(program), form)
        self._observation = [inputs[node] for node in trace.observation]
        self._action = [inputs[node] for node in trace.action]
        self._slots = slots

    def _input_names(self, nodes: Sequence[TraceNode], letter: str) -> dict[TraceNode, str]:
        names = self._trace.tracer.graph.names
        wanted = [names.get(node, f"{letter}{place}") for place, node in enumerate(nodes)]
        count = Counter(wanted)
        taken = {"action", "state", "np", "jnp", "math"}
        return {
            node: name if count[name] == 1 and name not in taken else f"{letter}{place}"
            for place, (node, name) in enumerate(zip(nodes, wanted, strict=True))
        }

    def _action_names(self, inputs: dict[TraceNode, str]) -> dict[TraceNode, str]:
        action = self._trace.action
        if len(action) == 1 and (action[0].op == "action" or self._action_space.kind == "discrete"):
            return {action[0]: "action"}
        return self._input_names(action, "a") if inputs else {}

    def text(self) -> str:
        """Return the text of the module."""
        writer, trace = self._writer, self._trace
        lines = [*self._unpack(self._observation, "state"), *self._unpack(self._action, "action")]
        for slot, entry in self._slots.items():
            name = trace.tracer.graph.names.get(slot) or str(slot.value).rpartition(".")[2]
            writer.bind(slot, entry, name if name.isidentifier() else "hidden")
        if self._can_fail and self._form == "python":
            condition = writer.expression(self._failure)
            writer.lines += [f"if {condition}:", "    raise OverflowError(NEEDS_PROGRAM)"]
        results = [writer.expression(node) for node in trace.next_observation]
        reward, ended = writer.expression(trace.reward), writer.expression(trace.terminated)
        if self._can_fail and self._form != "python":
            failure = writer.expression(self._failure)
            reward = f"{self._module}.where({failure}, {self._module}.nan, {reward})"
        lines += [*writer.lines, *self._results(results, reward, ended)]
        body = "\n".join([f'"""{self._describe()}\n"""', *map(_wrapped, lines)])
        function = f"def step(state, action):\n{indent(body, '    ')}\n"
        return "\n".join([*self._head(uses_math="math." in function), "", function])

    def _unpack(self, names: list[str], source: str) -> list[str]:
        if names == [source]:  # a single number
            return []
        columns = f"{source}.T" if self._form == "numpy" else source
        return [f"{', '.join(names)}{',' if len(names) == 1 else ''} = {columns}"]

    def _results(self, results: Sequence[str], reward: str, ended: str) -> list[str]:
        """Return the lines that assemble and return the results."""
        trace = self._trace
        if self._form == "python":
            state = results[0] if self._is_number else f"[{', '.join(results)}]"
            ended = ended if trace.terminated.op == "const" else f"bool({ended})"
            return [f"next_state = {state}", f"return next_state, float({reward}), {ended}"]
        kind = "float" if self._observation_space.is_float else "int"
        pairs = zip(results, trace.next_observation, strict=True)
        columns = [self._filled(text, node, kind) for text, node in pairs]
        state = columns[0] if self._is_number else f"{self._module}.stack([{', '.join(columns)}])"
        state += ".T" if self._form == "numpy" and not self._is_number else ""
        if not self._can_fail:
            reward = self._filled(reward, trace.reward, "float")
        ended = self._filled(ended, trace.terminated, "bool")
        return [f"next_state = {state}", f"return next_state, {reward}, {ended}"]

    def _filled(self, text: str, node: TraceNode, kind: str) -> str:
        """Return the expression of a node as an array, also if it is a constant."""
        if any(each.op in ("symbol", "action") for each in topological_order([node])):
            return text
        if self._form == "jax":
            return f"jnp.asarray({text}, {kind})"
        shape = "state.shape" if self._is_number else "state.shape[:1]"
        return f"np.full({shape}, {text})"

    def _describe(self) -> str:
        parts = "the observation" if self._is_number else f"({', '.join(self._observation)})"
        first = {
            "python": "Take an action in one environment; numbers are plain.",
            "numpy": "Take an action in each environment; the first axis is the environment.",
            "jax": "Take an action in one environment; use `jax.vmap` for many.",
        }[self._form]
        return "\n".join([first, "", *wrap(f"The state is {parts}.", 92), *_RETURNS])

    def _head(self, *, uses_math: bool) -> list[str]:
        constants = [f"{name} = {value!r}" for name, value in self._writer.used_constants.items()]
        tables = [
            _table(name, values, self._module) for name, values in self._writer.tables.items()
        ]
        module = _MODULES[self._form]
        needs = self._form != "python" or uses_math
        if self._can_fail and self._form == "python":
            constants.append(f"NEEDS_PROGRAM = {NEEDS_PROGRAM!r}")
        return [
            '"""The function `step`, translated from `program.py`."""',
            "",
            *([f"import {module}"] if needs else []),
            *(["import struct"] if self._writer.rounds else []),
            *([""] if needs or self._writer.rounds else []),
            *constants,
            *tables,
            *([""] if constants or tables else []),
            *(_SINGLE if self._writer.rounds else []),
        ]


_SINGLE = [
    "",
    "def single(number):",
    '    """Round a number to single precision."""',
    '    return struct.unpack("f", struct.pack("f", number))[0]',
    "",
]
NEEDS_PROGRAM = "only program.py can compute this step"
_RETURNS = ["Returns the next state, the reward, and whether the episode ended."]


def _table(name: str, values: Iterable[object], module: str) -> str:
    """Return the line that defines a table."""
    items = np.asarray(values).tolist()
    text = repr(items) if module == "math" else f"{module}.array({items!r})"
    if len(name) + len(text) < 96:
        return f"{name} = {text}"
    rows = indent("\n".join(wrap(f"{repr(items)[1:-1]},", 92)), "    ")
    inner = f"[\n{rows}\n]"
    return f"{name} = {inner}" if module == "math" else f"{name} = {module}.array({inner})"


def _wrapped(line: str) -> str:
    """Return a line as several lines in brackets if it is too long."""
    if len(line) <= MAX_LINE_LENGTH:
        return line
    start, sign, rest = (
        ("return", " ", line[7:]) if line.startswith("return ") else line.partition(" = ")
    )
    inner = "\n".join(
        wrap(rest, MAX_LINE_LENGTH - 4, break_long_words=False, break_on_hyphens=False)
    )
    return f"{start}{sign}(\n{indent(inner, '    ')}\n)"


def _constants(program: str) -> Constants:
    """Return the module constants of a program that no other constant equals or negates."""
    found: dict[float, list[tuple[str, float]]] = {}
    for node in ast.parse(program).body:
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
            continue
        try:
            value = ast.literal_eval(node.value)
        except ValueError:
            continue
        if type(value) is float and value not in (0.0, 1.0, -1.0, 2.0, 0.5):
            found.setdefault(abs(value), []).append((node.targets[0].id, value))
    return {value: names[0] for value, names in found.items() if len(names) == 1}
