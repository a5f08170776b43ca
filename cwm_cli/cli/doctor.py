"""`cwm doctor`: check the sandbox, and list extras, keys and defaults."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from cwm_cli.cli.shared import ALLOW_GAP, JsonOption, emit_json, print_parts
from cwm_cli.errors import CwmError

if TYPE_CHECKING:
    from cwm_cli.sandbox.protection import Protection


def doctor(ctx: typer.Context, json: JsonOption = False) -> None:
    """Check the sandbox, and list extras, keys and defaults.

    A test program in the sandbox tries everything that is forbidden. The exit code is 1 if any
    attempt succeeds, even if the gap is accepted.

    Example: cwm doctor
    """
    from cwm_cli.commands.installation import EXTRAS, machine, provider_keys
    from cwm_cli.sandbox.protection import GAPS
    from cwm_cli.views.checkup import doctor_report

    protection, configuration = _protection(), ctx.obj
    facts = {
        "protection": protection.model_dump(mode="json"),
        "gaps": {name: GAPS[name]._asdict() for name in protection.gaps},
        **machine(),
        "extras": {
            name: {"installed": extra.installed, "install": extra.command}
            for name, extra in EXTRAS.items()
        },
        "keys": provider_keys(),
        "model": os.environ.get("CWM_MODEL") or None,
        "configuration": configuration.as_json(),
    }
    if json:
        emit_json(facts)
    else:
        extras = {name: str(extra) for name, extra in EXTRAS.items()}
        parts = doctor_report(protection, facts, extras, configuration.rows(), ALLOW_GAP)
        print_parts(parts, json=False)
    if protection.gaps:
        raise typer.Exit(1)


def _protection() -> Protection:
    """Run the probe in the sandbox."""
    from cwm_cli.sandbox import Sandbox, SandboxError
    from cwm_cli.sandbox.protection import GAPS, check_gaps

    accepted = check_gaps(os.environ.get(ALLOW_GAP, "").split())
    try:
        with Sandbox(accepted=GAPS) as sandbox:
            return sandbox.protection.accepting(accepted)
    except SandboxError as error:
        raise CwmError(f"the sandbox cannot start ({error}): please report this") from error
