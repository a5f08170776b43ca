"""A trace as machine code, by way of the compiler that numba brings along."""

from collections.abc import Sequence
from math import nan
from typing import Any, NamedTuple

from cwm_cli.planning.compiled.instructions import Instructions
from cwm_cli.planning.compiled.tools import tools
from cwm_cli.planning.traced.node import Node
from cwm_cli.planning.traced.rewriting import ordered
from cwm_cli.planning.traced.tracing import Trace


class Code(NamedTuple):
    """The address of `advance(state, action)`, good while the engine lives.

    Both arguments are addresses of doubles. It puts the next state in place of
    the state and behind it whether the episode has ended, and returns the
    reward: not a number where the program does something else.
    """

    advance: int
    engine: Any


def machine_code(trace: Trace) -> Code:
    """Compile a step, in memory."""
    llvm = tools().llvm
    module = llvm.parse_assembly(assembly(trace))
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    engine = llvm.create_mcjit_compiler(module, target)
    engine.finalize_object()
    return Code(engine.get_function_address("advance"), engine)


def assembly(trace: Trace) -> str:
    """Write a step for the compiler."""
    ir = tools().ir
    module = ir.Module()
    reward = trace.graph.select(trace.odd, trace.graph.constant(nan), trace.reward)
    step = Lowering(ir, module, [trace.state, trace.action])
    step.write([*trace.following, trace.terminated], 0)
    step.finish(reward)
    return str(module)


class Lowering:
    """Writes the function; symbols are read from its arguments and results put there."""

    def __init__(self, ir: Any, module: Any, inputs: Sequence[Sequence[Node]]) -> None:
        double, self._address = ir.DoubleType(), ir.IntType(64)
        kind = ir.FunctionType(double, [self._address] * len(inputs))
        function = ir.Function(module, kind, "advance")
        self._builder = ir.IRBuilder(function.append_basic_block())
        self._instructions = Instructions(ir, module, self._builder)
        self._pointers = [self._builder.inttoptr(one, double.as_pointer()) for one in function.args]
        self._values: dict[Node, Any] = {}
        self._results: list[tuple[Any, Any]] = []
        for pointer, symbols in zip(self._pointers, inputs, strict=True):
            for place, symbol in enumerate(symbols):
                value = self._builder.load(self._element(pointer, place))
                self._values[symbol] = self._instructions.converted(value, "f", symbol.kind)

    def write(self, outputs: Sequence[Node], argument: int) -> None:
        """Compute what is put where an argument says."""
        for place, node in enumerate(outputs):
            where = self._element(self._pointers[argument], place)
            self._results.append((self._double(node), where))

    def finish(self, result: Node) -> None:
        """Put everything where it belongs, now that nothing is read any more, and return."""
        returned = self._double(result)
        for value, where in self._results:
            self._builder.store(value, where)
        self._builder.ret(returned)

    def _element(self, pointer: Any, place: int) -> Any:
        """Return the address of an element."""
        return self._builder.gep(pointer, [self._address(place)])

    def _double(self, node: Node) -> Any:
        """Return a node's value as a double."""
        for inner in ordered([node], self._values):
            self._values[inner] = self._lowered(inner)
        return self._instructions.converted(self._values[node], node.kind, "f")

    def _lowered(self, node: Node) -> Any:
        """Return the value of a node whose operands have one."""
        if node.is_constant:
            return self._instructions.constant(node.value, node.kind)
        values = [self._values[operand] for operand in node.operands]
        if node.operation in ("table", "index"):
            place = node.operands[0]
            return self._instructions.chosen(node.values, node.kind, values[0], place.kind)
        return self._instructions.apply(node, values)
