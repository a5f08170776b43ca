"""What happens in the process of a script: it reads and prints, or one function of it is called."""

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
    """A program that is run once; with a `function` that is called once.

    With `published` it meets what it would meet in the published evaluator.
    """

    handler: ClassVar[str] = "cwm_apps.scripts:ScriptHandler"
    in_one_step: ClassVar[bool] = True
    aim: ClassVar[str] = "it came to its end"
    function: str = ""
    published: bool = False


class ScriptHandler(Handler[ScriptJob]):
    """Runs the text of a program, or calls the function of it that the job names."""

    job_class = ScriptJob

    def prepare(self) -> None:
        """Let the stack grow as far as a competitor's would.

        Calls from Python to Python need none of it, those through C (a cached function,
        the key of a sort) need some hundred bytes each.
        """
        _, hard = resource.getrlimit(resource.RLIMIT_STACK)
        soft = _STACK_BYTES if hard == resource.RLIM_INFINITY else min(_STACK_BYTES, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
        self._answers = published.keep_output() if self.job.published else 1

    def run(self, program: ConfinedProgram) -> None:
        """Run or call it."""
        _make_usual()
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


def _make_usual() -> None:
    """Have what programs know from elsewhere: threads, sizes of files, numbers of any length.

    There can be no thread. One that is started does its work at once, on the stack
    of who started it, so those that wait for each other hang.
    """
    for name, value in {"start": _start, "join": _ignore, "is_alive": _is_never}.items():
        setattr(threading.Thread, name, value)
    vars(atexit).update(register=_register, unregister=_unregister)
    vars(resource)["setrlimit"] = _ignore
    vars(os)["fstat"] = _fstat
    sys.set_int_max_str_digits(0)
    sys.argv = ["program.py"]


def _start(thread: threading.Thread) -> None:
    """Do the work of a thread; what it raises is printed and ends nothing else."""
    try:
        thread.run()
    except SystemExit:
        pass
    except BaseException:  # noqa: BLE001  # as with real threads
        traceback.print_exc()


_EXITS: list[functools.partial[Any]] = []
"""Calls that a program registers with `atexit`, which runs them only when an interpreter ends."""


def _register(function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Callable[..., Any]:
    """Call a function when the program ends."""
    _EXITS.append(functools.partial(function, *arguments, **named))
    return function


def _unregister(function: Callable[..., Any]) -> None:
    """Do not call a function when the program ends."""
    _EXITS[:] = [call for call in _EXITS if call.func != function]


def _run_exits() -> None:
    """Make the registered calls, the last one first, and print their exceptions."""
    while _EXITS:
        try:
            _EXITS.pop()()
        except BaseException:  # noqa: BLE001  # as `atexit` does
            traceback.print_exc()


def _ignore(*_: Any, **__: Any) -> None:
    """Do nothing."""


def _is_never(_: threading.Thread) -> bool:
    """Say no."""
    return False


def _fstat(descriptor: int) -> os.stat_result:
    """Say how large a file is, which some ask to read all of it; libc would name it by a path."""
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
        _run_exits()  # some programs print all that they have to say in these
        _flush(module)


def _flush(module: ModuleType) -> None:
    """Write out what an interpreter that ends would."""
    files = [value for value in vars(module).values() if isinstance(value, io.IOBase)]
    streams = {id(stream): stream for stream in (sys.stdout, sys.__stdout__, *files)}
    for stream in streams.values():
        if not getattr(stream, "closed", False):
            getattr(stream, "flush", _ignore)()


def _call(program: ConfinedProgram, name: str) -> None:
    """Call a function with the JSON in standard input and print its answer, and nothing else.

    The program is no `__main__`, so what it does for users on their own is left out.
    """
    arguments = json.load(sys.stdin)
    answers = sys.stdout
    vars(sys).update(stdout=sys.stderr, __stdout__=sys.stderr)
    module = _module("solution")
    vars(module).update(item for item in _USUAL.items() if item[0] != name)
    exec(program.code, vars(module))  # noqa: S102
    function = _function(module, name)
    program.begin()
    answers.write(_json(function(*arguments)))
    answers.flush()


def _function(module: ModuleType, name: str) -> Callable[..., Any]:
    """Return a method of the class Solution, or else a function."""
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
    """Write down what a function returned."""
    try:
        return json.dumps(value, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise Complaint(f"the function returned a value that is not JSON: {error}") from error


def _plain(value: Any) -> Any:
    """Return numbers and arrays of numpy as those of Python."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__}")


def _module(name: str) -> ModuleType:
    """Return a new module that can be imported."""
    sys.modules[name] = module = ModuleType(name)
    return module


def _usual() -> dict[str, Any]:
    """Return what sites that call functions have imported for them; it hides no built-in."""
    names = {"np": np, "numpy": np}
    for module in _BY_CONTENT:
        public = getattr(module, "__all__", None) or [n for n in vars(module) if n[0] != "_"]
        names |= {name: getattr(module, name) for name in public if not hasattr(builtins, name)}
    return names | {module.__name__: module for module in (*_BY_NAME, *_BY_CONTENT)}


_USUAL = _usual()
