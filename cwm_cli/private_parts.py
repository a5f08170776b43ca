"""Access to private attributes of other packages, which a new version may rename.

`tests/test_private_parts.py` lists every such attribute that the project uses, with its guard.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from cwm_cli.errors import CwmError

log = logging.getLogger("cwm.private_parts")


class MissingPartError(CwmError):
    """An installed version of a package lacks an attribute that a feature needs."""


def private_part(owner: Any, name: str) -> Any:
    """Return an attribute of a module, class or object of another package.

    Raises:
        MissingPartError: The installed version has no attribute of this name.

    """
    try:
        return getattr(owner, name)
    except AttributeError as error:
        if isinstance(owner, ModuleType):
            place, module = owner.__name__, owner.__name__
        else:
            classes = (owner if isinstance(owner, type) else type(owner)).__mro__
            theirs = next(cls for cls in classes if not cls.__module__.startswith("cwm_"))
            place, module = theirs.__name__, theirs.__module__
        package = _with_version(module.partition(".")[0])
        raise MissingPartError(f"{package} has no {place}.{name}") from error


@cache
def warn_once(message: str) -> None:
    """Log a warning; a process logs the same message only once."""
    log.warning("%s", message)


def _with_version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return package
