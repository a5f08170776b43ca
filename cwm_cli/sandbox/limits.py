"""What a program may use up before it is stopped."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from cwm_cli.errors import CwmError

DRAWS_IN_TIME = 16
"""Draws of each row for which there is as much time again: a program that answers a row in 30
microseconds makes 64 of each of 20,000 rows."""

_DAY_SECONDS = 86400.0

_SHORTEST, _LONGEST = 0.01, 1e6
_BOUNDS: dict[str, tuple[float, float]] = {
    "wall_seconds": (_SHORTEST, _LONGEST),
    "cpu_seconds": (_SHORTEST, _LONGEST),
    "stall_seconds": (_SHORTEST, _LONGEST),
    "sleep_seconds": (_SHORTEST, _LONGEST),
    "memory_mb": (1, 1 << 20),
    "output_bytes": (0, 1 << 30),
}


@dataclass(frozen=True)
class Limits:
    """Bounds on one program doing one job, or answering one question of a conversation.

    CPU time is what counts, because it does not depend on how busy the machine
    is; wall-clock time is the backstop for programs that sleep. Where the CPU time of
    another process cannot be read (macOS), stalls are measured by the wall clock.

    What a program writes about its progress may be forged, so a step that takes too long is
    found at once only in an honest one. What holds for all is the sum: the processes in which
    the rows of a dataset are answered share the time by their rows, and those in which the
    answers are confirmed have it once more for each worker, as each loads the program. Whoever
    asks for several datasets asks for no more once a program has run out of time, and all
    rollouts of a program together may take as long as one process by the clock.
    """

    wall_seconds: float = 60.0
    """Seconds that a program may take by the clock."""

    cpu_seconds: float = 10.0
    """Seconds of CPU time that a program may take for the rows of a dataset."""

    stall_seconds: float = 1.0
    """Seconds of CPU time that loading a program or a single step may take."""
    # One second is some hundred thousand times what a step of a written-out environment
    # takes, leaves room for tables built at import, and ends a hang ten times sooner.

    sleep_seconds: float = 2.0
    """Seconds that a program may sleep or wait, of which no model has a need."""

    memory_mb: int = 512
    """Megabytes of memory that a program may take beyond what an idle process has."""

    output_bytes: int = 1 << 20
    """Bytes that a program may print."""

    def part(self, share: float) -> Self:
        """Return the limits of a process that has a share of the time."""
        return self.less(
            used=(1 - share) * self.cpu_seconds, slept=(1 - share) * self.sleep_seconds
        )

    def without_time(self) -> Self:
        """Return limits without the remaining time, which depends on earlier processes."""
        return type(self)(
            memory_mb=self.memory_mb, output_bytes=self.output_bytes, cpu_seconds=_DAY_SECONDS
        )

    def longer(self, draws: int) -> Self:
        """Return the limits where each row is drawn so often."""
        factor = 1 + draws // DRAWS_IN_TIME
        return replace(
            self,
            cpu_seconds=min(_LONGEST, factor * self.cpu_seconds),
            wall_seconds=min(_LONGEST, factor * self.wall_seconds),
        )

    def less(self, *, used: float, slept: float, passed: float = 0.0) -> Self:
        """Return what is left for the next process after one that took some time."""
        return replace(
            self,
            cpu_seconds=max(_SHORTEST, self.cpu_seconds - used),
            sleep_seconds=max(_SHORTEST, self.sleep_seconds - slept),
            wall_seconds=max(_SHORTEST, self.wall_seconds - passed),
        )

    def __post_init__(self) -> None:
        """Refuse what no kernel or no program could make sense of, with a ValueError."""
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"{name} is {value:g}, and may be from {least:g} to {most:.0f}")

    @classmethod
    def chosen(cls, options: Mapping[str, Any]) -> Self:
        """Return the limits that a user named, the others as they usually are."""
        try:
            return cls(**options)
        except (TypeError, ValueError) as error:
            raise CwmError(f"the sandbox refuses its limits: {error}") from error
