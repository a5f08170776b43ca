"""Results of a benchmark in a file, so that none is measured twice."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any


class ResultFile:
    """Results by key, one JSON object per line. Threads may share an object.

    An incomplete last line, of a command that was killed, is removed.

    Args:
        file: The file, which need not exist.
        key: Name of the entry of each line that contains the key.
    """

    def __init__(self, file: Path, key: str = "key") -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        complete = text[: text.rfind("\n") + 1]
        if complete != text:
            file.write_text(complete, encoding="utf-8")
        entries = map(json.loads, complete.splitlines())
        self._file, self._key, self._lock = file, key, threading.Lock()
        self._known = {json.dumps(entry.pop(key)): entry for entry in entries}

    def get(self, key: Any) -> dict[str, Any] | None:
        """Return the entries of a key, or None if they are missing."""
        return self._known.get(json.dumps(key))

    def measure_once(self, key: Any, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the entries of a key. If they are missing, measure and save them first."""
        name = json.dumps(key)
        if name not in self._known:
            line = json.dumps({self._key: key} | measure())
            with self._lock, self._file.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
            entry = json.loads(line)
            del entry[self._key]
            self._known[name] = entry
        return self._known[name]
