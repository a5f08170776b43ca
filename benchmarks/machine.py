"""The machine, its load and the versions that figures depend on."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("numpy", "gymnasium", "mujoco", "pydantic", "typer", "rich")


def machine() -> str:
    """Return the versions, the machine and its load in one line."""
    found = [f"Python {platform.python_version()}", *(_with_version(name) for name in PACKAGES)]
    here = f"{sys.platform} {platform.machine()}, {os.cpu_count()} cores"
    return f"{', '.join(filter(None, found))}; {here}, load {os.getloadavg()[0]:.1f}"


def _with_version(package: str) -> str:
    """Return a package with its version, or an empty string if it is missing."""
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return ""
