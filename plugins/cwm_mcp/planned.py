"""The number of planned episodes of a run, which survives a restart of the server."""

from __future__ import annotations

import json
import os
from pathlib import Path

from cwm_cli.data.reading import UnreadableError, open_for_appending, parse_json, read_lines
from cwm_cli.errors import CwmError

FILE = "planned.jsonl"
"""File of a run folder with one line for each request to plan, written before it is played."""


class PlannedLog:
    """The requests to plan episodes in the true environment, with their limit.

    Args:
        folder: The run folder.
        limit: Maximum number of episodes of the run.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.file, self.limit = folder / FILE, limit

    @property
    def spent(self) -> int:
        """The number of episodes that were requested."""
        try:
            lines = list(read_lines(self.file))
        except UnreadableError as error:
            if error.is_missing:
                return 0
            raise
        total = 0
        for line in lines:
            try:
                total += int(parse_json(line)["episodes"])
            except (ValueError, KeyError, TypeError):
                continue  # a crash left an incomplete line, before any episode was played
        return total

    @property
    def left(self) -> int:
        """The number of episodes that may still be requested."""
        return max(0, self.limit - self.spent)

    def spend(self, node: int, episodes: int) -> None:
        """Record a request, before its episodes are played.

        Raises:
            CwmError: Too few episodes are left.
        """
        if episodes > (left := self.left):
            raise CwmError(
                f"{left} of {self.limit} planned episodes are left: plan fewer (the user can "
                "restart the server with a higher --plan-episodes)"
            )
        line = json.dumps({"node": node, "episodes": episodes})
        with open_for_appending(self.file) as file:
            file.write(f"{line}\n".encode())
            os.fsync(file.fileno())
