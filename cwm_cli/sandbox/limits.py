"""What a program may use up before it is stopped."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from cwm_cli.errors import CwmError

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
    """

    wall_seconds: float = 60.0
    """Seconds that a program may take by the clock."""

    cpu_seconds: float = 10.0
    """Seconds of CPU time that a program may take."""

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
