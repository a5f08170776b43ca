"""The machine and the installation: cores, memory, extras and keys of providers."""

import os
from importlib.util import find_spec
from typing import NamedTuple

from cwm_cli.errors import install_command


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
    "serve": Extra("uvicorn", "cwm-cli[serve]", "world models over HTTP"),
    "games": Extra("pettingzoo", "cwm-cli[games]", "games of two players"),
    "rl": Extra("sb3_contrib", "cwm-cli[rl]", "agents by deep RL"),
    "ray": Extra("ray", "cwm-cli[ray]", "jobs on a Ray cluster"),
    "mcp": Extra("mcp", "cwm-cli[mcp]", "coding agents"),
    "minari": Extra("minari", "cwm-cli[minari]", "Minari datasets"),
    "parquet": Extra("pyarrow", "cwm-cli[parquet]", "Parquet files"),
    "plots": Extra("sklearn", "cwm-cli[plots]", "maps of rules"),
    "storage": Extra("fsspec", "cwm-cli[storage]", "runs on remote storage"),
    "s3": Extra("s3fs", "cwm-cli[s3]", "runs on S3"),
    "gs": Extra("gcsfs", "cwm-cli[gs]", "runs on Google Cloud Storage"),
    "track": Extra("trackio", "cwm-cli[track]", "experiment trackers"),
    "jax": Extra("jax", "cwm-cli[jax]", "exports in JAX"),
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
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // (1 << 20)
    except (OSError, ValueError):
        memory = None
    return {"cores": cores, "memory_mb": memory}


def provider_keys() -> list[str]:
    """Return the names of provider keys that are set, never their values."""
    return sorted(name for name, value in os.environ.items() if name.endswith(KEY_ENDING) and value)
