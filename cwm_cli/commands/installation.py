"""The machine, the installation (extras, keys of providers), and the options of all parts."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import NamedTuple

from cwm_cli import registry
from cwm_cli.commands.choices import SearchOptions
from cwm_cli.errors import UnknownNameError, install_command
from cwm_cli.registry import Owner
from cwm_cli.sandbox import Limits
from cwm_cli.worlds.doubt import Doubt


class Extra(NamedTuple):
    """An optional dependency: its module, its package, and its purpose."""

    module: str
    package: str
    purpose: str

    @property
    def installed(self) -> bool:
        """Whether the module is installed; it is not imported."""
        return find_spec(self.module) is not None

    @property
    def command(self) -> str:
        """The command that installs the package."""
        return install_command(self.package)

    def __str__(self) -> str:
        state = "installed" if self.installed else f"missing: {self.command}"
        return f"{state} ({self.purpose})"


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


def machine() -> dict[str, int | None]:
    """Return the number of usable cores and the memory of the machine in MiB."""
    usable = getattr(os, "sched_getaffinity", None)
    cores = len(usable(0)) if usable else os.cpu_count()
    mib = 1 << 20
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // mib
    except (OSError, ValueError):
        memory = None
    return {"cores": cores, "memory_mb": memory}


def provider_keys() -> list[str]:
    """Return the names of provider keys that are set, never their values."""
    return sorted(name for name, value in os.environ.items() if name.endswith(KEY_ENDING) and value)


class NamedOwner(NamedTuple):
    """A part with options, by kind and name."""

    kind: str
    name: str
    owner: Owner


def option_owners(name: str | None = None, kind: str | None = None) -> Iterator[NamedOwner]:
    """Yield the parts with options, of one name or one kind if given.

    Args:
        name: A name, or `package:name`. If several plugins provide the name, yield all parts.
        kind: An extension point, or a group of options.

    Raises:
        UnknownNameError: if no part has the name.
    """
    points = registry.extension_points().items()
    kinds = [each for each, point in points if point.has_options and kind in (None, each)]
    known = [(each, one) for each in kinds for one in registry.names(each)]
    groups = {
        "planning": Doubt,
        "sandbox": Limits,
        "search": SearchOptions,
        **registry.option_groups(),
    }
    known += [(group, group) for group in groups if kind in (None, group)]
    chosen = [pair for pair in known if name in (None, pair[1], pair[1].rpartition(":")[2])]
    if name is not None and not chosen:
        chosen = [(each, name) for each in kinds if registry.is_known(each, name)]
    if name is not None and not chosen:
        raise UnknownNameError("name", name, [*groups, *(one for _, one in known)])
    for each, one in chosen:
        factory = groups[one] if each in groups else registry.find(each, one)
        yield NamedOwner(each, one, Owner(each, factory))
