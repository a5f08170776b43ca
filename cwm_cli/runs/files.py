"""Files that say what a folder is and what came of it: read with one complaint, written whole."""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from cwm_cli.errors import CwmError

H = TypeVar("H", bound=BaseModel)


def read_header(file: Path, kind: type[H], missing: str) -> H:
    """Read what a folder is from a file in it; `missing` is the complaint where there is none."""
    try:
        return kind.model_validate_json(file.read_text())
    except FileNotFoundError as error:
        raise CwmError(missing) from error
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise CwmError(f"{file} cannot be read ({reason}): choose another --run") from error


def replace(path: Path, text: str) -> None:
    """Write a file as a whole or not at all."""
    partial = path.with_name(f".{path.name}.part")
    partial.write_text(text, encoding="utf-8", errors="replace")
    partial.replace(path)
