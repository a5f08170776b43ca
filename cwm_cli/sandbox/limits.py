"""What a program may use up before it is stopped."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds on one program answering one dataset, or making one decision of a session.

    CPU time is what counts, because it does not depend on how busy the machine
    is; wall-clock time is the backstop for programs that sleep. `stall_seconds`
    is CPU time spent loading or on a single row: one second is some hundred
    thousand times what a step of a written-out environment takes, leaves room for
    tables built at import, and ends a hang ten times sooner than `cpu_seconds`.
    Where the CPU time of another process cannot be read (macOS), stalls are
    measured by the wall clock.
    """

    wall_seconds: float = 60.0
    cpu_seconds: float = 10.0
    stall_seconds: float = 1.0
    memory_mb: int = 512
    output_bytes: int = 1 << 20
