"""`cwm doctor`: check the sandbox, and list extras, keys and defaults."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from cwm_cli.cli.shared import ALLOW_GAP, JsonOption
from cwm_cli.errors import CwmError

if TYPE_CHECKING:
    from cwm_cli.cli.configuration import Configuration
    from cwm_cli.sandbox.protection import Protection


class Extra(NamedTuple):
    """An optional dependency: its module, its package, and its purpose."""

    module: str
    package: str
    purpose: str

    @property
    def installed(self) -> bool:
        """Whether the module is installed; it is not imported."""
        from importlib.util import find_spec

        return find_spec(self.module) is not None

    @property
    def command(self) -> str:
        """The command that installs the package."""
        return f"pip install '{self.package}'"


EXTRAS = {
    "llm": Extra("litellm", "cwm-cli[llm]", "language models"),
    "transformers": Extra("transformers", "cwm-cli[transformers]", "local language models"),
    "otel": Extra("opentelemetry", "cwm-cli[otel]", "traces of requests to models"),
    "neural": Extra("torch", "cwm-cli[neural]", "neural world models"),
    "mujoco": Extra("mujoco", "cwm-cli[mujoco]", "MuJoCo environments"),
    "minigrid": Extra("minigrid", "cwm-cli[minigrid]", "MiniGrid environments"),
    "rl": Extra("stable_baselines3", "cwm-cli[rl]", "deep RL baselines"),
    "ray": Extra("ray", "cwm-cli[ray]", "jobs on a Ray cluster"),
    "minari": Extra("minari", "cwm-cli[minari]", "Minari datasets"),
    "parquet": Extra("pyarrow", "cwm-cli[parquet]", "Parquet files"),
    "storage": Extra("fsspec", "cwm-cli[storage]", "runs on remote storage"),
    "s3": Extra("s3fs", "cwm-cli[s3]", "runs on S3"),
    "gs": Extra("gcsfs", "cwm-cli[gs]", "runs on Google Cloud Storage"),
    "track": Extra("trackio", "cwm-cli[track]", "experiment trackers"),
    "slurm": Extra("submitit", "cwm-cli[slurm]", "jobs on a Slurm cluster"),
    "hub": Extra("huggingface_hub", "cwm-cli[hub]", "downloads from Hugging Face"),
    "render": Extra("imageio", "cwm-cli[render]", "films of episodes"),
    "docs": Extra("mkdocs", "cwm-cli[docs]", "building the documentation"),
    "box2d": Extra("Box2D", "gymnasium[box2d]", "Box2D environments"),
}
KEY_ENDING = "_API_KEY"
MIB = 1 << 20


def doctor(ctx: typer.Context, json: JsonOption = False) -> None:
    """Check the sandbox, and list extras, keys and defaults.

    A test program in the sandbox tries everything that is forbidden. The exit code is 1 if any
    attempt succeeds, even if the gap is accepted.

    Example: cwm doctor
    """
    import json as jsonlib

    from cwm_cli.sandbox.protection import GAPS

    protection, configuration = _protection(), ctx.obj
    facts = {
        "protection": protection.model_dump(mode="json"),
        "gaps": {name: GAPS[name]._asdict() for name in protection.gaps},
        **_machine(),
        "extras": {
            name: {"installed": extra.installed, "install": extra.command}
            for name, extra in EXTRAS.items()
        },
        "keys": provider_keys(),
        "model": os.environ.get("CWM_MODEL") or None,
        "configuration": configuration.as_json(),
    }
    if json:
        typer.echo(jsonlib.dumps(facts))
    else:
        _draw(protection, facts, configuration)
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


def _machine() -> dict[str, int | None]:
    """Return the number of usable cores and the memory of the machine in MiB."""
    usable = getattr(os, "sched_getaffinity", None)
    cores = len(usable(0)) if usable else os.cpu_count()
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // MIB
    except (OSError, ValueError):
        memory = None
    return {"cores": cores, "memory_mb": memory}


def provider_keys() -> list[str]:
    """Return the names of provider keys that are set, never their values."""
    return sorted(name for name, value in os.environ.items() if name.endswith(KEY_ENDING) and value)


def _draw(protection: Protection, facts: dict[str, Any], configuration: Configuration) -> None:
    """Print the facts as text."""
    from cwm_cli.cli.shared import console
    from cwm_cli.views.checkup import attempts, conclusion, section

    memory = facts["memory_mb"]
    machine = {
        "kernel": f"{protection.kernel}, {protection.machine}",
        "Landlock": f"version {protection.landlock}" if protection.landlock else "none",
        "Python": protection.python,
        "user": protection.user,
        "cores": facts["cores"] or "unknown",
        "memory": f"{memory / 1024:.1f} GiB" if memory else "unknown",
    }
    models = {
        "keys": ", ".join(facts["keys"]) or f"none (variables that end in {KEY_ENDING})",
        "CWM_MODEL": facts["model"] or "not set",
    }
    parts = (
        *attempts(protection),
        *section("Guards", protection.layers),
        *conclusion(protection, ALLOW_GAP),
        *section("Machine", machine),
        *section("Extras", {name: _state(extra) for name, extra in EXTRAS.items()}),
        *section("Language models", models),
        *section("Defaults of options", configuration.rows()),
    )
    out = console(json=False)
    for part in parts:
        out.print(part, highlight=False)


def _state(extra: Extra) -> str:
    """Return whether an extra is installed, or else how to install it."""
    state = "installed" if extra.installed else f"missing: {extra.command}"
    return f"{state} ({extra.purpose})"
