"""Run a script in its confined process: it reads and prints, or one function is called."""

import atexit
import bisect
import builtins
import collections
import copy
import datetime
import functools
import heapq
import io
import itertools
import json
import math
import operator
import os
import random
import re
import resource
import stat
import string
import sys
import threading
import time
import traceback
import typing
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from cwm_apps import published
from cwm_cli.sandbox.handlers import Complaint, ConfinedProgram, Handler, reseed
from cwm_cli.sandbox.job import Job

_STACK_BYTES = 512 << 20
_BY_NAME = (copy, datetime, operator, random, re, string, sys, time)
_BY_CONTENT = (typing, collections, functools, heapq, bisect, itertools, math)


@dataclass(frozen=True, kw_only=True)
class ScriptJob(Job):
    """A program that runs once, or whose `function` is called once.

    With `published`, the program runs in the environment of the published evaluator.
    """

    handler: ClassVar[str] = "cwm_apps.scripts:ScriptHandler"
    in_one_step: ClassVar[bool] = True
    aim: ClassVar[str] = "it was finished"
    function: str = ""
    published: bool = False


class ScriptHandler(Handler[ScriptJob]):
    """Run the source of a program, or call the function that the job names."""

    job_class = ScriptJob

    def prepare(self) -> None:
        """Raise the stack limit to a size that programming competitions allow.

        Calls from Python to Python need no C stack. Calls through C (a cached function, the key of
        a sort) need some hundred bytes each.
        """
        _, hard = resource.getrlimit(resource.RLIMIT_STACK)
        soft = _STACK_BYTES if hard == resource.RLIM_INFINITY else min(_STACK_BYTES, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
        self._answers = published.keep_output() if self.job.published else 1

    def run(self, program: ConfinedProgram) -> None:
        """Run the program or call its function."""
        _patch_modules()
        if self.job.draws:
            reseed(self.job.seed)
        name, answers = self.job.function, self._answers
        if self.job.published and name:
            method = "class Solution" in self.job.program
            published.call(program.code, name, program.begin, answers, method=method)
        elif self.job.published:
            published.run(program.code, program.begin, answers)
        elif name:
            _call(program, name)
        else:
            _run(program)


def _patch_modules() -> None:
    """Replace functions that confinement disables: threads, file sizes and exit functions.

    Integers may have any number of digits. No thread can be created: a started thread runs
    immediately, on the stack of its caller, so threads that wait for each other hang.
    """
    methods = {"start": _start, "join": _ignore, "is_alive": lambda thread: False}
    for name, value in methods.items():
        setattr(threading.Thread, name, value)
    vars(atexit).update(register=_register, unregister=_unregister)
    vars(resource)["setrlimit"] = _ignore
    vars(os)["fstat"] = _fstat
    sys.set_int_max_str_digits(0)
    sys.argv = ["program.py"]


def _start(thread: threading.Thread) -> None:
    """Run a thread's work. Its exceptions are printed and stop nothing else."""
    try:
        thread.run()
    except SystemExit:
        pass
    except BaseException:  # noqa: BLE001  # as with real threads
        traceback.print_exc()


_EXITS: list[functools.partial[Any]] = []
"""Calls that a program registers with `atexit`, which only runs them at interpreter exit."""


def _register(function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Callable[..., Any]:
    """Register a call for the end of the program."""
    _EXITS.append(functools.partial(function, *arguments, **named))
    return function


def _unregister(function: Callable[..., Any]) -> None:
    """Remove the registered calls of a function."""
    _EXITS[:] = [call for call in _EXITS if call.func != function]


def _run_exits() -> None:
    """Run the registered calls, the last one first, and print their exceptions."""
    while _EXITS:
        try:
            _EXITS.pop()()
        except BaseException:  # noqa: BLE001  # as `atexit` does
            traceback.print_exc()


def _ignore(*_: Any, **__: Any) -> None:
    """Do nothing."""


def _fstat(descriptor: int) -> os.stat_result:
    """Return the size of a file, which some programs need to read the whole file.

    The system's `fstat` would look the file up by a path, which confinement forbids.
    """
    here = os.lseek(descriptor, 0, os.SEEK_CUR)
    size = os.lseek(descriptor, 0, os.SEEK_END)
    os.lseek(descriptor, here, os.SEEK_SET)
    return os.stat_result((stat.S_IFREG | 0o600, 0, 0, 1, 0, 0, size, 0, 0, 0))


def _run(program: ConfinedProgram) -> None:
    """Run a program that reads standard input and writes standard output."""
    program.begin()
    module = _module("__main__")
    try:
        exec(program.code, vars(module))  # noqa: S102
    except SystemExit as end:
        if end.code:
            raise
    finally:
        _run_exits()  # some programs print everything in exit functions
        _flush(module)


def _flush(module: ModuleType) -> None:
    """Flush the files that an interpreter flushes when it exits."""
    files = [value for value in vars(module).values() if isinstance(value, io.IOBase)]
    streams = {id(stream): stream for stream in (sys.stdout, sys.__stdout__, *files)}
    for stream in streams.values():
        if not getattr(stream, "closed", False):
            getattr(stream, "flush", _ignore)()


def _call(program: ConfinedProgram, name: str) -> None:
    """Call a function with the JSON in standard input, and print only its return value.

    The program is not `__main__`, so code below `if __name__ == "__main__"` does not run.
    """
    arguments = json.load(sys.stdin)
    answers = sys.stdout
    vars(sys).update(stdout=sys.stderr, __stdout__=sys.stderr)
    module = _module("solution")
    vars(module).update(item for item in _PREIMPORTED.items() if item[0] != name)
    exec(program.code, vars(module))  # noqa: S102
    function = _function(module, name)
    program.begin()
    answers.write(_json(function(*arguments)))
    answers.flush()


def _function(module: ModuleType, name: str) -> Callable[..., Any]:
    """Return a method of the class Solution, or a function of the module."""
    solution = getattr(module, "Solution", None)
    if hasattr(solution, name) and callable(solution):
        module = solution()
    function = getattr(module, name, None)
    if not callable(function):
        raise Complaint(
            f"the program defines neither a function {name} nor a class Solution with that method"
        )
    return typing.cast(Callable[..., Any], function)


def _json(value: Any) -> str:
    """Return the value of a function as JSON."""
    try:
        return json.dumps(value, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise Complaint(f"the function returned a value that is not JSON: {error}") from error


def _plain(value: Any) -> Any:
    """Convert numpy numbers and arrays to Python values."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__}")


def _module(name: str) -> ModuleType:
    """Return a new module that can be imported."""
    sys.modules[name] = module = ModuleType(name)
    return module


def _preimported_names() -> dict[str, Any]:
    """Return the names that competition sites import for functions, without built-in names."""
    names = {"np": np, "numpy": np}
    for module in _BY_CONTENT:
        public = getattr(module, "__all__", None) or [n for n in vars(module) if n[0] != "_"]
        names |= {name: getattr(module, name) for name in public if not hasattr(builtins, name)}
    return names | {module.__name__: module for module in (*_BY_NAME, *_BY_CONTENT)}


_PREIMPORTED = _preimported_names()
