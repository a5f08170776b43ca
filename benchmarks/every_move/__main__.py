"""Run `cwm synthesize` against a loopback server, and print its search tree.

`python -m benchmarks.every_move` records a made-up mill and starts a server that speaks the
protocol of OpenAI. It answers each kind of move from `completions.md`, in order; if no answer of
that kind is next, it repeats the last one. The search starts from a program by induction. The
first answers are wrong and the later ones right, so that each kind of move and refiner is used.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

USUAL = ("--budget", "8", "-o", "prior_generate=0.56")
"""Options of the search. The prior value of generate is higher than by default, so that the search
generates a program although it has a start."""

ENVIRONMENT = "benchmarks.every_move.mill:Mill-v0"
COMPLETIONS = Path(__file__).with_name("completions.md")


class PreparedAnswer(NamedTuple):
    """A prepared answer to a kind of move."""

    kind: str
    text: str


def prepared(text: str) -> list[PreparedAnswer]:
    """Return the prepared answers, in their order."""
    sections = re.split(r"(?m)^(?=# (?:generate|improve|fix|simplify)$)", text)
    cut = [section.partition("\n") for section in sections if section.strip()]
    return [PreparedAnswer(head.removeprefix("# "), body.strip()) for head, _, body in cut]


def kind_of_prompt(prompt: str) -> str:
    """Return the kind of move of a prompt."""
    if "This program runs" in prompt:
        return "improve"
    if "This program predicts every" in prompt:
        return "simplify"
    return "fix" if "This program fails" in prompt else "generate"


class PreparedModel(ThreadingHTTPServer):
    """A server of chat completions with prepared answers."""

    daemon_threads = True

    def __init__(self, answers: list[PreparedAnswer]) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.left = answers
        self.last: dict[str, str] = {}
        self.lock = threading.Lock()

    def answer(self, prompt: str) -> str:
        """Return the next answer if it has the right kind, else the last one of that kind."""
        kind = kind_of_prompt(prompt)
        with self.lock:
            first = next((n for n, each in enumerate(self.left) if each.kind == kind), None)
            if first is not None and (first == 0 or kind not in self.last):
                self.last[kind] = self.left.pop(first).text
            return self.last[kind]


class Answering(BaseHTTPRequestHandler):
    """One request."""

    server: PreparedModel

    def do_POST(self) -> None:
        """Answer a question."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = self.server.answer(asked["messages"][-1]["content"])
        message = {"role": "assistant", "content": text}
        body = json.dumps(
            {
                "id": "prepared",
                "object": "chat.completion",
                "created": 0,
                "model": asked["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
            }
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


@contextmanager
def served(file: Path) -> Iterator[str]:
    """Serve a file of prepared completions; yield the address."""
    server = PreparedModel(prepared(file.read_text(encoding="utf-8")))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


def cwm(folder: Path, *arguments: str) -> None:
    """Run a `cwm` command in a folder."""
    root = Path(__file__).parents[2]
    environment = os.environ | {
        "OPENAI_API_KEY": "none",
        "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
    }
    subprocess.run(
        [sys.executable, "-m", "cwm_cli", *arguments], cwd=folder, env=environment, check=True
    )


def demonstrate(
    folder: Path, completions: Path = COMPLETIONS, options: tuple[str, ...] = ()
) -> None:
    """Record the mill, search and draw the tree in a folder."""
    mill = ("--env", ENVIRONMENT)
    recording = ("--policy", "random", "--episodes", "20", "--test-episodes", "10")
    cwm(folder, "collect", *mill, *recording, "--out", "mill.npz")
    with served(completions) as address:
        asking = ("--model", "openai/gpt-4o-mini", "--api-base", address, "--dataset", "mill.npz")
        cwm(folder, "synthesize", *mill, *asking, "--run", "run", *USUAL, *options)
    cwm(folder, "runs", "show", "run")


def main() -> None:
    """Run the demonstration, by default in a temporary folder."""
    parser = argparse.ArgumentParser(description="A search with each kind of move, and its tree.")
    parser.add_argument("--completions", type=Path, default=COMPLETIONS, help="prepared answers")
    parser.add_argument("--folder", type=Path, help="folder of the run; by default temporary")
    parser.add_argument("options", nargs="*", help="further arguments of cwm synthesize, after --")
    chosen = parser.parse_args()
    completions = chosen.completions.resolve()
    if chosen.folder:
        chosen.folder.mkdir(parents=True, exist_ok=True)
        return demonstrate(chosen.folder, completions, tuple(chosen.options))
    with TemporaryDirectory() as folder:
        return demonstrate(Path(folder), completions, tuple(chosen.options))


if __name__ == "__main__":
    main()
