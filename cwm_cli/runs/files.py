"""Files that are read with one complaint and written whole, and objects made flat."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from cwm_cli.errors import CwmError

M = TypeVar("M", bound=BaseModel)


def read_header(file: Path, header: type[M], missing: str) -> M:
    """Read what a folder is from a file in it; `missing` is the complaint where there is none."""
    try:
        return header.model_validate_json(file.read_bytes())
    except FileNotFoundError as error:
        raise CwmError(missing) from error
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise CwmError(f"{file} cannot be read ({reason}): choose another --run") from error


def read_object(file: Path) -> dict[str, Any] | None:
    """Read a JSON object; one that is missing or damaged is none."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def replace(path: Path, text: str) -> None:
    """Write a file as a whole or not at all."""
    partial = path.with_name(f".{path.name}.part")
    partial.write_text(text, encoding="utf-8", errors="replace")
    partial.replace(path)


def write_object(file: Path, found: Mapping[str, Any]) -> None:
    """Write a JSON object as a whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    replace(file, json.dumps(found, indent=2) + "\n")


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Flatten nested objects: `train.accuracy`; options go by their owner, `strategy.depth`."""
    if not isinstance(value, Mapping):
        return {name: value}
    name = "" if name == "options" else name
    parts = ((f"{name}.{key}" if name else str(key), item) for key, item in value.items())
    return {key: item for part, some in parts for key, item in flat(some, part).items()}
