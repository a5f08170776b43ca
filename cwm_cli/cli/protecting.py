"""The sandbox of a command: refused before anything is done, or with its gaps named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cwm_cli.cli.boundary import complain

if TYPE_CHECKING:
    from cwm_cli.sandbox import Limits, Sandbox
    from cwm_cli.sandbox.protection import Protection


@contextmanager
def protected(
    limits: Limits, *, tools: Iterable[str], accepted: Iterable[str], workers: int = 2
) -> Iterator[Sandbox]:
    """Give a sandbox once it is known what programs cannot do in it."""
    from cwm_cli.sandbox import Sandbox

    with Sandbox(limits, workers, tools=tools, accepted=accepted) as sandbox:
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
