"""Programs as machine code, where `numba` is installed; it is imported only when that is wanted."""

from importlib.util import find_spec

from cwm_cli.planning.compiled.lowering import machine_code
from cwm_cli.planning.compiled.model import CompiledModel
from cwm_cli.planning.compiled.tools import tools
from cwm_cli.planning.traced.graph import Graph
from cwm_cli.planning.traced.model import Traced
from cwm_cli.planning.traced.tracing import Trace

__all__ = ["CompiledModel", "available", "compiled", "warm_up"]


def available() -> bool:
    """Whether what compiles is installed."""
    return find_spec("numba") is not None


def warm_up() -> None:
    """Load and compile all that `compiled` needs, which takes seconds.

    Processes forked from this one then compile programs without opening files,
    starting threads or programs: it takes memory that can be executed.
    """
    tools()
    machine_code(_sample())


def compiled(traced: Traced, trace: Trace) -> CompiledModel:
    """Compile a trace, in memory; `warm_up` must have been called in this process or its parent."""
    return CompiledModel(traced, machine_code(trace), len(trace.state))


def _sample() -> Trace:
    """Return a trace that uses every part of the compiler once."""
    graph = Graph(range(3))
    symbol = graph.symbol("s0", "f")
    turned = graph.apply("sin", graph.apply("remainder", symbol, symbol, kind="f"), kind="f")
    table = graph.table([1.0, 2.0, 4.0], "f")
    total = graph.apply("add", turned, table, kind="f")
    end = graph.apply("less", total, symbol, kind="b")
    return Trace(
        graph,
        observation=(symbol,),
        action=(graph.action,),
        state=(symbol,),
        entered=(symbol,),
        following=(graph.select(end, total, turned),),
        observed=(graph.apply("sqrt", total, kind="f"),),
        reward=total,
        terminated=end,
        odd_entry=graph.false,
        odd=graph.false,
    )
