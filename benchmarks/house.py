"""Measure the size of the code, and the number of files on its main paths.

`python -m benchmarks.house` prints the lines and files of the core and of the plugins, modules that
only one module imports, and class names with two meanings. It counts the files whose functions run
to make an environment, to score rows, to add a completion to the journal, and to plan an action.
Code of the sandbox process is traced in this process, with the same handlers.
"""

import ast
import json
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

from cwm_cli.search.threads import free

ROOT = Path(__file__).parent.parent
CONFINED = ("worker", "candidate", "handlers")
"""Modules that run in the process of a program, which cannot be traced."""


def sources(*tops: str) -> list[Path]:
    """Return the Python files of some folders."""
    return sorted(file for top in tops for file in (ROOT / top).rglob("*.py"))


def size(*tops: str) -> dict[str, int]:
    """Return the number of lines and files of some folders."""
    files = sources(*tops)
    return {"lines": sum(len(f.read_text().splitlines()) for f in files), "files": len(files)}


def module_name(file: Path) -> str:
    """Return the module name of a file."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[parts[0] == "plugins" :]).removesuffix(".__init__")


def single_importers() -> tuple[int, int]:
    """Return the number of modules that exactly one other imports, and the number of modules."""
    files = sources("cwm_cli", "plugins")
    known = {module_name(file) for file in files}
    importers: dict[str, set[Path]] = defaultdict(set)
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in {node.module, *(f"{node.module}.{a.name}" for a in node.names)}:
                    importers[name].add(file)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    importers[alias.name].add(file)
    modules = known - {module_name(file) for file in files if file.name == "__init__.py"}
    return sum(len(importers[name]) == 1 for name in modules), len(known)


def shared_names() -> dict[str, list[str]]:
    """Return the public class names of several classes, with their files."""
    homes: dict[str, list[str]] = defaultdict(list)
    for file in sources("cwm_cli", "plugins"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(file.relative_to(ROOT)))
    return {name: files for name, files in homes.items() if len(files) > 1}


@contextmanager
def trace_files() -> Iterator[set[str]]:
    """Collect the files of this project whose functions run, also in new threads."""
    seen: set[str] = set()
    tops = tuple(str(ROOT / top) + "/" for top in ("cwm_cli", "plugins"))

    def profile(frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        is_function = frame.f_code.co_flags & CO_OPTIMIZED  # not the body of a module or a class
        if event == "call" and is_function and file.startswith(tops):
            seen.add(str(Path(file).relative_to(ROOT)))

    free.clear()  # existing threads would not be traced
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield seen
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # None is allowed, typeshed errs


def trace_paths() -> dict[str, set[str]]:
    """Return the files of the four paths and of a whole `synthesize`, after a warm-up."""
    import cwm_cli as cwm
    from cwm_cli.commands.collect import load_transitions
    from cwm_cli.evaluation import AccuracyMetric, evaluate
    from cwm_cli.registry import environment
    from cwm_cli.sandbox import Limits, Sandbox
    from cwm_cli.worlds import ProgramModel

    found: dict[str, set[str]] = {}
    environment("CartPole-v1").make().close()
    with trace_files() as found["make an environment"]:
        environment("CartPole-v1").make().close()
    rows, _ = load_transitions(environment("CartPole-v1"))
    with tempfile.TemporaryDirectory() as folder:
        with trace_files() as found["a whole synthesize"]:
            run = cwm.synthesize("CartPole-v1", run=Path(folder) / "run")
        text = (Path(folder) / "run" / "best.py").read_text()
        found["add a completion to the journal"] = _trace_completion(rows, text, folder)
        found["plan an action"] = _trace_action(run.run)
    with Sandbox(Limits()) as sandbox:
        model, metric = ProgramModel(text, sandbox), AccuracyMetric.of(rows.train)
        evaluate(model, rows.test, metric)
        with trace_files() as found["score rows"]:
            evaluate(model, rows.test, metric)
    found["score rows"] |= {f"cwm_cli/sandbox/{name}.py" for name in CONFINED}
    return found


def _trace_completion(rows: Any, text: str, folder: str) -> set[str]:
    """Trace a search of one completion, without prompt, backend and judging."""
    from cwm_cli.registry import find
    from cwm_cli.runs.searches import SearchConfig, SearchHeader, SearchRun
    from cwm_cli.runs.store import timestamp
    from cwm_cli.search.contracts import Backend, Completion, Message, Problem, Verdict
    from cwm_cli.search.loop import Search

    class FixedProblem(Problem):
        def messages(self, move: Any) -> tuple[Message, ...]:
            return (Message(role="user", content="Write it."),)

        def judge(self, candidate: str) -> Verdict:
            return Verdict(score=0.5)

    class FixedBackend(Backend):
        def complete(self, request: Any) -> Completion:
            return Completion(f"```python\n{text}\n```")

    config = SearchConfig(env="CartPole-v1", dataset=rows.digest, strategy="gif-mcts", backend="x")
    header = SearchHeader(
        config=config, description="", source="", versions={}, created=timestamp()
    )
    with SearchRun.start(Path(folder) / "other", header, {"dataset.npz": rows}) as run:
        strategy = find("strategy", config.strategy)()
        search = Search(FixedProblem(), strategy, FixedBackend(), journal=run.learn)
        with trace_files() as seen:
            list(search.run(1))
    return seen


class _InThisProcess:
    """Replaces the process of a program and answers one question twice.

    Files of the first answer do not count, because it includes the translation of the program.
    """

    def __init__(self, text: str, question: bytes) -> None:
        self.seen: set[str] = set()
        self.counter = [0]
        self._text = text
        self._left = question * 2
        self._half = len(question)

    def load(self) -> Any:
        names: dict[str, Any] = {"__name__": "program"}
        exec(self._text, names)  # a program that induction wrote
        return names["Environment"]()

    def begin(self) -> None:
        """Begin without delay."""

    def read(self, size: int) -> bytes:
        if len(self._left) == self._half:
            self.seen.clear()
        part, self._left = self._left[:size], self._left[size:]
        return part

    def write(self, reply: bytes) -> None:
        """Discard the answer."""


def _trace_action(run: Path) -> set[str]:
    """Trace one decision on both sides of the sandbox."""
    import cwm_cli as cwm
    from cwm_cli.worlds.confined import PlanningHandler
    from cwm_cli.worlds.messages import SIZE, encode_question
    from cwm_cli.worlds.program import ProgramSession

    seen: set[str] = set()
    last_call: list[Any] = []
    plain = ProgramSession.plan

    def plan(self: Any, moments: Any) -> Any:
        last_call[:] = [self, moments]
        with trace_files() as files:
            answer = plain(self, moments)
        seen.clear()  # only the last decision counts: the first one starts the process
        seen.update(files)
        return answer

    ProgramSession.plan = plan  # type: ignore[method-assign]
    try:
        cwm.plan(run, episodes=1, max_steps=3, new=True)
    finally:
        ProgramSession.plan = plain  # type: ignore[method-assign]
    session, moments = last_call
    handler = PlanningHandler(session._job)
    handler.prepare()
    question = encode_question(moments, session._states)
    program = _InThisProcess(session._job.program, SIZE.pack(len(question)) + question)
    with trace_files() as program.seen:
        handler.run(program)  # type: ignore[arg-type]  # has all methods that a handler uses
    return seen | program.seen | {"cwm_cli/sandbox/handlers.py"}


def main() -> None:
    """Print the figures."""
    core, everything = size("cwm_cli"), size("cwm_cli", "plugins", "data")
    single, modules = single_importers()
    shared = shared_names()
    print(f"core                    {core['lines']:>7,} lines  {core['files']:>4} files")
    print(
        f"with plugins and data   {everything['lines']:>7,} lines  {everything['files']:>4} files"
    )
    print(f"imported by one other   {single} of {modules} modules ({single / modules:.0%})")
    print(f"shared class names      {len(shared)} {json.dumps(shared) if shared else ''}")
    for name, files in trace_paths().items():
        print(f"{name:<40} {len(files)} files")
        if "--files" in sys.argv:
            print("\n".join(f"    {file}" for file in sorted(files)))


if __name__ == "__main__":
    main()
