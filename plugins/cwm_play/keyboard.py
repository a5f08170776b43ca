"""Keys that are pressed on a terminal, one by one, and time that goes on without any."""

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
"""What terminals send behind an escape character; some write O for [."""

RESIZED = "resized"
"""What is told as a key when the terminal has another size: all is drawn anew."""

ESCAPED = 0.05
"""Seconds in which what belongs to an escape character comes."""


class Keyboard:
    """The keys of the terminal that is standard input; to be used by `with`, which restores it.

    With `fps` time goes on: so often a second None is told, whether or not a key was pressed.
    """

    def __init__(self, fps: float | None = None) -> None:
        self._tick = None if fps is None else 1 / fps
        self._before: Any = None
        self._reader = self._writer = -1
        self._handler: Any = None
        self._woken = -1
        self._pending = b""

    def __enter__(self) -> Self:
        """Have keys told as they are pressed, without an echo; Ctrl-C interrupts as ever."""
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
        # a signal that comes just before it is waited for a key interrupts nothing: it is read
        self._woken = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._handler = signal.signal(signal.SIGWINCH, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the terminal as it was."""
        import termios

        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)
        signal.signal(signal.SIGWINCH, self._handler)
        signal.set_wakeup_fd(self._woken)
        os.close(self._reader)
        os.close(self._writer)

    def __iter__(self) -> Iterator[str | None]:
        """Yield keys until the terminal is gone."""
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
                yield from self._keys(data)
            if self._tick is not None and time.monotonic() >= due:
                due = time.monotonic() + self._tick
                yield None

    def _keys(self, data: bytes) -> Iterator[str]:
        """Yield the keys of what was read; an escape character waits for what belongs to it."""
        while data.endswith(b"\x1b") or data[-2:] in (b"\x1b[", b"\x1bO"):
            if not select.select([self._descriptor], [], [], ESCAPED)[0]:
                break
            more = os.read(self._descriptor, 1024)
            if not more:
                break
            data += more
        yield from read_keys(data.decode("utf-8", "replace"))


def read_keys(text: str) -> Iterator[str]:
    """Yield the keys of what a terminal sent; sequences of no known key are left out."""
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
