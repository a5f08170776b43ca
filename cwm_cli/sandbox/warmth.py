"""What a process does before it serves programs: import what they use, prepare the guards."""

import faulthandler
import gc
import importlib
import os
import signal
import sys
from contextlib import suppress

import numpy as np

from cwm_cli.sandbox.confinement import Guards
from cwm_cli.sandbox.handlers import handler_class
from cwm_cli.sandbox.linux import landlock_version
from cwm_cli.sandbox.protocol import Hello, Setup

PRELOADED = """
abc argparse array ast atexit base64 binascii bisect calendar cmath codecs collections.abc colorsys
contextlib copy csv dataclasses datetime decimal difflib enum errno fractions functools getpass
graphlib gzip hashlib heapq html inspect io itertools json keyword linecache locale logging math
numbers operator os.path pathlib pickle pprint queue random re reprlib resource sched secrets select
shlex signal statistics string stringprep struct sys tempfile textwrap threading time timeit
token tokenize traceback types typing unicodedata uuid warnings weakref zlib
_strptime encodings.ascii encodings.latin_1 encodings.utf_16 encodings.utf_8_sig encodings.idna
numpy.char numpy.fft numpy.lib.stride_tricks numpy.linalg numpy.ma numpy.polynomial numpy.random
numpy.rec numpy.strings
"""
"""Modules that programs find imported: those that compute, and those that these import late."""

ALWAYS = ("numpy",)
FORBIDDEN = "gymnasium"
"""It holds the true environments, each of which would be a perfect model of itself."""


class BadTool(Exception):
    """A tool cannot be given to programs; the text says why."""


def warm_up(setup: Setup) -> tuple[Guards, Hello]:
    """Import and touch what programs use, so that no program pays for it."""
    faulthandler.enable(file=2, all_threads=False)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)
    for name in PRELOADED.split():
        importlib.import_module(name)
    np.random.default_rng(0).normal(size=3)
    np.linalg.inv(np.eye(2))
    str(np.array([1.5]))
    complaint = ""
    try:
        for tool in setup.tools:
            _load(tool)
        for address in setup.handlers:
            _load_handler(address)
        if setup.compiling:
            importlib.import_module("cwm_cli.planning.compiled").warm_up()
    except BadTool as error:
        complaint = str(error)
    guards = Guards(setup.layers, (*ALWAYS, *setup.tools), compiling=setup.compiling)
    guards.inherited()
    sys.meta_path.insert(0, guards.imports)
    sys.path.clear()
    sys.path_importer_cache.clear()
    os.environ.clear()
    gc.freeze()
    gc.enable()
    return guards, Hello(guards.layers, landlock_version(), complaint)


def _load_handler(address: str) -> None:
    """Import what does a kind of job."""
    handler_class(address)
    if FORBIDDEN in sys.modules:
        raise ImportError(f"the handler {address} imports {FORBIDDEN}, which programs could use")


def _load(tool: str) -> None:
    """Import a tool and whatever it imports only when that is first used."""
    try:
        module = importlib.import_module(tool)
    except BaseException as error:
        raise BadTool(f"{tool!r} cannot be imported ({type(error).__name__}: {error})") from error
    for name in dir(module):
        with suppress(Exception):  # a part that cannot be loaded here cannot be used, either
            getattr(module, name)
    if FORBIDDEN in sys.modules:
        raise BadTool(f"{tool!r} imports {FORBIDDEN}, in which a program could look up its answers")
