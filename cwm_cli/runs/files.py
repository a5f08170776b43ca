"""Read JSON files with one-line errors, write files atomically, and flatten nested objects."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from cwm_cli.data.reading import LARGEST_TEXT, UnreadableError, parse_json, read_bytes, read_json
from cwm_cli.errors import CwmError
from cwm_cli.text import clean

M = TypeVar("M", bound=BaseModel)


def read_header(file: Path, header: type[M], missing: str) -> M:
    """Read the file that identifies a folder.

    Raises:
        CwmError: The file is missing (with the message `missing`) or cannot be read.
    """
    try:
        return parse_model(header, read_bytes(file, LARGEST_TEXT))
    except UnreadableError as error:
        if error.is_missing:
            raise CwmError(missing) from error
        raise UnreadableError(file, error.reason, "choose another --run") from error
    except ValueError as error:
        raise UnreadableError(file, str(error), "choose another --run") from error


def parse_model(model: type[M], content: bytes) -> M:
    """Parse JSON into a model.

    Raises:
        ValueError: The content is wrong; the message is short.
    """
    parse_json(content)
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = clean(".".join(map(str, wrong["loc"])), limit=60)
        reasons = {"missing": "is missing", "extra_forbidden": "is unknown in this version"}
        raise ValueError(
            f"{place} {reasons.get(wrong['type'], 'has the wrong type')}"
            if place
            else "it is not a JSON object"
        ) from error


def read_found(file: Path, model: type[M]) -> M | None:
    """Read a result file; return None if it is missing or damaged."""
    try:
        return parse_model(model, read_bytes(file, LARGEST_TEXT))
    except (UnreadableError, ValueError):
        return None


def read_object(file: Path) -> dict[str, Any] | None:
    """Read a JSON object; return None if the file is missing."""
    try:
        found = read_json(file)
        if not isinstance(found, dict):
            raise UnreadableError(file, "it is not a JSON object")
    except UnreadableError as error:
        if error.is_missing:
            return None
        hint = "remove it, or continue the run, which writes it again"
        raise UnreadableError(file, error.reason, hint) from error
    return found


def replace(path: Path, text: str) -> None:
    """Write a file atomically."""
    partial = path.with_name(f".{path.name}.part")
    try:
        partial.unlink(missing_ok=True)  # opening a pipe of that name would block
        partial.write_text(text, encoding="utf-8", errors="replace")
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def write_object(file: Path, found: Mapping[str, Any]) -> None:
    """Write a JSON object atomically, and create the parent folder if needed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    replace(file, json.dumps(found, indent=2) + "\n")


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Flatten nested objects: `train.accuracy`; options by their owner, `strategy.depth`."""
    if not isinstance(value, Mapping):
        return {name: value}
    name = "" if name == "options" else name
    parts = ((f"{name}.{key}" if name else str(key), item) for key, item in value.items())
    return {key: leaf for part, item in parts for key, leaf in flat(item, part).items()}
