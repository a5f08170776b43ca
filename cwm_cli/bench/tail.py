"""The end of a journal that another process writes."""

import json
from dataclasses import dataclass
from pathlib import Path

from cwm_cli.runs.searches import JOURNAL


@dataclass
class Tail:
    """What the journal of a run says so far; only what was added to it is read again."""

    run: Path
    completions: int = 0
    best: float | None = None
    cost: float | None = 0.0
    _offset: int = 0

    def read(self) -> None:
        """Take in the lines that are new and whole."""
        try:
            with (self.run / JOURNAL).open("rb") as journal:
                journal.seek(self._offset)
                added = journal.read()
        except OSError:
            return
        whole = added[: added.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            self._take(line)

    def _take(self, line: bytes) -> None:
        """Take in a node; a damaged line is for others to complain about."""
        try:
            node = json.loads(line)["node"]
            score, cost = float(node["verdict"]["score"]), node["usage"].get("cost")
        except (ValueError, KeyError, TypeError):
            return
        self.completions += 1
        self.best = score if self.best is None else max(self.best, score)
        self.cost = None if cost is None or self.cost is None else self.cost + cost
