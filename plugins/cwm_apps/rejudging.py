"""Judge the programs that a run has found once more, and write down what changed."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cwm_apps.configuration import cores
from cwm_apps.folder import Folder, Found, save
from cwm_apps.overview import JUDGING, SKIPPED, Standing
from cwm_apps.running import counts, ended, verdicts
from cwm_apps.threads import stream
from cwm_cli.runs.searches import SearchRun
from cwm_cli.runs.store import BusyError
from cwm_cli.sandbox import Sandbox


@dataclass
class Rejudging:
    """The finished problems of a run, judged again; `changed` says in words what is other now."""

    folder: Folder
    sandbox: Sandbox
    changed: dict[int, str] = field(default_factory=dict, init=False)

    def finished(self) -> list[Path]:
        """Return the runs of problems that have a result."""
        return [run for run in self.folder.started() if (run / "result.json").exists()]

    def run(self) -> Iterator[Standing]:
        """Yield how far problems are."""
        return stream(self._judge, self.finished(), threads=cores(), stopping=threading.Event())

    def _judge(self, path: Path) -> Iterator[Standing]:
        """Judge the program of a problem again."""
        before = self.folder.found(path)
        if before is None:
            reason = "its result cannot be read: continue the run"
            yield Standing(int(path.name), "", SKIPPED, reason=reason)
            return
        standing = ended(before, before.completions)
        yield standing._replace(state=JUDGING)
        try:
            with SearchRun.load(path) as run:
                found = self._judged(run, before)
        except BusyError:
            reason = "another process is working on it"
            yield standing._replace(state=SKIPPED, reason=reason)
            return
        yield ended(found, before.completions)

    def _judged(self, run: SearchRun, before: Found) -> Found:
        """Write the new result down, and what changed."""
        task = self.folder.task(run.folder)
        program = run.best_program() if before.program else ""
        passed = verdicts(program, task, self.sandbox, seed=run.config.seed)
        found = before.model_copy(update=counts(passed, task))
        if found != before:
            self.changed[found.id] = f"{_words(found)}, before {_words(before)}"
            save(run, found)
            run.log(f"judged again: {self.changed[found.id]}")
        return found


def _words(found: Found) -> str:
    """Say what the program of a problem passes."""
    passed, tests = found.passed + found.public_passed, found.tests + found.public_tests
    return f"{'solved' if found.strict else 'not solved'} ({passed} of {tests} tests)"
