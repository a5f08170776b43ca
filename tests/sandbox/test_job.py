"""Kinds of jobs from other packages: the job here, the handler in the process of the program."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from candidates import BOX, LIMITS, program
from cwm_cli.data.spaces import Space
from cwm_cli.sandbox import Sandbox, SandboxError

CALLING = '''
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from cwm_cli.data.spaces import Space
from cwm_cli.sandbox.handlers import Complaint
from cwm_cli.sandbox.handlers import Handler
from cwm_cli.sandbox.job import Job, SlotLayout


@dataclass(frozen=True, kw_only=True)
class CallJob(Job):
    """Call a function with each number, or with each question."""

    handler: ClassVar[str] = "calling:CallHandler"
    function: str = "f"
    numbers: np.ndarray = field(default_factory=lambda: np.arange(0.0))
    about: dict[str, object] = field(default_factory=dict)
    asks: bool = False

    @property
    def layout(self):
        count = len(self.numbers)
        return SlotLayout([("values", "<f8", (count,))], count)


class CallHandler(Handler[CallJob]):
    job_class = CallJob

    def run(self, program):
        names = {"about": self.job.about}
        exec(program.code, names)
        program.begin()
        function = names.get(self.job.function)
        if function is None:
            raise Complaint(f"there is no {self.job.function}")
        while self.job.asks and (question := program.read(8)):
            program.write(np.float64(function(np.frombuffer(question)[0])).tobytes())
        for place, number in enumerate(self.job.numbers):
            program.slots["values"][place] = function(number)
            program.slots["status"][place] = 1
'''


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    folder: Path = tmp_path_factory.mktemp("plugin")
    (folder / "calling.py").write_text(CALLING)
    (folder / "cheating.py").write_text(
        "import gymnasium\n" + CALLING.replace("calling:", "cheating:")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        import calling

        yield calling


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(LIMITS) as sandbox:
        yield sandbox


def test_job_of_another_package_runs_with_built_in_jobs(
    calling: ModuleType, sandbox: Sandbox
) -> None:
    numbers = np.arange(3, dtype=np.float32)
    assert sandbox.predict(program(), BOX).failure is None
    reply = sandbox.run(calling.CallJob(program="f = lambda x: x * 2", numbers=numbers))
    assert (reply.failure, reply.slots["values"].tolist()) == (None, [0.0, 2.0, 4.0])
    assert sandbox.predict(program(), BOX).failure is None


def test_handler_receives_all_fields_of_its_job(calling: ModuleType, sandbox: Sandbox) -> None:
    box = Space("box", "float32", (2,), (-1.0, -np.inf), (1.0, np.inf))
    about = {
        "spaces": [box, {"a": box}],
        "numbers": [1, 2.5, True, None, "é"],
        "none": np.arange(0),
    }
    about["texts"] = np.array(["ab", "c"])
    said = sandbox.run(
        calling.CallJob(
            program="def f(x):\n    print(about, flush=True)\n    return 0",
            numbers=np.ones(1),
            about=about,
        ),
        stdin=b"",
    )
    assert said.failure is None
    restored = {"none": "array([], dtype=int64)", "texts": "array(['ab', 'c'], dtype='<U2')"}
    shown = ", ".join(f"'{key}': {restored.get(key, about[key])}" for key in about)
    assert said.output.decode() == f"{{{shown}}}\n"


FAILING = {
    "a complaint": ("g = 1", "wrong_output", "there is no f"),
    "a syntax error": ("f = (", "load_error", "SyntaxError"),
    "an exception": ("def f(x): return 1 / 0", "step_error", "ZeroDivisionError"),
    "an exit": ("def f(x): import os; os._exit(0)", "early_exit", "every question was answered"),
    "a loop": ("def f(x):\n    while True: pass", "timeout_cpu", "a single step took more than"),
    "a file": ("def f(x): open('/etc/passwd')", "step_error", "Operation not permitted"),
}


def test_custom_jobs_report_the_usual_failures(calling: ModuleType, sandbox: Sandbox) -> None:
    found = {}
    for name, (text, _, _) in FAILING.items():
        found[name] = sandbox.run(calling.CallJob(program=text, numbers=np.ones(2))).failure
    wrong = {
        name: found[name]
        for name, (_, kind, words) in FAILING.items()
        if found[name] is None or found[name].kind != kind or words not in found[name].message
    }
    assert not wrong


def test_conversation_continues_until_it_is_closed(calling: ModuleType, sandbox: Sandbox) -> None:
    text = "calls = []\ndef f(x):\n    calls.append(x)\n    return sum(calls) + [0][int(x == 9)]"
    asked = sandbox.converse(calling.CallJob(program=text, asks=True))
    for number, total in ((1.0, 1.0), (2.0, 3.0), (3.0, 6.0)):
        asked.send(np.float64(number).tobytes())
        assert np.frombuffer(asked.receive(8)) == total
        asked.rest()
    asked.send(np.float64(9).tobytes())
    with pytest.raises(EOFError):
        asked.receive(8)
    failure = asked.failure()
    assert (failure.kind, failure.line) == ("step_error", 4)


@pytest.mark.slow
def test_missing_handler_or_import_of_gymnasium_is_refused(
    calling: ModuleType,
) -> None:
    import cheating

    class MissingJob(calling.CallJob):
        handler = "calling:Missing"

    for kind, words in ((MissingJob, "no attribute 'Missing'"), (cheating.CallJob, "gymnasium")):
        with Sandbox(workers=1) as own, pytest.raises(SandboxError, match=words):
            own.run(kind(program="f = abs"))
