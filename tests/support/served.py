"""A world model behind `cwm serve`, in a process of its own, with a client."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from shell import CHOICES


@dataclass
class Served:
    """A running server: its process, its first output, and a client."""

    process: "subprocess.Popen[str]"
    facts: dict
    client: httpx.Client

    def memory(self) -> int:
        """Return the resident memory of the server in bytes."""
        return psutil.Process(self.process.pid).memory_info().rss

    def session(self, **start) -> dict:
        """Open a session."""
        response = self.client.post("/v1/sessions", json=start)
        assert response.status_code == 201, response.text
        return response.json()

    def step(self, session: str, action) -> httpx.Response:
        """Take an action in a session."""
        return self.client.post(f"/v1/sessions/{session}/step", json={"action": action})

    def predict(self, observations, actions, **more) -> httpx.Response:
        """Request predictions."""
        rows = {"observations": observations, "actions": actions, **more}
        return self.client.post("/v1/predict", json=rows)

    def stop(self, number: int = signal.SIGINT) -> tuple[int, str, str]:
        """Stop the server by a signal; return its exit code and the rest of its output."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


def start(folder: Path, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
    """Start `cwm serve` in a folder and return the process."""
    kept = {name: value for name, value in os.environ.items() if name not in CHOICES}
    return subprocess.Popen(
        [sys.executable, "-m", "cwm_cli", "serve", *arguments],
        cwd=folder,
        env=kept | {"XDG_CACHE_HOME": str(folder / "cache")} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def served(folder: Path, *arguments: str, **variables: str) -> Iterator[Served]:
    """Serve a world model on a free port, and stop the server at the end."""
    process = start(folder, *arguments, "--port", "0", "--json", **variables)
    try:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        facts = json.loads(line)
        with httpx.Client(base_url=facts["url"], timeout=60) as client:
            yield Served(process, facts, client)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
