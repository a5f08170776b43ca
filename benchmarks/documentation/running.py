"""Run the blocks of a page in order, in a new folder, as a reader would run them.

Commands run in bash, line by line; exported variables and the working folder are kept for the next
line. Python blocks of a page run in one process. A loopback server with OpenAI's API replaces
language models: see `answers`.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.documentation.answers import answering
from benchmarks.documentation.comparing import cut, matches
from benchmarks.documentation.pages import ROOT, Block, Page, Step, runs

COLUMNS = 88  # fits on a page that is 1280 pixels wide, without scrolling

LOCAL = re.compile(r"http://(127\.0\.0\.1|localhost):(8000|8080|11434)/v1")
"""Addresses of a reader's own server, which are replaced by the loopback server."""

INTERPRETER = """
import contextlib, io, json, linecache, os, sys, traceback
names, reply = {"__name__": "__main__"}, os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for line in sys.stdin:
    task = json.loads(line)
    os.chdir(task["folder"])
    os.environ.update(task["variables"])
    printed, failed = io.StringIO(), False
    source, place = task["source"], task["place"]
    linecache.cache[place] = (len(source), None, source.splitlines(True), place)
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            exec(compile(source, place, "exec"), names)
        except BaseException:
            failed = True
            traceback.print_exc()
    reply.write(json.dumps([int(failed), printed.getvalue()]) + "\\n")
    reply.flush()
"""
"""The Python process of a page: it runs the blocks that it receives, in one namespace."""


class Execution(NamedTuple):
    """A command or a Python block that ran, with its exit code and output."""

    page: str
    line: int
    command: str
    seconds: float
    code: int
    printed: str


@dataclass
class Session:
    """Runs the steps of a page; use as a context manager."""

    page: Page
    folder: Path
    executions: list[Execution] = field(default_factory=list)

    def __enter__(self) -> "Session":
        self._answers = answering()
        self.url = self._answers.__enter__().url
        self.at = self.folder / "work"
        for name in ("work", "cache", "home"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.variables = self._environment()
        self._python: subprocess.Popen[str] | None = None
        return self

    def __exit__(self, *exception: object) -> None:
        if self._python is not None:
            self._python.stdin.close()  # type: ignore[union-attr]
            self._python.wait()
        self._answers.__exit__(*exception)

    def do(self, step: Step) -> str:
        """Run a step and return its output.

        Raises:
            AssertionError: The exit code differs from the code that the block names (default 0).
        """
        block = step.block
        if "file" in block.attributes:
            target = self.at / block.attributes["file"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, encoding="utf-8")
            return ""
        if "of" in block.attributes:
            return self._run_checked(block, [block.attributes["of"]])
        if not runs(block):
            return ""
        if block.language == "python":
            return self._run_checked(block, [block.text], python=True)
        return self._run_checked(block, block.commands)

    def _run_checked(self, block: Block, sources: list[str], *, python: bool = False) -> str:
        printed = ""
        for i, source in enumerate(sources):
            start = time.monotonic()
            code, output = self._run_python(block) if python else self._run_command(source)
            command = f"python, {source.count(chr(10))} lines" if python else source
            seconds = time.monotonic() - start
            name, line = self.page.name, block.line
            self.executions.append(Execution(name, line, command, seconds, code, output))
            expected = int(block.attributes.get("exit", 0)) if i == len(sources) - 1 else 0
            assert code == expected, f"{name}:{line}: {command}\nexit {code}\n{output}"
            printed += output
        return self._with_reader_paths(printed)

    def _with_reader_paths(self, printed: str) -> str:
        """Replace addresses and folders by a reader's addresses and folders."""
        seen = printed.replace(self.url, "http://127.0.0.1:8000/v1")
        for folder, name in ((self.folder / "work", "."), (self.folder / "home", "~")):
            seen = seen.replace(f"{folder}/", f"{name}/").replace(str(folder), name)
        return seen.replace(f"{self.folder}/cache", "~/.cache").replace(str(ROOT), "~/cwm")

    def _run_command(self, line: str) -> tuple[int, str]:
        state = self.folder / "state"
        after = f'\ncode=$?\n{{ pwd; env -0; }} > "{state}"\nexit $code\n'
        process = subprocess.Popen(
            ["/bin/bash", "-c", LOCAL.sub(self.url, line).replace("~/cwm/", f"{ROOT}/") + after],
            cwd=self.at,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            out, _ = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        if state.exists():
            where, _, variables = state.read_text().partition("\n")
            self.at = Path(where)
            pairs = (each.partition("=") for each in variables.split("\0") if each)
            self.variables = {name: value for name, _, value in pairs}
            state.unlink()
        return process.returncode, out

    def _run_python(self, block: Block) -> tuple[int, str]:
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-c", INTERPRETER],
                cwd=self.at,
                env=self.variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        task = {
            "source": LOCAL.sub(self.url, block.text),
            "place": f"{self.page.name}:{block.line}",
            "folder": str(self.at),
            "variables": self.variables,
        }
        assert self._python.stdin is not None and self._python.stdout is not None
        self._python.stdin.write(json.dumps(task) + "\n")
        self._python.stdin.flush()
        reply = self._python.stdout.readline()
        if not reply:
            raise AssertionError(f"{task['place']}: the Python process of the page ended")
        code, printed = json.loads(reply)
        return code, printed

    def _environment(self) -> dict[str, str]:
        kept = ("LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR")
        variables = {name: os.environ[name] for name in kept if name in os.environ}
        paths = [str(Path(sys.executable).parent), os.environ.get("PATH", "/usr/bin:/bin")]
        return variables | {
            "PATH": ":".join(paths),
            "HOME": str(self.folder / "home"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "COLUMNS": str(COLUMNS),
            "LINES": "40",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": ":".join([str(self.folder / "work"), str(ROOT)]),
            "OPENAI_API_KEY": "sk-of-the-documentation",
            "OPENAI_API_BASE": self.url,
            "OPENAI_BASE_URL": self.url,
            "HOSTED_VLLM_API_KEY": "none",
        }


def difference(step: Step, printed: str) -> str | None:
    """Return the difference between the output of a step and the page, or None."""
    shown = step.output
    if shown is None or matches(shown.text, printed, loose="loose" in shown.attributes):
        return None
    return f"line {shown.line} shows\n{shown.text}\nbut the output is\n{printed}"


def as_shown(block: Block, printed: str) -> str:
    """Return the part of an output that a block shows."""
    numbers = {
        name: int(block.attributes[name]) for name in ("head", "tail") if name in block.attributes
    }
    text = cut(printed, **numbers)
    return re.sub(r"^(?=.)", block.indent, text, flags=re.MULTILINE)


def record_outputs(page: Page, session: Session) -> str:
    """Run a page up to the first failure, and update its outputs.

    Returns:
        The failure, or an empty string.
    """
    changes, failure = [], ""
    for step in page.steps():
        try:
            printed = session.do(step)
        except AssertionError as error:
            failure = str(error)
            break
        if step.output is not None and difference(step, printed):
            changes.append((step.output.shown, as_shown(step.output, printed)))
    text = page.text
    for (start, end), new in reversed(changes):
        text = text[:start] + new + text[end:]
    if changes:
        page.path.write_text(text, encoding="utf-8")
    return failure


def check(page: Page, session: Session) -> Iterator[str]:
    """Run a page and yield a message for each wrong output."""
    for step in page.steps():
        if wrong := difference(step, session.do(step)):
            yield f"{page.name}: {wrong}"
