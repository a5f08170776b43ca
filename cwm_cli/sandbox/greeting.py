"""What is agreed when a worker starts: how it is to be, and which guards it has."""

import json
import socket
import sys
from struct import Struct
from typing import NamedTuple, Self

from cwm_cli.sandbox.confinement import LAYERS
from cwm_cli.sandbox.job import PredictionJob
from cwm_cli.sandbox.protocol import receive_exactly

FLAGS = ("-s", "-P", *(["-B"] if sys.dont_write_bytecode else []), "-c")
"""How Python is started: without what the user or the folder would add to it.

Bytecode is kept where this process keeps it: some modules are imported nowhere but in a worker.
"""

BEGINNING = "import gc, os; gc.disable(); os.register_at_fork = lambda **_: None"
"""Keeps modules from doing work in each forked process: there are no threads, and seeds are set.

Garbage is not looked for until `warm_up` is done: importing leaves next to none.
"""

_MAGIC = b"cwm1"
_HEAD = Struct("<4sI")
_LONGEST = 1 << 16


class Setup(NamedTuple):
    """What a worker is to be like.

    `tools` are modules that programs may import beside the usual ones, and
    `layers` the guards to put up where the machine has them. A `cold` worker
    starts an interpreter for every program instead of forking itself, which is
    not safe on macOS once numpy is loaded. `handlers` are the addresses of what does
    the jobs that it may be given. A `compiling` worker lets the process of a program
    run machine code that is made there.
    """

    tools: tuple[str, ...] = ()
    layers: tuple[str, ...] = LAYERS
    cold: bool = sys.platform != "linux"
    handlers: tuple[str, ...] = (PredictionJob.handler,)
    compiling: bool = False

    def encode(self) -> str:
        """Return the setup as text."""
        return json.dumps(self._asdict())

    @classmethod
    def decode(cls, text: str) -> Self:
        """Read what `encode` returned."""
        parts = json.loads(text)
        lists = {name: tuple(parts[name]) for name in ("tools", "layers", "handlers")}
        return cls(**parts | lists)


class Hello(NamedTuple):
    """What a worker says once it is ready: its guards, or why it will not work.

    `layers` says of each guard whether it is on, or why not; `landlock` is the
    version that the kernel has; `complaint` is what is wrong with a tool; `twin` is
    the process of the worker that was forked from this one, or 0.
    """

    layers: dict[str, str]
    landlock: int = 0
    complaint: str = ""
    twin: int = 0

    def send(self, control: socket.socket) -> None:
        """Send the greeting."""
        text = json.dumps(self._asdict()).encode()
        control.sendall(_HEAD.pack(_MAGIC, len(text)) + text)

    @classmethod
    def receive(cls, control: socket.socket) -> Self:
        """Wait for a greeting; EOFError when the worker is gone, ValueError when it is none."""
        magic, size = _HEAD.unpack(receive_exactly(control, _HEAD.size))
        if magic != _MAGIC or size > _LONGEST:
            raise ValueError(f"a greeting of the worker begins with {magic!r}")
        try:
            parts = json.loads(receive_exactly(control, size))
        except RecursionError as error:
            raise ValueError("a greeting of the worker is nested too deeply") from error
        match parts:
            case {
                "layers": dict(layers),
                "landlock": int(landlock),
                "complaint": str(complaint),
                "twin": int(twin),
            }:
                if twin >= 0 and all(isinstance(state, str) for state in layers.values()):
                    return cls(layers, landlock, complaint, twin)
        raise ValueError("a greeting of the worker lacks a part")
