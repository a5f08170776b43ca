"""Read keys from a terminal one by one, with a tick if time passes without a key."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, Self

from cwm_cli.errors import CwmError

SEQUENCES = {
    "[A": "up",
    "[B": "down",
    "[C": "right",
    "[D": "left",
    "[H": "home",
    "[F": "end",
    "[1~": "home",
    "[4~": "end",
    "[5~": "pageup",
    "[6~": "pagedown",
}
"""Key names by the characters after the escape character; some terminals send O for [."""

RESIZED = "resized"
"""The pseudo-key that reports a new terminal size, so that the screen is drawn again."""


class Keyboard:
    """The keys of the terminal at standard input, as a context manager that restores it.

    Args:
        fps: Ticks per second: the iterator yields None at this rate, whether or not a key is
            pressed. Without it, there are no ticks.
    """

    def __init__(self, fps: float | None = None) -> None:
        self._tick = None if fps is None else 1 / fps
        self._before: Any = None
        self._reader = self._writer = -1
        self._handler: Any = None
        self._woken = -1
        self._pending = b""

    def __enter__(self) -> Self:
        """Switch the terminal to unbuffered input without echo; Ctrl-C still interrupts.

        Raises:
            CwmError: Standard input is no terminal.
        """
        try:
            import termios
            import tty

            self._descriptor = sys.stdin.fileno()
            self._before = termios.tcgetattr(self._descriptor)
            tty.setcbreak(self._descriptor)
        except (ImportError, OSError, ValueError) as error:
            raise CwmError("no terminal to read keys from: choose --mode agent") from error
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        # A signal just before `select` would not interrupt it; the pipe wakes `select` instead.
        self._woken = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._handler = signal.signal(signal.SIGWINCH, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the terminal and the signal handlers."""
        import termios

        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)
        signal.signal(signal.SIGWINCH, self._handler)
        signal.set_wakeup_fd(self._woken)
        os.close(self._reader)
        os.close(self._writer)

    def __iter__(self) -> Iterator[str | None]:
        """Yield key names, `RESIZED`, or None for a tick, until the terminal closes."""
        due = time.monotonic() + (self._tick or 0)
        while True:
            left = None if self._tick is None else max(0.0, due - time.monotonic())
            ready, _, _ = select.select([self._descriptor, self._reader], [], [], left)
            if self._reader in ready and signal.SIGWINCH in os.read(self._reader, 1024):
                yield RESIZED
            if self._descriptor in ready:
                data = os.read(self._descriptor, 1024)
                if not data:
                    return
                yield from self._complete_keys(data)
            if self._tick is not None and time.monotonic() >= due:
                due = time.monotonic() + self._tick
                yield None

    def _complete_keys(self, data: bytes) -> Iterator[str]:
        """Yield the keys in `data`; wait for the rest of an incomplete escape sequence."""
        escape_seconds = 0.05  # time to wait for the rest of an escape sequence
        while data.endswith(b"\x1b") or data[-2:] in (b"\x1b[", b"\x1bO"):
            if not select.select([self._descriptor], [], [], escape_seconds)[0]:
                break
            more = os.read(self._descriptor, 1024)
            if not more:
                break
            data += more
        yield from read_keys(data.decode("utf-8", "replace"))


def read_keys(text: str) -> Iterator[str]:
    """Yield the names of the keys in the input of a terminal; skip unknown sequences."""
    place = 0
    while place < len(text):
        character = text[place]
        place += 1
        if character == "\x1b" and place < len(text) and text[place] in "[O":
            end = place + 1
            while end < len(text) and not ("@" <= text[end] <= "~"):
                end += 1
            found = SEQUENCES.get("[" + text[place + 1 : end + 1])
            place = end + 1
            if found:
                yield found
        elif character in "\r\n":
            yield "enter"
        elif character == " ":
            yield "space"
        elif character.isprintable():
            yield character
