"""The sandbox of a command: refused before anything is done, or with its gaps named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cwm_cli.errors import CwmError
from cwm_cli.views.lines import complain

if TYPE_CHECKING:
    from cwm_cli.sandbox import Limits, Sandbox
    from cwm_cli.sandbox.protection import Protection


COMPILED_GAP = "machine-code"
"""What programs may do where they are compiled."""


def check_form(form: str) -> None:
    """Refuse to compile where nothing can."""
    from importlib.util import find_spec

    if form == "compiled" and find_spec("numba") is None:
        raise CwmError("--form compiled needs numba: pip install 'cwm-cli[fast]'")


@contextmanager
def protected(
    limits: Limits,
    *,
    tools: Iterable[str],
    accepted: Iterable[str],
    workers: int = 2,
    handlers: Iterable[str] = (),
    compiling: bool = False,
) -> Iterator[Sandbox]:
    """Give a sandbox once it is known what programs cannot do in it.

    It is prepared for jobs of other kinds than predicting, whose `handlers` are given. To
    have programs compiled accepts the gap that it leaves.
    """
    from cwm_cli.sandbox import Sandbox

    gaps = [*accepted, *([COMPILED_GAP] if compiling else [])]
    with Sandbox(limits, workers, tools=tools, accepted=gaps) as sandbox:
        sandbox.prepare(*handlers, compiling=compiling)
        warn(sandbox.protection)
        yield sandbox


def warn(protection: Protection) -> None:
    """Name the gaps that are open because somebody accepted them."""
    if protection.gaps:
        names = ", ".join(protection.gaps)
        complain(
            f"generated code is not kept from everything here: {names} (`cwm doctor` says more)",
            kind="Warning",
        )
