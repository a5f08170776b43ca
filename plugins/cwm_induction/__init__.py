"""Programs from data alone: the offline backend, used when no language model is named.

`backend` completes requests. `portfolio` chooses between the programs of `attempts` by their
scores on held-out trajectories. Programs of whole numbers: `discrete`, `relations`, `objects` and
`recalling`, with `decision_list` as rule learner. Programs of real numbers: `continuous`, `laws`,
`mechanics`, `flows`, `rewards` and `bodies`, with `rules` as rule learner. Chance is in `chance`
and `noise`, hidden state in `memory`. `writing` writes program text. `refining` improves given
programs; `cwm calibrate` runs one of its refiners.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cwm_cli import hookimpl

if TYPE_CHECKING:
    from types import ModuleType

    import typer


@hookimpl
def cwm_backends() -> Mapping[str, str]:
    """Offer the backend; it is imported on first use."""
    return {"induction": "cwm_induction.backend:Induction"}


@hookimpl
def cwm_defaults() -> Mapping[str, str]:
    """Ask it where no model is named."""
    return {"backend": "induction"}


@hookimpl
def cwm_refiners() -> Mapping[str, str]:
    """Offer refiners that fit the numbers of programs, join programs, and correct their text."""
    return {
        "calibrate": "cwm_induction.refining.calibration:Calibrate",
        "join": "cwm_induction.refining.joining:Join",
        "patch": "cwm_induction.refining.patches:Patch",
    }


@hookimpl
def cwm_functions() -> Mapping[str, str]:
    """Offer `cwm.calibrate`."""
    return {"calibrate": "cwm_induction.calibrate:calibrate"}


@hookimpl
def cwm_commands(app: typer.Typer, api: ModuleType) -> None:
    """Add `cwm calibrate`."""
    from cwm_induction.command import calibrate

    app.command("calibrate")(api.guarded(calibrate))
