"""What compiles programs, imported when it is first asked for."""

from functools import cache
from importlib import import_module
from typing import Any, NamedTuple


class Tools(NamedTuple):
    """The compiler, what its input is written with, and the compiled loops."""

    llvm: Any
    ir: Any
    kernels: Any


@cache
def tools() -> Tools:
    """Import and compile, which takes seconds; later calls import nothing."""
    llvm = import_module("llvmlite.binding")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    kernels = import_module("cwm_cli.planning.compiled.kernels")
    return Tools(llvm, import_module("llvmlite.ir"), kernels)
