"""The blocks of a page run in order, in a folder of its own, as a reader would run them.

Commands run in bash, line by line; what one exports and where it goes holds for the next. Python
runs in one process for the page. A server on the loopback that speaks OpenAI's API answers what is
asked of a language model: see `answers`.
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

COLUMNS = 88  # what a page can show of a line without scrolling, at 1280 pixels

LOCAL = re.compile(r"http://(127\.0\.0\.1|localhost):(8000|8080|11434)/v1")
"""Where pages say that a reader's own server is; here it is the one that answers."""

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
"""The Python process of a page: it runs what it is sent, in one namespace."""


class Ran(NamedTuple):
    """A command or a block of Python that ran."""

    page: str
    line: int
    what: str
    seconds: float
    code: int
    printed: str


@dataclass
class Session:
    """Runs the steps of a page; use as a context manager."""

    page: Page
    folder: Path
    ran: list[Ran] = field(default_factory=list)

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
        """Run a step and return what it printed; raises AssertionError where it fails."""
        block = step.block
        if "file" in block.attributes:
            target = self.at / block.attributes["file"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, encoding="utf-8")
            return ""
        if "of" in block.attributes:
            return self._checked(block, [block.attributes["of"]])
        if not runs(block):
            return ""
        if block.language == "python":
            return self._checked(block, [block.text], python=True)
        return self._checked(block, block.commands)

    def _checked(self, block: Block, sources: list[str], *, python: bool = False) -> str:
        printed = ""
        for i, source in enumerate(sources):
            start = time.monotonic()
            code, said = self._run_python(block) if python else self._run_command(source)
            what = f"python, {source.count(chr(10))} lines" if python else source
            seconds = time.monotonic() - start
            self.ran.append(Ran(self.page.name, block.line, what, seconds, code, said))
            wanted = int(block.attributes.get("exit", 0)) if i == len(sources) - 1 else 0
            assert code == wanted, f"{self.page.name}:{block.line}: {what}\nexit {code}\n{said}"
            printed += said
        return self._as_readers_see(printed)

    def _as_readers_see(self, printed: str) -> str:
        """Return what was printed with the addresses and folders that a reader would see."""
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
        said = self._python.stdout.readline()
        if not said:
            raise AssertionError(f"{task['place']}: the Python process of the page ended")
        code, printed = json.loads(said)
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


def told(step: Step, printed: str) -> str | None:
    """Return what is wrong with what a page shows of a step, or None."""
    shown = step.output
    if shown is None or matches(shown.text, printed, loose="loose" in shown.attributes):
        return None
    return f"line {shown.line} shows\n{shown.text}\nwhat was printed is\n{printed}"


def as_shown(block: Block, printed: str) -> str:
    """Return what a block shows of what was printed."""
    numbers = {
        name: int(block.attributes[name]) for name in ("head", "tail") if name in block.attributes
    }
    text = cut(printed, **numbers)
    return re.sub(r"^(?=.)", block.indent, text, flags=re.MULTILINE)


def recorded(page: Page, session: Session) -> str:
    """Run a page, as far as that goes, and write the outputs in it as they are now.

    Returns what went wrong, empty if nothing did.
    """
    changes, failure = [], ""
    for step in page.steps():
        try:
            printed = session.do(step)
        except AssertionError as error:
            failure = str(error)
            break
        if step.output is not None and told(step, printed):
            changes.append((step.output.shown, as_shown(step.output, printed)))
    text = page.text
    for (start, end), new in reversed(changes):
        text = text[:start] + new + text[end:]
    if changes:
        page.path.write_text(text, encoding="utf-8")
    return failure


def checked(page: Page, session: Session) -> Iterator[str]:
    """Run a page and yield what it shows that is not so."""
    for step in page.steps():
        if wrong := told(step, session.do(step)):
            yield f"{page.name}: {wrong}"
