"""What figures depend on besides the code: the machine, its load and the versions in use."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("numpy", "gymnasium", "mujoco", "pydantic", "typer", "rich")


def machine() -> str:
    """Name them in a line."""
    found = [f"Python {platform.python_version()}", *(_versioned(name) for name in PACKAGES)]
    here = f"{sys.platform} {platform.machine()}, {os.cpu_count()} cores"
    return f"{', '.join(filter(None, found))}; {here}, load {os.getloadavg()[0]:.1f}"


def _versioned(package: str) -> str:
    """Return a package with its version, or nothing where it is missing."""
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return ""
