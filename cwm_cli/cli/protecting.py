"""What programs are not kept from, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cwm_cli.views.lines import complain

if TYPE_CHECKING:
    from cwm_cli.sandbox.protection import Protection


def warn(protection: Protection) -> None:
    """Name the gaps that are open because somebody accepted them."""
    if protection.gaps:
        names = ", ".join(protection.gaps)
        complain(
            f"generated code is not kept from everything here: {names} (`cwm doctor` says more)",
            kind="Warning",
        )
